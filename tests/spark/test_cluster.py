"""Jobs on a real standalone cluster run as on one machine."""

import json
import os
import shutil
import signal
import subprocess
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

PUBLISH = """
import sys
import lakemq
from lakemq.spark import spark_session

PATH, TASKS, ROWS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
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


def publish(cluster: Cluster, mq: Connection) -> subprocess.Popen[str]:
    return cluster.submit(cluster.archive.with_name("publish.py"), mq.namespace.path, str(TASKS), str(ROWS))


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


def end_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the last line of a job's output."""
    return json.loads(read_output(job)[-1])  # type: ignore[no-any-return]


def test_jobs_of_the_cluster_serve_publish_and_fetch(cluster: Cluster, mq: Connection) -> None:
    path = mq.namespace.path
    serving = cluster.submit(CHECKOUT / "jobs" / "serve.py", "--path", path)
    lines = read_output(publish(cluster, mq))
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
