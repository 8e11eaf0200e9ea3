"""The default job as users start it: spark-submit, killed anywhere, run again. No message is lost or doubled."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from targets import nightly_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace import crash
from lakemq.jobs import microbatch

CHECKOUT = Path(__file__).parents[2]
TWICE = ["--source-option", "a=1", "--source-option", "a=2"]
SPARK_BIN = Path(pyspark.__file__).parent / "bin"

# Point -> a value that is inserted after the job has died there.
INBOX_POINTS = {"publish.letter_put": "d", "inbox.published": "e", "inbox.drained": "f"}
# Point -> how many of the three rows the next run publishes.
STREAM_POINTS = {"publish.file_written": 3, "stream.published": 1}


def job(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the job without spark-submit. It starts its own JVM."""
    return run([sys.executable, "-m", "lakemq.jobs.microbatch", "--master", "local[1]", *arguments], **environment)


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    # the lease of a killed job is over soon
    settings = str(Path(environment.pop("folder")) / "lakemq.yaml")
    Path(settings).write_text("lease.ms: 1000\n")
    return subprocess.run(
        command,
        env=inherited | {"LAKEMQ_CONF": settings} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def own_mq(spark: SparkSession, tmp_path: Path) -> Iterator[Connection]:
    """A namespace of the test's own, without a sequencer, with a topic `t` of two partitions."""
    name = f"own_{tmp_path.name.replace('-', '_').lower()}"
    with lakemq.connect(str(tmp_path / name), spark=spark, create=True, config={"lease.ms": 1000}) as mq:
        with mq.serving():
            mq.topics.create("t", partitions=2)
        spark.sql(f"USE {name}")
        yield mq
    spark.sql("USE default")


def last_line(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])  # type: ignore[no-any-return]


def values(mq: Connection) -> list[str]:
    return sorted(m.value.decode() for m in mq.fetch("t") if m.value is not None)


def insert(spark: SparkSession, *values: str) -> None:
    rows = ", ".join(f"('t', 'k', '{value}')" for value in values)
    spark.sql(f"INSERT INTO inbox (topic, key, value) VALUES {rows}")


def test_every_crash_point_of_a_job_has_a_test() -> None:
    """tests/faults/test_crash_points.py tests all others."""
    points_of_jobs = {point for point in crash.POINTS if point.startswith(("inbox.", "stream."))}
    assert points_of_jobs == {point for point in (*INBOX_POINTS, *STREAM_POINTS) if not point.startswith("publish.")}


@pytest.mark.nightly
def test_a_job_killed_while_it_drains_is_taken_up_by_the_next(
    spark: SparkSession, own_mq: Connection, tmp_path: Path
) -> None:
    insert(spark, "a", "b")
    insert(spark, "c")
    for point, value in INBOX_POINTS.items():
        killed = job("--path", own_mq.namespace.path, folder=str(tmp_path), LAKEMQ_CRASH_AT=point)
        assert killed.returncode == -9, killed.stderr
        insert(spark, value)
    # the last one died between publishing and removing, so its rows are still in the table
    assert values(own_mq) == ["a", "b", "c", "d", "e"]
    assert spark.table("inbox").count() == 6
    assert microbatch.main(["--path", own_mq.namespace.path]) == 0
    assert values(own_mq) == ["a", "b", "c", "d", "e", "f"]
    assert spark.table("inbox").count() == 0


def arguments_of_source(mq: Connection, folder: Path) -> list[str]:
    """Return the arguments of a job that publishes the CSV files of the folder."""
    folder.mkdir()
    source = ["--path", mq.namespace.path, "--no-inbox", "--source-format", "csv", "--source-option", f"path={folder}"]
    source += ["--source-schema", "k string, v string", "--query", "files", "--topic", "t"]
    return [*source, "--key", "k", "--value", "upper(v)"]


def counts_of(mq: Connection, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, int, int]:
    assert microbatch.main(arguments) == 0
    end = last_line(capsys.readouterr().out)
    return end["batches"], end["records"], end["rejected"]


@pytest.mark.extended
@pytest.mark.parametrize("point", nightly_but(["stream.published"], STREAM_POINTS))
def test_a_job_killed_in_a_stream_is_taken_up_by_the_next(
    own_mq: Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str], point: str
) -> None:
    """The next run publishes the batch that was begun, unless it was published."""
    source = tmp_path / "source"
    arguments = arguments_of_source(own_mq, source)
    (source / "1.csv").write_text("k1,a\nk2,b\n")
    killed = job(*arguments, folder=str(tmp_path), LAKEMQ_CRASH_AT=point)
    assert killed.returncode == -9, killed.stderr
    assert values(own_mq) == ([] if point == "publish.file_written" else ["A", "B"])
    (source / "2.csv").write_text("k1,c\n")
    assert counts_of(own_mq, arguments, capsys) == (2, STREAM_POINTS[point], 0)
    assert values(own_mq) == ["A", "B", "C"]


