"""A session knows Delta, is quiet, leaves nothing behind, and gives way to options of spark-submit."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jvm
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from unit.served import new_name

from lakemq.engine.client.connection import Connection
from lakemq.jobs.jars import kept_jars
from lakemq.spark import spark_session

CHECKOUT = Path(__file__).parents[2]
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


def test_the_session_knows_the_format_at_once(spark: SparkSession, mq: Connection, topic: str) -> None:
    """Only the session itself registers the format in these tests. From a checkout Spark does not find it by
    itself.
    """
    mq.topics.create(topic)
    mq.publish(topic, pa.table({"value": ["a", "b"]}))
    rows = spark.read.format("lakemq").option("path", mq.namespace.path).option("subscribe", topic).load()
    assert [bytes(row.value) for row in rows.where("offset = 1").collect()] == [b"b"]


@pytest.mark.extended
def test_the_session_reads_and_writes_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(table)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    assert sorted(row.id for row in spark.read.format("delta").load(table).collect()) == [0, 2]


def test_the_shipped_defaults_hold(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "50000"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass").endswith(
        ".FileSystemBasedCheckpointFileManager"
    )
    assert spark.sparkContext.uiWebUrl is None


def test_the_running_session_is_returned_as_it_is(spark: SparkSession) -> None:
    assert spark_session(extra={"spark.sql.session.timeZone": "Asia/Tokyo"}) is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first() == sys.executable


def test_workers_import_the_functions_of_a_test_module(spark: SparkSession) -> None:
    # By name, not by value: cloudpickle sends a module's function as a reference.
    assert spark.sparkContext.parallelize(["t"], 1).map(new_name).first().startswith("t")


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


@pytest.mark.nightly
def test_spark_submit_ships_the_wheel_as_zip_and_wins_over_the_defaults(wheel: Path, cwd: Path) -> None:
    archive = cwd.parent / "lakemq.zip"
    shutil.copy(wheel, archive)
    job = script(
        cwd.parent,
        """
        import lakemq.engine
        from lakemq.spark import spark_session

        def where(batches):
            import pyarrow as pa
            import lakemq.engine
            for batch in batches:
                yield pa.RecordBatch.from_pydict({"file": [lakemq.engine.__file__] * batch.num_rows})

        spark = spark_session()
        spark.range(10).write.format("delta").saveAsTable("kept")
        print("driver", lakemq.engine.__file__)
        print("worker", spark.table("kept").limit(1).mapInArrow(where, "file string").first().file)
        for key in ("spark.master", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions"):
            print(key, spark.conf.get(key))
        """,
    )
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    submit += ["--properties-file", str(CHECKOUT / "conf" / "spark-defaults.conf")]
    submit += [
        "--driver-java-options",
        f"-Dlog4j2.configurationFile={(CHECKOUT / 'conf/log4j2.properties').as_uri()}",
    ]
    submit += ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.sql.shuffle.partitions=7"]
    submit += ["--jars", ",".join(map(str, kept_jars())), "--py-files", str(archive), job]
    completed = run(submit, cwd, SPARK_HOME=str(Path(pyspark.__file__).parent), PYSPARK_PYTHON=sys.executable)
    assert completed.returncode == 0, completed.stderr
    values = dict(line.split(" ", 1) for line in completed.stdout.splitlines())
    assert ".zip/lakemq/engine/" in values["driver"]
    assert ".zip/lakemq/engine/" in values["worker"]
    assert values["spark.master"] == "local[1]"
    assert values["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert values["spark.sql.shuffle.partitions"] == "7"
    # PySpark's workers may leave a trace if they are stopped while they write; only log lines count
    assert [line for line in completed.stderr.splitlines() if " WARN " in line or " INFO " in line] == []
    assert list(cwd.iterdir()) == []


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
