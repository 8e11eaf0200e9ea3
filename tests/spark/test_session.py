"""A session knows Delta, is quiet, leaves nothing behind, and gives way to options of spark-submit."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jvm
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from lakemq.engine.client.connection import Connection
from lakemq.spark import spark_session

# The JVM itself prints these before any logging exists: Spark asks for a module that Java calls an incubator, and
# `java` reports the variable with which tests start it.
JVM_NOTICES = ("WARNING: Using incubator modules: jdk.incubator.vector", f"NOTE: Picked up {jvm.VARIABLE}: ")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """An empty working folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    return folder


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | {"TMPDIR": str(cwd.parent)} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def script(folder: Path, code: str) -> str:
    path = folder / "job.py"
    path.write_text(textwrap.dedent(code))
    return str(path)


@pytest.mark.extended
def test_session_knows_the_format_without_registration(spark: SparkSession, mq: Connection, topic: str) -> None:
    """Only the session itself registers the format in these tests. From a checkout Spark does not find it by
    itself.
    """
    mq.topics.create(topic)
    mq.publish(topic, pa.table({"value": ["a", "b"]}))
    rows = spark.read.format("lakemq").option("path", mq.namespace.path).option("subscribe", topic).load()
    assert [bytes(row.value) for row in rows.where("offset = 1").collect()] == [b"b"]


def test_the_running_session_is_returned_as_it_is_with_the_shipped_defaults(spark: SparkSession) -> None:
    assert spark_session(extra={"spark.sql.session.timeZone": "Asia/Tokyo"}) is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "50000"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass").endswith(
        ".FileSystemBasedCheckpointFileManager"
    )
    assert spark.sparkContext.uiWebUrl is None


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first() == sys.executable


@pytest.mark.extended
def test_a_plain_start_is_quiet_and_leaves_nothing_behind(cwd: Path) -> None:
    job = script(
        cwd.parent,
        """
        from lakemq.spark import spark_session
        spark = spark_session(master="local[1]", extra={"spark.driver.memory": "1g"})
        spark.range(10).write.format("delta").saveAsTable("kept")
        spark.sql("CREATE VIEW seen AS SELECT * FROM kept")
        assert spark.table("seen").count() == 10
        print(spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)
        """,
    )
    completed = run([sys.executable, job], cwd)
    assert completed.returncode == 0, completed.stderr
    assert int(completed.stdout) <= 1024
    assert [line for line in completed.stderr.splitlines() if not line.startswith(JVM_NOTICES)] == []
    assert list(cwd.iterdir()) == []
    assert list(cwd.parent.glob("lakemq-spark-*")) == []


@pytest.mark.extended
def test_spark_submit_without_jars_that_are_kept_says_how_to_fetch_them(cwd: Path) -> None:
    job = script(cwd.parent, "from lakemq.spark import spark_session; spark_session()")
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]", job]
    home = str(Path(pyspark.__file__).parent)
    completed = run(submit, cwd, SPARK_HOME=home, PYSPARK_PYTHON=sys.executable, LAKEMQ_JARS=str(cwd))
    assert completed.returncode != 0
    # spark-submit sends both streams of Python to its own stdout.
    assert "MissingJars: Delta's jars" in completed.stdout
    assert "-m lakemq.jobs.jars" in completed.stdout
