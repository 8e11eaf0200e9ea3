"""Which written files of final messages the core accepts, and when the leader hands them to a step."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from clocks import ManualClock
from protocol_harness import Harness

from lakemq.engine.maintenance.final_files import STALE_MS
from lakemq.engine.protocol.values.log import FinalFile, FinalRange, RangesWritten
from lakemq.engine.protocol.values.topics import DeleteRecords
from lakemq.engine.sequencer.term import Finalizing

FILE = FinalFile(1, 2)


def range_of(first: int, last: int, partition: int = 0) -> FinalRange:
    return FinalRange(partition, first, last, last - first + 1, 0, 0, 0)


@pytest.fixture
def core() -> Harness:
    """A topic with six messages in partition 0, of which an open transaction has the last one."""
    core = Harness()
    core.create("t", 2)
    core.one(core.produce({0: 5}))
    core.one(core.produce({0: 1}, transaction=core.begin("tx")))
    return core


@pytest.mark.parametrize(
    "ranges",
    [[range_of(1, 2)], [range_of(0, 5)], [range_of(0, 2), range_of(0, 0, partition=1)]],
    ids=["begins later", "ends beyond the last stable offset", "of an empty partition"],
)
def test_written_ranges_with_a_gap_are_not_finalized(core: Harness, ranges: list[FinalRange]) -> None:
    assert core.see(RangesWritten(1, [FILE], ranges)) == []
    assert core.state.topics[1].final_offsets.tolist() == [0, 0]


def test_range_that_was_written_twice_is_finalized_once(core: Harness) -> None:
    written = RangesWritten(1, [FILE], [range_of(0, 2)])
    assert core.see(written, written) == ["ranges_finalized"]
    assert core.see(RangesWritten(1, [FILE], [range_of(3, 4)])) == ["ranges_finalized"]
    assert core.state.topics[1].final_offsets.tolist() == [5, 0]


def test_range_of_deleted_offsets_is_not_finalized(core: Harness) -> None:
    core.one(DeleteRecords("t", {0: 4}))
    assert core.see(RangesWritten(1, [FILE], [range_of(0, 4)])) == []
    assert core.see(RangesWritten(1, [FILE], [range_of(4, 4)])) == ["ranges_finalized"]


# -- runs, which write files beside the steps ------------------------------------------------------------


class _Run(Executor):
    """The run that a test plays: `put` is what it passes files to, and `future` is its end."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        _, self.put = args
        self.future = Future[None]()
        return self.future


def test_files_of_a_long_run_are_decided_before_it_ends(core: Harness) -> None:
    clock, run = ManualClock(), _Run()
    finalizing = Finalizing(lambda topics, put: None, run, clock, 100)
    assert finalizing.take_written(core.state) == []
    put = run.put
    first, second = RangesWritten(1, [FILE], [range_of(0, 2)]), RangesWritten(1, [FILE], [range_of(3, 4)])
    clock.sleep(2 * STALE_MS)
    put(first)
    put(second)
    assert finalizing.is_working
    assert finalizing.take_written(core.state) == [first], "a step decides one file of a topic"
    clock.sleep(STALE_MS)
    assert finalizing.take_written(core.state) == [], "it may be deleted as left over soon"


def test_leader_is_woken_by_a_written_file_and_not_by_the_end_of_a_run(core: Harness) -> None:
    run, woken = _Run(), list[str]()
    finalizing = Finalizing(lambda topics, put: None, run, ManualClock(), 100, lambda: woken.append("woken"))
    finalizing.take_written(core.state)
    assert finalizing.due_in_ms() is None
    run.put(RangesWritten(1, [FILE], [range_of(0, 2)]))
    assert (len(woken), finalizing.due_in_ms()) == (1, 0)
    assert finalizing.take_written(core.state)
    assert finalizing.due_in_ms() is None
    run.future.set_result(None)
    assert len(woken) == 2
    assert finalizing.take_written(core.state) == []
    assert finalizing.due_in_ms() == 100
