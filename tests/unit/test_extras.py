"""The plain package sends, consumes and serves without any extra. Features with an extra say how to install it."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lakemq.engine.namespace.processes.extras import EXTRAS, needs
from lakemq.errors import MissingExtra

CHECKOUT = Path(__file__).parents[2]
MODULES = tuple(sorted(module for modules in EXTRAS.values() for module in modules))

BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_without_extras(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the code in a process that finds no module of any extra."""
    program = BLOCK + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)


def test_every_extra_has_its_packages_and_every_package_of_one_its_modules() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert {*extras} - {"test", "dev", "demo", "all"} == {*EXTRAS}
    required = setup["options"]["install_requires"]
    for extra, modules in EXTRAS.items():
        packages = {re.split(r"[<>=\-]", line)[0] for line in extras[extra].splitlines() if line and line[0] != "#"}
        assert packages <= {module.partition("_")[0] for module in modules} | {"apache"}
        assert not any(re.search(rf"^{module}\b", required, re.MULTILINE) for module in modules)


def test_missing_extra_names_the_command_that_installs_it() -> None:
    with (
        pytest.raises(MissingExtra, match=r"duckdb is not installed\. Expected pip install 'lakemq\[sql\]'\."),
        needs("sql"),
    ):
        raise ModuleNotFoundError(name="duckdb")
    with pytest.raises(ModuleNotFoundError, match="other"), needs("sql"):
        raise ModuleNotFoundError("other", name="other")


@pytest.mark.extended
@pytest.mark.slow
def test_the_plain_package_sends_consumes_and_serves(tmp_path: Path) -> None:
    completed = run_without_extras(
        """
        import pyarrow as pa
        import lakemq

        with lakemq.connect("mq", create=True) as mq, mq.serving():
            mq.topics.create("t", partitions=2)
            with mq.producer() as producer:
                producer.send("t", key="a", value="1").result()
            mq.publish("t", pa.table({"value": ["2"]}))
            with mq.transaction("id") as txn:
                txn.publish("t", pa.table({"value": ["3"]}))
            with mq.consumer("g", topics=["t"], protocol="cooperative", auto_offset_reset="earliest") as consumer:
                found = []
                while len(found) < 3:
                    batch = consumer.poll(timeout_ms=1000)
                    found += [message.value for message in batch]
                    consumer.commit(batch)
            print(sorted(found), sorted(message.value for message in mq.fetch("t")))
        from lakemq.jobs import serve, step
        from lakemq.jobs.cli import app
        from typer.testing import CliRunner
        assert step.main(["--path", "mq", "--until-idle"]) == 0
        for command in (["topics", "list"], ["groups", "lag", "g"], ["doctor", "--no-spark"]):
            done = CliRunner().invoke(app, ["--path", "mq", *command])
            assert done.exit_code == 0, (command, done.output)
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("[b'1', b'2', b'3'] [b'1', b'2', b'3']\n")


@pytest.mark.extended
@pytest.mark.slow
def test_modules_and_commands_that_need_an_extra_name_it(tmp_path: Path) -> None:
    completed = run_without_extras(
        """
        import importlib, json
        import lakemq, pyarrow
        from lakemq.engine.client.predicate import Predicate
        from lakemq.errors import MissingExtra
        from lakemq.jobs.cli import app
        from typer.testing import CliRunner

        calls = [
            lambda: importlib.import_module("lakemq.spark"),
            lambda: importlib.import_module("lakemq.jobs.reports.report"),
            lambda: importlib.import_module("lakemq.jobs.demo.__main__"),
            lambda: Predicate("x", pyarrow.schema([])),
        ]
        for call in calls:
            try:
                print(call())
            except MissingExtra as missing:
                print(str(missing).rpartition(" ")[2])
        lakemq.connect("mq", create=True).close()
        for command in ("sql x", "spark-sql", "audit", "serve --metrics-port 0", "console", "serve --console"):
            done = CliRunner().invoke(app, ["--path", "mq", *command.split()])
            print(json.dumps([done.exit_code, done.stdout, done.stderr]))
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    names, refusals = completed.stdout.splitlines()[:4], completed.stdout.splitlines()[4:]
    assert names == [f"'lakemq[{extra}]'." for extra in ("spark", "report", "spark", "sql")]
    assert [json.loads(refusal) for refusal in refusals] == [
        [3, "", f"MISSING_EXTRA: {missing} is not installed. Expected pip install 'lakemq[{extra}]'.\n"]
        for missing, extra in (
            ("duckdb", "sql"),
            ("pyspark", "spark"),
            ("duckdb", "sql"),
            ("prometheus_client", "metrics"),
            ("uvicorn", "console"),
            ("uvicorn", "console"),
        )
    ]


@pytest.mark.extended
@pytest.mark.slow
def test_jobs_that_need_an_extra_end_with_one_line_and_their_json(tmp_path: Path) -> None:
    jobs = [
        ("microbatch", [], "py4j", "spark"),
        ("copy_topic", ["--from", "a", "--to", "b"], "py4j", "spark"),
        ("audit", [], "duckdb", "sql"),
    ]
    completed = run_without_extras(
        f"""
        import runpy
        import lakemq
        lakemq.connect("mq", create=True).close()
        for job, arguments, *_ in {jobs!r}:
            sys.argv[1:] = ["--path", "mq", *arguments]
            try:
                runpy.run_module(f"lakemq.jobs.{{job}}", run_name="__main__")
            except SystemExit as end:
                assert end.code == 3, end.code
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    logs, ends = (list(map(json.loads, text.splitlines())) for text in (completed.stderr, completed.stdout))
    messages = [f"{missing} is not installed. Expected pip install 'lakemq[{extra}]'." for _, _, missing, extra in jobs]
    assert [log["message"] for log in logs] == [f"MISSING_EXTRA: {message}" for message in messages]
    assert [(end["job"], end["exit_code"], end["error"], end["message"]) for end in ends] == [
        (job, 3, "MISSING_EXTRA", message) for (job, *_), message in zip(jobs, messages, strict=True)
    ]
