"""Jobs on a real standalone cluster run as on one machine, and tasks that run twice, or half, publish once."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standalone_cluster import Cluster, standalone_cluster

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.testing import wait_until

pytestmark = pytest.mark.extended

CHECKOUT = Path(__file__).parents[2]
TASKS, ROWS = 4, 4000

# The driver's program publishes through tasks. The first attempt of partition 0 lingers after it has written.
PUBLISH = """
import os, sys, time
from pathlib import Path
from pyspark import TaskContext
import lakemq
from lakemq.engine.client.publish import spark as publish_spark
from lakemq.engine.client.publish.executor import WriteMessages
from lakemq.spark import spark_session

PATH, TASKS, ROWS, LINGER_S, NOTE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]

class Lingers(WriteMessages):
    def __call__(self, batches):
        written = list(super().__call__(batches))
        context = TaskContext.get()
        if context.partitionId() == 0 and LINGER_S:
            try:
                handle = os.open(NOTE, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                pass
            else:
                os.write(handle, str(os.getpid()).encode())
                os.close(handle)
                time.sleep(LINGER_S)
        yield from written

publish_spark.WriteMessages = Lingers
spark = spark_session()
with lakemq.connect(PATH, spark=spark) as mq:
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    done = mq.publish("t", rows)
    read = mq.fetch("t").to_spark()
    print("executors", spark.sparkContext.parallelize(range(8), 8).map(lambda _: lakemq.__file__).distinct().collect())
    print("published", done.record_count, "fetched", read.count(), "distinct", read.select("value").distinct().count())
    print("topics", spark.sql("SELECT count(*) AS n FROM mq.topics").first().n)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    archive = folder / "lakemq.zip"
    shutil.copy(wheel, archive)
    (folder / "publish.py").write_text(PUBLISH)
    with standalone_cluster(folder, archive) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster, tmp_path: Path) -> Iterator[Connection]:
    """A namespace without a sequencer, and with a topic. Sequencers that a test starts are gone afterwards."""
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        with mq.serving():
            mq.topics.create("t", partitions=3)
        yield mq
    cluster.end_jobs()


def publish(cluster: Cluster, mq: Connection, note: Path, linger_s: float, **settings: str) -> subprocess.Popen[str]:
    job = cluster.archive.with_name("publish.py")
    return cluster.submit(job, mq.namespace.path, str(TASKS), str(ROWS), str(linger_s), str(note), **settings)


def read_output(job: subprocess.Popen[str], timeout_s: int = 200) -> list[str]:
    output, _ = job.communicate(timeout=timeout_s)
    assert job.returncode == 0, output
    return output.splitlines()


def check_once(mq: Connection, lines: list[str]) -> None:
    """Check that the driver's figures, Spark's and this process's fetch have each message once."""
    assert "topics 1" in lines  # it reads Delta with jars that the driver gave to the executors
    assert f"published {ROWS} fetched {ROWS} distinct {ROWS}" in lines
    counts = Counter(int(m.value or b"") for m in mq.fetch("t"))
    assert counts == Counter(range(ROWS))


def files_of(mq: Connection) -> int:
    return len(list(Path(mq.namespace.path, "messages").glob("*.parquet")))


def end_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the last line of a job's output."""
    return json.loads(read_output(job)[-1])  # type: ignore[no-any-return]


def test_jobs_of_the_cluster_serve_publish_and_fetch(cluster: Cluster, mq: Connection, tmp_path: Path) -> None:
    path = mq.namespace.path
    serving = cluster.submit(CHECKOUT / "jobs" / "serve.py", "--path", path)
    lines = read_output(publish(cluster, mq, tmp_path / "note", 0))
    check_once(mq, lines)
    (line,) = [line for line in lines if line.startswith("executors ")]
    assert ".zip/lakemq/" in line
    drained = end_of(cluster.submit(CHECKOUT / "jobs" / "microbatch.py", "--path", path))
    assert (drained["exit_code"], drained["inbox_records"]) == (0, 0)
    refused = cluster.submit(CHECKOUT / "jobs" / "step.py", "--path", path)
    assert json.loads(refused.communicate(timeout=60)[0].splitlines()[-1])["error"] == "NOT_LEADER"
    assert refused.returncode == 4
    # the whole group, as a scheduler does: the JVM goes at once, the job finishes its step
    os.killpg(serving.pid, signal.SIGTERM)
    serving.wait(60)
    wait_until(lambda: not mq.state().leader, "the end of the leader", 60)


@pytest.mark.nightly
def test_a_speculative_attempt_publishes_nothing_twice(cluster: Cluster, mq: Connection, tmp_path: Path) -> None:
    """The first attempt lingers after it wrote. Another one, on the other worker, is quicker."""
    speculation = {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_quantile": "0.5",
        "spark_speculation_multiplier": "1.1",
    }
    with mq.serving():
        start_s = time.monotonic()
        lines = read_output(publish(cluster, mq, tmp_path / "note", 150, **speculation))
        assert time.monotonic() - start_s < 150, "the slow attempt was waited for"
        check_once(mq, lines)
    assert files_of(mq) == TASKS + 1  # no segment names the file of the slow one


@pytest.mark.nightly
def test_a_worker_lost_during_a_publish_leaves_nothing_twice(cluster: Cluster, mq: Connection, tmp_path: Path) -> None:
    """The worker dies with the only task that has written and has not reported. The other worker repeats it.

    This is the last test, because the cluster has one worker less afterwards.
    """
    note = tmp_path / "note"
    with mq.serving():
        job = publish(cluster, mq, note, 150)
        wait_until(lambda: note.exists() and bool(note.read_text()), "a task that has written", 240)
        cluster.lose_worker_of(int(note.read_text()))
        check_once(mq, read_output(job))
    assert files_of(mq) > TASKS
