"""Bounds for the files that a call walks through. `make walks` shows the figures, `tests/walks.py` what they mean."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest
from walks import WALKS, Tracer, Walk, trace_walks

from lakemq.engine.client.spans import Spans
from lakemq.engine.protocol.names import shorten


class Bounds(NamedTuple):
    """The most files that a walk enters, and the most changes from one to another."""

    files: int
    changes: int


# Lower a bound when the figure has fallen; never raise one. The goals are 25 files and 150 changes for a poll, 15 files
# for a publish and 18 for a fetch. A poll varies, because it reads the steps that have come since the poll before. So
# does a publish: a flush looks again whenever its thread is woken.
BOUNDS = {
    "queue poll": Bounds(70, 325),
    "publish": Bounds(28, 116),
    "fetch": Bounds(22, 56),
}


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    return trace_walks()


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_no_more_files_than_its_bound(walks: dict[str, Walk], name: str):
    walk, bounds = walks[name], BOUNDS[name]
    shown = f"python tests/walks.py --show '{name}' lists the files"
    assert len(walk.files) <= bounds.files, shown
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
