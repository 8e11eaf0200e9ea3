"""Libraries that children of a test preload: a clock that is off, and a record of all changes of a disk."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def compile_library(name: str, folder: Path) -> Path:
    """Compile `name`.c into a library in the folder. Skip the test if this is not possible."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make the shim with")
    library = folder / f"{name}.so"
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(HERE / f"{name}.c"), "-ldl"]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"{name}.c does not compile here: {completed.stderr.strip()[-300:]}")
    return library


def preloading(library: Path, **variables: str) -> dict[str, str]:
    """Return additions to the environment of a process, so that it runs with the library."""
    before = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": f"{before}:{library}" if before else str(library), **variables}


class ShiftedClock:
    """The wall clock of some processes; it may be moved while they run. Their steady clocks stay right."""

    def __init__(self, library: Path, folder: Path, name: str = "clock") -> None:
        self._file = folder / f"{name}.shift"
        self.environ = preloading(library, LAKEMQ_TEST_CLOCK=str(self._file))
        self.shift(0)

    def shift(self, ms: int) -> None:
        """Set how far the clock is ahead from now on, or behind (negative)."""
        # in place, because processes have it mapped
        with open(os.open(self._file, os.O_RDWR | os.O_CREAT), "wb") as file:
            file.write(struct.pack("=q", ms))
