"""Spark jobs on a standalone cluster with everything in S3 or Azure.

Workers begin with empty working folders, and share no folder of the namespace, of checkpoints or of sources with the
driver.
"""

import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azurite import AzureServer
from everything_in_the_bucket import ROWS
from object_servers import OBJECT_SERVERS
from s3_server import BUCKET, S3Server
from standalone_cluster import CHECKOUT, Cluster, standalone_cluster

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.jars import AZURE_JARS, S3A_JARS, JarSet
from lakemq.tables.storage.object_stores.files import open_files

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_200)]

PROGRAM = CHECKOUT / "tests" / "everything_in_the_bucket.py"
JOB_TIMEOUT_S = 600


@dataclass(frozen=True)
class SparkStore:
    """A folder in a store, and what Spark needs to use it.

    url, connector_url: the folder, as users and as Hadoop's connector may name it.
    """

    server: S3Server | AzureServer
    url: str
    connector_url: str
    jars: JarSet
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the namespace."""
        return f"{self.url}/mq"

    @property
    def job_options(self) -> list[str]:
        return ["--path", self.path, *(part for key in self.server.options for part in ("--storage-option", key))]


def s3_store(s3: S3Server) -> SparkStore:
    folder = uuid.uuid4().hex
    return SparkStore(s3, s3.path(folder), f"s3a://{BUCKET}/{folder}", S3A_JARS)


def azure_store(azure: AzureServer) -> SparkStore:
    url = azure.spark_path(uuid.uuid4().hex)
    return SparkStore(azure, url, url, AZURE_JARS, azure.spark_settings)


# Hadoop's connector to Google Cloud Storage takes no address of another server.
@pytest.fixture(params=[name for name in OBJECT_SERVERS if name != "gcs"])
def store(request: pytest.FixtureRequest) -> SparkStore:
    server = request.getfixturevalue(request.param)
    return s3_store(server) if request.param == "s3" else azure_store(server)


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
def mq(store: SparkStore) -> Iterator[Connection]:
    with (
        lakemq.connect(store.path, storage_options=store.server.options, create=True) as connection,
        connection.serving(),
    ):
        for topic in ("orders", "copied", "landed", "again"):
            connection.topics.create(topic, partitions=3)
        yield connection


def submit(cluster: Cluster, store: SparkStore, program: Path, *arguments: str) -> list[str]:
    """Run a job to its end, and return its lines. Fail if a process of this machine shows the secret."""
    settings = {
        "spark_jars": ",".join(map(str, store.jars.resolve())),
        "spark_eventLog_enabled": "true",
        "spark_eventLog_dir": (cluster.archive.parent / "events").as_uri(),
        **store.settings,
    }
    with looking_at_arguments() as seen:
        job = cluster.submit(program, *arguments, environment=store.server.options, **settings)
        try:
            output, _ = job.communicate(timeout=JOB_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(cluster.log.read_text()[-5_000:]) from None
    assert job.returncode == 0, output[-5_000:] + cluster.log.read_text()[-10_000:]
    assert any("CoarseGrainedExecutorBackend" in command for command in seen)
    assert not [command for command in seen if store.server.secret in command]
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


def end_of(lines: list[str]) -> dict[str, Any]:
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def values(mq: Connection, topic: str) -> list[str]:
    return sorted(message.value.decode() for message in mq.fetch(topic) if message.value is not None)


def test_a_program_needs_no_shared_disk_and_shows_no_credentials(
    cluster: Cluster, store: SparkStore, mq: Connection
) -> None:
    lines = submit(cluster, store, PROGRAM, store.path, store.connector_url, *store.server.options)
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
    assert any(store.path.split("/")[0] in line for line in lines if "Scan" in line or "Relation" in line)
    assert_no_secret(store.server.secret, lines, cluster.archive.parent)


def test_the_jobs_need_no_shared_disk_and_show_no_credentials(
    cluster: Cluster, store: SparkStore, mq: Connection
) -> None:
    """The source of the micro-batch job and its checkpoint are in the store."""
    rows = "".join(f'{{"value": "{number}"}}\n' for number in range(20))
    open_files(store.url, store.server.options).put("landed/rows.json", rows.encode())
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
    source += ["--source-option", f"path={store.url}/landed"]
    lines = submit(cluster, store, CHECKOUT / "jobs" / "microbatch.py", *store.job_options, *source)
    ended = end_of(lines)
    assert (ended["exit_code"], ended["inbox_records"], ended["records"]) == (0, 0, 20)
    assert values(mq, "landed") == sorted(map(str, range(20)))

    topics = ["--from", "landed", "--to", "again"]
    lines += submit(cluster, store, CHECKOUT / "jobs" / "copy_topic.py", *store.job_options, *topics)
    assert (end_of(lines)["exit_code"], end_of(lines)["records"]) == (0, 20)
    assert values(mq, "again") == values(mq, "landed")
    assert_no_secret(store.server.secret, lines, cluster.archive.parent)


def assert_no_secret(secret: str, lines: list[str], folder: Path) -> None:
    """Check all that the jobs, the master, the workers, the executors and Spark's event log have written."""
    assert secret not in "\n".join(lines)
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".jar", ".zip")]
    names = [file.name for file in files]
    assert "jobs.log" in names
    assert "stderr" in names  # an executor's
    assert list((folder / "events").iterdir())
    assert [str(file) for file in files if secret.encode() in file.read_bytes()] == []
