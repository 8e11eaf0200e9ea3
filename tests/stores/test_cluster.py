"""Spark jobs on a standalone cluster with everything in the bucket. Workers begin with empty working folders, and share
no folder of the namespace, of checkpoints or of sources with the driver.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from everything_in_the_bucket import ROWS
from s3_server import BUCKET, SECRET_KEY, S3Server
from standalone_cluster import CHECKOUT, Cluster, standalone_cluster

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.s3a_jars import S3A_JARS
from lakemq.tables.storage.object_stores.files import open_files

pytestmark = pytest.mark.timeout(1_200)

PROGRAM = CHECKOUT / "tests" / "everything_in_the_bucket.py"
JOB_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Cluster]:
    """A cluster whose processes do not have the credentials in their environment."""
    folder = tmp_path_factory.mktemp("cluster")
    archive = folder / "lakemq.zip"
    shutil.copy(wheel, archive)
    (folder / "events").mkdir()
    with standalone_cluster(folder, archive) as running:
        try:
            yield running
        finally:
            running.end_jobs()


@pytest.fixture
def path(s3: S3Server) -> str:
    return s3.path(f"{uuid.uuid4().hex}/mq")


@pytest.fixture
def mq(s3: S3Server, path: str) -> Iterator[Connection]:
    with lakemq.connect(path, storage_options=s3.options, create=True) as connection, connection.serving():
        for topic in ("orders", "copied", "landed", "again"):
            connection.topics.create(topic, partitions=3)
        yield connection


def submit(cluster: Cluster, s3: S3Server, program: Path, *arguments: str) -> list[str]:
    """Run a job to its end, and return its lines. Fail if a process of this machine shows the secret."""
    settings = {
        "spark_jars": ",".join(map(str, S3A_JARS.resolve())),
        "spark_eventLog_enabled": "true",
        "spark_eventLog_dir": (cluster.archive.parent / "events").as_uri(),
    }
    with looking_at_arguments() as seen:
        job = cluster.submit(program, *arguments, environment=s3.options, **settings)
        try:
            output, _ = job.communicate(timeout=JOB_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(cluster.log.read_text()[-5_000:]) from None
    assert job.returncode == 0, output[-5_000:] + cluster.log.read_text()[-10_000:]
    assert any("CoarseGrainedExecutorBackend" in command for command in seen)
    assert not [command for command in seen if SECRET_KEY in command]
    return output.splitlines()


@contextmanager
def looking_at_arguments() -> Iterator[set[str]]:
    """Collect the arguments of all processes of this machine until the block ends."""
    seen: set[str] = set()
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(0.5):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:  # it has ended
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ends.set()
        thread.join()


def job_options(s3: S3Server, path: str) -> list[str]:
    return ["--path", path, *(part for key in s3.options for part in ("--storage-option", key))]


def end_of(lines: list[str]) -> dict[str, Any]:
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def values(mq: Connection, topic: str) -> list[str]:
    return sorted(message.value.decode() for message in mq.fetch(topic) if message.value is not None)


def test_a_program_needs_no_shared_disk_and_shows_no_credentials(
    cluster: Cluster, s3: S3Server, mq: Connection, path: str
) -> None:
    lines = submit(cluster, s3, PROGRAM, path, f"s3a://{BUCKET}/{uuid.uuid4().hex}", *s3.options)
    assert end_of(lines) == {
        "published": ROWS,
        "fetched": ROWS,
        "batch": 2 * ROWS,
        "streamed": 2 * ROWS,
        "topics": 4,
        "drained": 10,
    }
    numbers = sorted(map(str, range(2 * ROWS)))
    assert values(mq, "copied") == numbers
    assert values(mq, "orders") == sorted([*numbers, *["inserted"] * 10])
    assert any("s3://" in line for line in lines if "Scan" in line or "Relation" in line)
    assert_no_secret(lines, cluster.archive.parent)


def test_the_jobs_need_no_shared_disk_and_show_no_credentials(
    cluster: Cluster, s3: S3Server, mq: Connection, path: str
) -> None:
    """The source of the micro-batch job and its checkpoint are in the bucket."""
    rows = "".join(f'{{"value": "{number}"}}\n' for number in range(20))
    landing = s3.path(uuid.uuid4().hex)
    open_files(landing, s3.options).put("landed/rows.json", rows.encode())
    source = [
        "--query",
        "landing",
        "--source-format",
        "json",
        "--source-schema",
        "value string",
        "--topic",
        "landed",
        "--value",
        "value",
    ]
    source += ["--source-option", f"path={landing}/landed"]
    lines = submit(cluster, s3, CHECKOUT / "jobs" / "microbatch.py", *job_options(s3, path), *source)
    ended = end_of(lines)
    assert (ended["exit_code"], ended["inbox_records"], ended["records"]) == (0, 0, 20)
    assert values(mq, "landed") == sorted(map(str, range(20)))

    topics = ["--from", "landed", "--to", "again"]
    lines += submit(cluster, s3, CHECKOUT / "jobs" / "copy_topic.py", *job_options(s3, path), *topics)
    assert (end_of(lines)["exit_code"], end_of(lines)["records"]) == (0, 20)
    assert values(mq, "again") == values(mq, "landed")
    assert_no_secret(lines, cluster.archive.parent)


def assert_no_secret(lines: list[str], folder: Path) -> None:
    """Check all that the jobs, the master, the workers, the executors and Spark's event log have written."""
    assert SECRET_KEY not in "\n".join(lines)
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".jar", ".zip")]
    names = [file.name for file in files]
    assert "jobs.log" in names
    assert "stderr" in names  # an executor's
    assert list((folder / "events").iterdir())
    assert [str(file) for file in files if SECRET_KEY.encode() in file.read_bytes()] == []
