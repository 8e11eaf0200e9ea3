"""The leader's queue of due messages: later ones delay nothing, and are queued in time."""

from collections import Counter
from collections.abc import Sequence

import pytest
from protocol_harness import AtOnce, Harness

from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.waiting_rows import DueRun
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.values.delays import Delayed, DelayedRange, ranges_to_columns
from lakemq.engine.protocol.values.journal import JournalEntry
from lakemq.engine.protocol.values.segments import segments_to_table
from lakemq.engine.sequencer.delay_queue import NEAR_MS, DelayQueue

HOUR_MS = 3_600_000
BEGIN_MS = 500_000 * HOUR_MS
SECOND_MS = 1000


class Leader:
    """A core and its slots, with a clock that a test moves. released: (file row, time) in order."""

    def __init__(self) -> None:
        self.mq, self.clock = Harness(), Steady()
        self.mq.now_ms = BEGIN_MS
        self.topic_id = self.mq.create("t")
        self.slots = DelayQueue(self.mq.state.delays, self._read, AtOnce, self.clock, 120_000, 50_000, 100_000)
        self.released: list[tuple[int, int]] = []

    def _read(self, ranges: Sequence[DelayedRange]) -> list[list[DueRun]]:
        raise AssertionError("ranges of one due time are not read")

    def schedule(self, due_ms: Sequence[int]) -> None:
        """Publish messages that are sent alone: one range each, in one data file."""
        machine.begin_step(self.mq.state, self.mq.now_ms)
        ranges = [DelayedRange(self.topic_id, "t", 0, 9, None, row, 1, ms, ms, 0, 0) for row, ms in enumerate(due_ms)]
        self.mq.land(machine.fold(self.mq.state, [JournalEntry(Delayed(ranges_to_columns(ranges)))]))
        self.slots.add_new_ranges(self.mq.state.delays)

    def step(self, later_ms: int) -> None:
        self.mq.now_ms += later_ms
        self.clock.ms += later_ms
        state, now_ms = self.mq.state, self.mq.now_ms
        machine.begin_step(state, now_ms)
        self.slots.read_ahead(state.delays, now_ms)
        self.slots.add_new_ranges(state.delays)
        due = self.slots.take_due(state.delays, now_ms)
        for entry in [] if due is None else machine.release_delays(state, due):
            for segment in segments_to_table([entry.segments]).to_pylist():
                rows = range(segment["first_row"], segment["first_row"] + segment["record_count"])
                self.released += [(row, now_ms) for row in rows]
        self.slots.pack(state.delays, state.step)


class Steady(SystemClock):
    ms = 0

    def steady_ms(self) -> int:
        return self.ms


@pytest.mark.slow
@pytest.mark.parametrize("later_ms", [90 * SECOND_MS, 7 * 60 * SECOND_MS])
def test_packed_messages_come_on_time(later_ms: int) -> None:
    """There are 20,000 messages over six hours. Only those of the next minutes are objects."""
    leader = Leader()
    due_ms = [BEGIN_MS + (1 + number) * 6 * HOUR_MS // 20_000 // SECOND_MS * SECOND_MS for number in range(20_000)]
    leader.schedule(due_ms)
    for _ in range(30):  # a step packs 4,096 and queues 1,000
        leader.step(0)
    ranges = leader.mq.state.delays.ranges
    most_held = 20_000 * NEAR_MS // (6 * HOUR_MS) + 4096
    assert len(ranges.packed) > 10_000
    while leader.mq.now_ms < due_ms[-1]:
        leader.step(later_ms)
        assert len(ranges.unpacked) <= most_held
        if leader.slots.is_working(leader.mq.now_ms):
            leader.step(0)
    assert Counter(row for row, _ in leader.released) == Counter(range(20_000))
    assert all(due_ms[row] <= at_ms < due_ms[row] + later_ms + SECOND_MS for row, at_ms in leader.released)
    assert [row for row, _ in leader.released] == list(range(20_000))
    assert not ranges
    assert not leader.mq.state.delays.pending
