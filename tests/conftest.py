"""Set-up that tests of several folders share.

Tests are marked by their folder: `faults` if they kill processes, `spark` if they start a JVM (`-m "not spark"`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jvm
import pytest
import pytest_timeout
import typer.testing
from azurite import VARIABLE as AZURITE
from azurite import serve_azurite
from defects import raise_for_defects
from gcs_server import VARIABLE as GCS_PROGRAM
from gcs_server import serve_gcs
from object_servers import OBJECT_SERVERS
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from azurite import AzureServer
    from gcs_server import GcsServer
    from object_servers import ObjectServer
    from s3_server import S3Server

CHECKOUT = Path(__file__).parents[1]
MARKED_FOLDERS = ("faults", "spark")
SPARK = "the Spark session"
SPARK_WITHOUT_SESSION = {f"tests/spark/test_{name}.py" for name in ("cluster", "demo", "example", "executor", "mirror")}
PACKAGE_FOLDERS = ("conf", "engine", "jobs", "lakemq", "pyspark_lakemq", "src", "tables")

# pytest's own `pythonpath` reaches this process only; Spark's workers and other children need this.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT / "tests"), os.environ.get("PYTHONPATH")]))

MEMORY = "/dev/shm"
ROOM_BYTES = 8 << 30
"""What the largest tests of all workers take together."""


def keep_files_in_memory() -> None:
    """Let pytest make the folders of tests in memory: they sync hundreds of files, and here no power is lost.

    They stay on the disk if memory has too little room, or if programs may not run there.
    """
    with suppress(OSError):
        status = os.statvfs(MEMORY)
        if status.f_bavail * status.f_frsize >= ROOM_BYTES and not status.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


keep_files_in_memory()
jvm.quick_start()
raise_for_defects()
# Each run of a command would build the tree of all commands again: a quarter of the time of the tests of commands.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(CHECKOUT / "tests").parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
    if hasattr(config, "workerinput"):
        long_scopes = {
            scope_of(item.nodeid) for item in items if any(map(item.get_closest_marker, ("slow", *MARKED_FOLDERS)))
        }
        items.sort(key=lambda item: place_in_queue(scope_of(item.nodeid), long_scopes))


def place_in_queue(scope: str, long_scopes: set[str]) -> tuple[bool, bool, int]:
    """Return the place of a scope among those of all workers: Spark's session, then long ones, mixed.

    Quick ones are last, so that all workers end at the same time.
    """
    return scope != SPARK, scope not in long_scopes, zlib.crc32(scope.encode())


def scope_of(nodeid: str) -> str:
    """Return what the test shares with others that should run in its process: a session, the fixtures of its file, or
    nothing. Faults take long, so each is alone.
    """
    file = nodeid.partition("::")[0]
    if file.startswith("tests/faults/"):
        return nodeid
    return SPARK if file.startswith("tests/spark/") and file not in SPARK_WITHOUT_SESSION else file


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Let the time limit of a test begin again for its teardown, which may hang for the same reason as the test."""
    settings = pytest_timeout._get_item_settings(item)
    if settings.timeout:  # a copy of the tests without this checkout's settings has no limit
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)
    return (yield)


class ScopeScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A schedule in which a process runs all tests of a scope."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ScopeScheduling | None:
    """Use this schedule for `--dist loadgroup`. The groups of xdist itself are lost with pytest 9."""
    return ScopeScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder of the checkout with its links, but without what Python keeps there."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def copy_checkout(target: Path) -> None:
    """Copy what the package is built from."""
    target.mkdir()
    for path in CHECKOUT.iterdir():
        if path.is_file():
            shutil.copy(path, target)
    for folder in PACKAGE_FOLDERS:
        copy_folder(CHECKOUT / folder, target / folder)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network and without a trace in the checkout."""
    source = tmp_path_factory.mktemp("source") / "checkout"
    copy_checkout(source)
    build = "import setuptools.build_meta as backend; backend.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel_path,) = (source / "dist").glob("*.whl")
    return wheel_path


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for the tests of this process: moto's, or a real one with `make test-stores`."""
    from s3_server import serve_s3
    from versitygw import VARIABLE as PROGRAM
    from versitygw import serve_versitygw

    program = os.environ.get(PROGRAM)
    with serve_versitygw(program, tmp_path_factory.mktemp("s3")) if program else serve_s3() as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An emulator of Azure's blob service, with `make test-stores` only."""
    with serve_azurite(os.environ[AZURITE], tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """An emulator of Google Cloud Storage, with `make test-stores` only."""
    with serve_gcs(os.environ[GCS_PROGRAM], tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(params=OBJECT_SERVERS)
def object_server(request: pytest.FixtureRequest) -> ObjectServer:
    """Each kind of object store in turn."""
    server: ObjectServer = request.getfixturevalue(request.param)
    return server
