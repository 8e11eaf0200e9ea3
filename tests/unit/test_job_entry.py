"""All jobs begin and end alike: options, exit codes, the log as JSON, the last line. No JVM is started here."""

import argparse
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.consuming import add, create_queue_group, join_queue_group, take_messages
from unit.served import new_name, new_topic, served, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRecord, NotLeader
from lakemq.jobs import entry, serve, step
from lakemq.jobs.jars import MissingJars
from lakemq.jobs.process.exits import Exit

SERVED_WITH = {"project.interval.ms": 50}

JOBS = ("audit", "copy_topic", "microbatch", "mirror", "release_delayed", "serve", "step")
SPARK_JOBS = ("copy_topic", "microbatch", "mirror")


def parse(*arguments: str) -> argparse.Namespace:
    return entry.parse_arguments(entry.make_job_parser("job", "Does.", ""), ["--path", "mq", *arguments])


def raising(error: BaseException) -> Callable[[], entry.Counts]:
    def work() -> entry.Counts:
        raise error

    return work


def last_line(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])  # type: ignore[no-any-return]


def test_every_job_is_listed_in_this_file() -> None:
    folder = Path(entry.__file__).parent
    assert sorted(path.stem for path in folder.glob("*.py") if "run_as_script(main)" in path.read_text()) == list(JOBS)


def test_help_of_jobs_has_exit_codes_and_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for name in JOBS:
        parser = importlib.import_module(f"lakemq.jobs.{name}").parser()
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["--help"])
        assert ended.value.code == 0
        help_text = capsys.readouterr().out
        assert [code for code in Exit if f"{code.value} " not in help_text] == []
        command = "spark-submit ..." if name in SPARK_JOBS else "python"
        lines = re.findall(rf"^  {re.escape(command)} jobs/{name}.py (.*)", help_text, re.MULTILINE)
        examples = [line.split() for line in lines]
        assert examples, name
        for example in examples:
            assert "--path" in example
            parser.parse_args(example)


def test_kinds_of_failures_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, name in (
        (NotLeader("Another leads."), 4, "NOT_LEADER"),
        (InvalidRecord("No."), 5, "INVALID_RECORD"),
        (MissingJars("Jars are not there."), 3, "MISSING_JARS"),
        (FileNotFoundError(2, "No such file"), 1, "KAFKA_STORAGE_ERROR"),
        (RuntimeError("two\nlines"), 1, "INTERNAL_ERROR"),
        (KeyboardInterrupt(), 130, "INTERRUPTED"),
    ):
        assert entry.run("job", parse(), raising(error)) == code
        out, err = capsys.readouterr()
        (line,) = out.splitlines()
        end = json.loads(line)
        assert (end["job"], end["exit_code"], end["error"]) == ("job", code, name)
        (logged,) = map(json.loads, err.splitlines())
        assert (logged["level"], logged["job"]) == ("ERROR", "job")
        assert logged["message"].startswith(f"{name}: ")


def test_jobs_log_an_object_per_line_with_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("lakemq.here")

    def work() -> entry.Counts:
        log.debug("not told")
        log.info("two\nlines", extra={"step": 7, "batch": 3, "requests": ["a/1"], "value": "secret"})
        return {"records": 5}

    assert entry.run("job", parse(), work) == 0
    out, err = capsys.readouterr()
    assert last_line(out).items() >= {"job": "job", "exit_code": 0, "records": 5}.items()
    line = last_line(err)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "lakemq.here",
        "job": "job",
        "message": "two lines",
        "step": 7,
        "batch": 3,
        "requests": ["a/1"],
    }


def test_storage_options_never_show_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parse("--storage-option", "KEY=secret", "--storage-option", "KEY=secret")

    def work() -> entry.Counts:
        entry.connect_namespace(arguments)
        return {}

    assert entry.run("job", arguments, work) == 3
    assert "secret" not in "".join(capsys.readouterr())


def test_job_without_a_path_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(entry.PATH_VARIABLE, raising=False)
    with pytest.raises(SystemExit) as ended:
        entry.parse_arguments(entry.make_job_parser("job", "Does.", ""), [])
    assert ended.value.code == 2
    monkeypatch.setenv(entry.PATH_VARIABLE, "mq")
    assert entry.parse_arguments(entry.make_job_parser("job", "Does.", ""), []).path == "mq"


@pytest.mark.extended
@pytest.mark.slow
def test_jobs_that_need_no_spark_run_without_pyspark(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True):
        pass
    jobs = [["release_delayed"], ["serve", "--for-ms", "1"], ["step", "--until-idle"], ["audit"]]
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys(("pyspark", "py4j"))
for name, *arguments in {jobs}:
    assert importlib.import_module(f"lakemq.jobs.{{name}}").main(["--path", sys.argv[1], *arguments]) == 0, name
"""
    command = [sys.executable, "-c", code, path]
    # spark-submit sets this for the Python process of a job
    environment = os.environ | {"PYSPARK_GATEWAY_PORT": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert [json.loads(line)["job"] for line in process.stdout.splitlines()] == [name for name, *_ in jobs]


@pytest.mark.slow
def test_step_unless_led_succeeds_while_another_sequencer_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "mq")
    with served(tmp_path, **{"lease.ms": 3_000}) as mq:
        new_topic(mq)  # from now on it leads
        path = mq.namespace.path
        assert step.main(["--path", path, "--until-idle", "--wait-ms", "100"]) == 4
        assert step.main(["--path", path, "--until-idle", "--wait-ms", "100", "--unless-led"]) == 0
        leader = mq.state().leader
    out, err = capsys.readouterr()
    assert last_line(out)["letters"] == 0
    assert f"waits for {leader}, which leads" in err


@pytest.mark.slow
def test_serve_for_a_time_ends_and_leaves_no_lease(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True) as mq:
        begun_s = time.monotonic()
        assert serve.main(["--path", path, "--for-ms", "500"]) == 0
        assert 0.5 <= time.monotonic() - begun_s < 30
        assert not mq.state().leader
    assert last_line(capsys.readouterr().out)["step"] > 0


# -- The sequencer's log tells an operator what happens to topics, groups and transactions ---------------


def test_log_of_the_sequencer_names_what_was_decided(mq: Connection, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lakemq.serve")
    topic, group = new_topic(mq, 2), create_queue_group(mq)
    add(mq, topic, {0: 3, 1: 1})
    with join_queue_group(mq, group, topic) as consumer:
        consumer.reject(take_messages(consumer, 4))
        consumer.flush()
        until(lambda: "dead letters" in caplog.text)
    with mq.consumer(reader := new_name("g"), assign=[topic]) as assigned:
        assigned.commit({(topic, 0): 2})
    mq.topics.delete_records(topic, {0: 3, 1: 1})
    text = "\n".join(record.getMessage() for record in caplog.records if record.name == "lakemq.serve")
    client = r"by client \S+-[0-9a-f]{16}"
    for line in (
        f"Topic {topic} is created with 2 partitions, {client}",
        rf"Group {group}: \S+ is a member, process {os.getpid()} of \S+",
        rf"Group {group}: rebalanced within \d+ ms, reason balance, generation \d+",
        rf"Group {group}: messages of {topic} became dead letters of {topic}\.dlq( \(\d\))?",
        rf"Group {group}: \S+ is no member any more, because it has left",
        f"Topic {topic}: offsets are deleted below 3 in partition 0, 1 in partition 1; groups lost messages that they"
        rf" had not read: {reader} \(\d so far\), {client}",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), f"{line} is not in:\n{text}"