@pytest.mark.extended
def test_a_stream_continues_from_its_checkpoint_which_need_not_be_named(
    own_mq: Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, checkpoint_option = tmp_path / "source", ["--checkpoint", str(tmp_path / "checkpoint")]
    arguments = arguments_of_source(own_mq, source)
    (source / "1.csv").write_text("k1,a\nk2,b\n")
    assert counts_of(own_mq, arguments, capsys) == (1, 2, 0)
    assert counts_of(own_mq, arguments, capsys) == (0, 0, 0)
    (source / "2.csv").write_text("k1,c\n")
    assert counts_of(own_mq, arguments, capsys) == (1, 1, 0)
    assert values(own_mq) == ["A", "B", "C"]
    # another checkpoint is another stream
    assert counts_of(own_mq, [*arguments, *checkpoint_option], capsys) == (1, 3, 0)
    assert counts_of(own_mq, [*arguments, *checkpoint_option], capsys) == (0, 0, 0)
    shutil.rmtree(Path(own_mq.namespace.path) / "streams" / "files")
    # without its checkpoint it is a new stream, too, and no row is skipped
    assert counts_of(own_mq, arguments, capsys) == (1, 3, 0)


@pytest.mark.extended
def test_a_batch_that_a_gate_refuses_ends_the_job_with_its_error_and_is_tried_again(
    own_mq: Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, suite = tmp_path / "source", tmp_path / "expectations" / "t.yaml"
    suite.parent.mkdir()
    (tmp_path / "lakemq.yaml").write_text("lease.ms: 1000\n")
    arguments = [*arguments_of_source(own_mq, source), "--conf", str(tmp_path / "lakemq.yaml")]
    expectation = "{type: expect_column_values_to_not_be_null, kwargs: {column: k}}"
    suite.write_text(f"name: t\nexpectations: [{expectation}]\n")
    (source / "1.csv").write_text(",a\n,b\n")
    assert microbatch.main(arguments) == 5
    assert last_line(capsys.readouterr().out)["error"] == "EXPECTATION_FAILED"
    assert values(own_mq) == []
    suite.unlink()
    assert counts_of(own_mq, arguments, capsys) == (1, 2, 0)
    assert values(own_mq) == ["A", "B"]


@pytest.mark.extended
def test_spark_submit_runs_the_job_from_the_shipped_zip(
    spark: SparkSession, own_mq: Connection, tmp_path: Path, wheel: Path
) -> None:
    insert(spark, "a", "b")
    archive = tmp_path / "lakemq.zip"
    shutil.copy(wheel, archive)
    submit = [str(SPARK_BIN / "spark-submit"), "--master", "local[2]"]
    submit += ["--properties-file", str(CHECKOUT / "conf" / "spark-defaults.conf"), "--py-files", str(archive)]
    submit += [str(CHECKOUT / "jobs" / "microbatch.py"), "--path", own_mq.namespace.path]
    completed = run(
        submit,
        folder=str(tmp_path),
        SPARK_HOME=str(SPARK_BIN.parent),
        PYSPARK_PYTHON=sys.executable,
        TMPDIR=str(tmp_path),
    )
    assert completed.returncode == 0, completed.stderr + completed.stdout
    end = last_line(completed.stdout)
    assert (end["job"], end["inbox_records"], end["inbox_rejected"]) == ("microbatch", 2, 0)
    logged = [json.loads(line) for line in completed.stdout.splitlines()[:-1]]
    assert [line["records"] for line in logged if "batch" in line] == [2]
    assert values(own_mq) == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "complaint", "code"),
    [
        (["--source-format", "nope"], "nope", 1),
        (["--source-format", "rate", "--topic", "no.such.topic"], "UNKNOWN_TOPIC", 1),
        (["--source-format", "rate", "--value", "v"], "`v`", 5),
        (["--source-format", "json"], "path", 1),
        (["--source-format", "rate", "--value", "'v'", "--query", "../x"], "name of the query is not valid", 1),
    ],
)
def test_mistake_in_arguments_is_named_in_one_line(
    mq: Connection, topic: str, capfd: pytest.CaptureFixture[str], source: list[str], complaint: str, code: int
) -> None:
    mq.topics.create(topic, partitions=1)
    fixed = ["--path", mq.namespace.path, "--no-inbox", "--topic", topic, "--query", topic]
    assert microbatch.main([*fixed, *source]) == code
    out, err = capfd.readouterr()
    (wrong,) = [line for line in map(json.loads, err.splitlines()) if line["level"] != "INFO"]
    assert complaint in wrong["message"]
    assert last_line(out)["message"] in wrong["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--path", "x", "--topic", "t"],
        ["--path", "x", "--source-format", "json", "--topic", "t"],
        ["--path", "x", "--source-format", "json", "--topic", "t", "--query", "q", *TWICE],
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        microbatch.parse(arguments)
    assert exit_.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.extended
def test_the_job_leaves_deciding_to_a_sequencer_that_serves(
    spark: SparkSession, mq: Connection, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mq.topics.create(topic, partitions=1)
    mq.drain_inbox()  # rows of other tests
    spark.sql(f"INSERT INTO mq.inbox (topic, value) VALUES ('{topic}', 'a')")
    assert microbatch.main(["--path", mq.namespace.path]) == 0
    out, err = capsys.readouterr()
    assert "Another sequencer serves and decides the waiting requests" in err
    assert last_line(out)["inbox_records"] == 1
    assert [m.value for m in mq.fetch(topic)] == [b"a"]
