"""Bounds for the files that a call walks through. `make walks` shows the figures, `tests/walks.py` what they mean."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import NamedTuple

import pytest
import walks as walks_module
from walks import WALKS, Tracer

from lakemq.engine.client.spans import Spans
from lakemq.engine.protocol.names import shorten


class Bounds(NamedTuple):
    """The most files that a walk enters, and the most changes from one to another."""

    files: int
    changes: int


# Lower a bound when the figure has fallen; never raise one. The goals are 25 files and 150 changes for a poll, 15 files
# for a publish and 18 for a fetch. A poll reads the steps that have come since the poll before. One is usual, with 251
# changes; on a busy machine there are two, which adds 14, and up to six for a wait. A publish varies as well: a flush
# looks again whenever its thread is woken.
BOUNDS = {
    "queue poll": Bounds(57, 272),
    "publish": Bounds(23, 104),
    "fetch": Bounds(21, 52),
}


@pytest.fixture(scope="module")
def walks() -> dict[str, Bounds]:
    """Return the figures of a process of its own: what other tests import makes walks longer."""
    command = [sys.executable, walks_module.__file__, "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return {name: Bounds(*figures) for name, figures in json.loads(printed.splitlines()[-1]).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_no_more_files_than_its_bound(walks: dict[str, Bounds], name: str):
    walk, bounds = walks[name], BOUNDS[name]
    shown = f"python tests/walks.py --show '{name}' lists the files"
    assert walk.files <= bounds.files, shown
    assert walk.changes <= bounds.changes, shown


def test_a_walk_has_the_calls_of_all_threads_and_changes_of_file_in_each():
    def call_three_times() -> None:
        spans = Spans()
        shorten("name")
        spans.add(1, 2)

    def call_in_two_threads() -> None:
        thread = threading.Thread(target=call_three_times, name="other")
        thread.start()
        call_three_times()
        thread.join()

    tracer = Tracer()
    with tracer.installed():
        walk = tracer.trace(call_in_two_threads)
    visited = ["engine/client/spans.py", "engine/protocol/names.py", "engine/client/spans.py"]
    assert walk.entries() == {"MainThread": visited, "other": visited}
    assert (walk.calls, len(walk.files), walk.changes) == (6, 2, 6)
