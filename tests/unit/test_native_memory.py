"""In a serving process Arrow allocates from the system and gives back memory that was freed."""

import os
import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lakemq
from lakemq.jobs import serve as serve_job
from lakemq.jobs.process import native_memory
from lakemq.jobs.process.native_memory import ALLOCATOR_VARIABLE, MemoryRelease

COMMAND = "from lakemq.jobs.cli import main; sys.argv = ['lakemq', '--path', sys.argv[1], 'serve']; main()"
JOB = "from lakemq.jobs.serve import main; main(['--path', sys.argv[1]])"

SERVING_PROGRAM = """
import sys
from lakemq.jobs import serve

def say(mq, for_ms=None, beside=None):
    import pyarrow as pa
    print("allocator:", pa.default_memory_pool().backend_name)
    return 0

serve.serve_until_signal = say
"""

FREEING_PROGRAM = """
from pathlib import Path
from lakemq.jobs.process.native_memory import choose_allocator, release_unused_memory
choose_allocator()
import pyarrow as pa

def resident_mib():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024

buffers = [pa.allocate_buffer(60_000) for _ in range(2_000)]
for buffer in buffers:
    memoryview(buffer).cast("B")[:] = bytes(60_000)
# every second one stays, the last one included: glibc itself gives back nothing below it
del buffers[:-1:2], buffer
before_mib = resident_mib()
release_unused_memory()
print(before_mib - resident_mib())
"""


def run(code: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != ALLOCATOR_VARIABLE}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return completed.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("served"))
    lakemq.connect(path, create=True).close()
    return path


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("entry", [COMMAND, JOB], ids=["command", "job"])
def test_arrow_uses_the_system_allocator_in_serve(entry: str, folder: str) -> None:
    assert "allocator: system" in run(SERVING_PROGRAM + entry, folder)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back memory in their own way")
def test_freed_memory_is_returned_to_the_system() -> None:
    freed_mib = 1_000 * 60_000 / 2**20
    assert float(run(FREEING_PROGRAM)) > freed_mib / 2


@pytest.mark.slow
def test_serving_process_releases_memory_repeatedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = 0

    def count_release() -> None:
        nonlocal releases
        releases += 1
        if releases == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(native_memory, "release_unused_memory", count_release)
    monkeypatch.setattr(serve_job, "MemoryRelease", lambda: MemoryRelease(interval_s=0))
    monkeypatch.setattr(serve_job, "_LOOK_S", 0.001)
    with lakemq.connect(str(tmp_path), create=True) as mq:
        serve_job.serve_until_signal(mq, for_ms=60_000)
    assert releases == 3
