"""The libraries that tests of clocks and of power loss preload work as described."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.shims import ShiftedClock

PROGRAM = """
import json, sys, threading, time
from pathlib import Path
import pyarrow as pa
from deltalake import write_deltalake

def times(table):
    write_deltalake(table, pa.table({"a": [1]}))
    (entry,) = Path(table, "_delta_log").glob("*.json")
    actions = {k: v for line in entry.read_text().splitlines() for k, v in json.loads(line).items()}
    begun = time.monotonic()
    threading.Event().wait(0.1)
    print(json.dumps({
        "time_ns": time.time_ns() / 1e9,
        "clock_gettime": time.clock_gettime(time.CLOCK_REALTIME),
        "delta_commit": actions["commitInfo"]["timestamp"] / 1e3,
        "delta_add": actions["add"]["modificationTime"] / 1e3,
        "waited": time.monotonic() - begun,
        "monotonic": time.monotonic(),
        "boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
    }), flush=True)

times(sys.argv[1] + "/one")
sys.stdin.readline()
times(sys.argv[1] + "/two")
"""


@pytest.mark.parametrize("shifts_s", [(7200, -7200), (-120.75, 0)])
def test_a_shifted_clock_is_that_of_python_and_of_delta(
    shifts_s: tuple[float, float], clock: ShiftedClock, tmp_path: Path
):
    """The clock shifts at once, even while the process runs. Steady clocks and waits do not change."""
    clock.shift(round(shifts_s[0] * 1000))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environ = {**os.environ, **clock.environ}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        for shift_s in shifts_s:
            times = json.loads(child.stdout.readline())
            for name in ("time_ns", "clock_gettime", "delta_commit", "delta_add"):
                assert times[name] == pytest.approx(time.time() + shift_s, abs=20), name
            assert 0.1 <= times["waited"] < 20
            assert times["monotonic"] == pytest.approx(time.monotonic(), abs=20)
            assert times["boottime"] == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=20)
            clock.shift(round(shifts_s[1] * 1000))
            child.stdin.write("go on\n")
            child.stdin.flush()
    assert child.returncode == 0
