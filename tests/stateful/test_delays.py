"""Delayed and recurring messages under random actions: the core and the leader's queue, clocks that jump, restarts.

The rules are checked against the published messages. Each message is in its log once, not before it is due, and after
all messages of its partition that were due before (docs/semantics.md I9).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
from clocks import ManualClock
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from protocol_harness import HOUR_MS, Harness, plain
from protocol_tables import Tables, add_pass, mark_of, restored
from stateful.runs import runs
from stateful.world import Background

from lakemq.engine.namespace.waiting_rows import DueRun, DueRuns
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rows import delays as rows_of_delays
from lakemq.engine.protocol.rows.delays import EndedRange, find_ended_ranges
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.rules.schedules import find_due_occurrences
from lakemq.engine.protocol.values import packed
from lakemq.engine.protocol.values.delays import (
    CancelDelays,
    CancelOutcome,
    DelayedRange,
    DelaysJudged,
    DelaysReleased,
    DelayStatus,
    RangeKey,
    RescheduleDelays,
)
from lakemq.engine.protocol.values.journal import JournalEntry
from lakemq.engine.protocol.values.log import PendingFile, Produce
from lakemq.engine.protocol.values.producers import TransactionRef
from lakemq.engine.protocol.values.schedules import (
    CreateSchedule,
    DeleteSchedule,
    DueOccurrence,
    MissedPolicy,
    OccurrenceDecided,
    PauseSchedule,
    ResumeSchedule,
    ScheduleStatus,
)
from lakemq.engine.protocol.values.segments import segments_to_table
from lakemq.engine.protocol.values.topics import DeleteTopic
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.engine.sequencer import delay_queue
from lakemq.engine.sequencer.delay_queue import RETRY_MS, DelayQueue
from lakemq.engine.sequencer.step_decider import decide_recurring
from lakemq.tables.specs.messages import SEQUENCERS_FILES

Row = tuple[int, int, int]
"""Topic id, file id, row."""
TOPICS = ["t", "u"]
AHEAD_MS = 20_000

dues = st.lists(st.integers(-5, 40), min_size=1, max_size=4).map(sorted)


@dataclass
class DelayedMessage:
    """A message of the model.

    order: decides between messages with the same due time. state: open, waiting, released, gone. moved: how often it
    was rescheduled.
    """

    partition: int
    due_ms: int
    order: tuple[int, int]
    transaction: TransactionRef | None
    state: str
    moved: int = 0


@dataclass
class RecurringModel:
    """A schedule of the model. decided_ms: all of its times up to then are over."""

    decided_ms: int
    each_ms: int
    missed: MissedPolicy


class Delays(RuleBasedStateMachine):
    ahead_ms = AHEAD_MS
    packs: tuple[int, ...] = ()
    """How long before its time a range is queued, and how many other ranges become a block. Empty: the defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.mq, self.clock, self.reader = Harness(), ManualClock(), Background()
        self.mq.now_ms = 9 * HOUR_MS + HOUR_MS - 20_000  # so that due times lie in two hours
        for name in TOPICS:
            self.mq.create(name, 2)
        self.messages: dict[Row, DelayedMessage] = {}
        self.files: dict[int, list[int]] = {}
        self.first_rows: dict[tuple[int, int], int] = {}
        self.unreadable, self.late = set[int](), set[int]()
        self.sent: list[Produce] = []
        self.recurring: dict[str, RecurringModel] = {}
        self.tables: Tables = {}
        self.projected = self.publishes = self.checked_steps = self.queued_step = 0
        self.producer = self.mq.producer()
        self.next_sequence: dict[tuple[int, int], int] = {}
        self.slots = self._slots()

    def _slots(self) -> DelayQueue:
        return DelayQueue(
            self.mq.state.delays, self._read, lambda: self.reader, self.clock, self.ahead_ms, 3, 4, *self.packs
        )

    def _read(self, ranges: Sequence[DelayedRange]) -> list[DueRuns]:
        return [
            OSError("gone") if range_.file_id in self.unreadable else self._build_due_runs(range_) for range_ in ranges
        ]

    def _build_due_runs(self, range_: DelayedRange) -> list[DueRun]:
        times = self.files[range_.file_id][range_.first_row : range_.first_row + range_.record_count]
        ends = [i + 1 for i, ms in enumerate(times) if times[i + 1 : i + 2] != [ms]]
        return [DueRun(times[end - 1], end) for end in ends]

    def look(self) -> None:
        """Add new ranges to the queue, once in each step."""
        if self.mq.state.step != self.queued_step:
            self.slots.add_new_ranges(self.mq.state.delays)
            self.queued_step = self.mq.state.step

    # -- actions ----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), partition=st.integers(0, 1), dues=dues, how=st.sampled_from("pptti"))
    def publish(self, name: str, partition: int, dues: list[int], how: str) -> None:
        """p: plain; t: in a transaction; i: by an idempotent producer."""
        if name not in self.mq.state.topic_ids:
            self.mq.create(name, 2)
        now_ms, file_id = self.mq.now_ms, len(self.files)
        first_ms = now_ms + dues[0] * 1000
        times = [min(max(0, now_ms + s * 1000), first_ms // HOUR_MS * HOUR_MS + HOUR_MS - 1) for s in dues]
        ref = self._transaction() if how == "t" else None
        topic_id = self.mq.state.topic_ids[name]
        sequence = self.next_sequence.get((topic_id, partition), 0)
        identity = (self.producer, 0) if how == "i" else None
        request = self.mq.produce(
            {partition: len(times)}, name, identity, sequence, None, 0, file_id, ref, {partition: (times[0], times[-1])}
        )
        self.files[file_id] = times
        assert not isinstance(self.mq.one(request), Refusal)
        self.sent.append(request)
        if how == "i":
            self.next_sequence[topic_id, partition] = sequence + len(times)
        self.publishes += 1
        self.first_rows[topic_id, file_id] = 0
        for row, due_ms in enumerate(times):
            state = "waiting" if ref is None else "open"
            message = DelayedMessage(partition, due_ms, (self.publishes, row), ref, state)
            self.messages[topic_id, file_id, row] = message

    def _transaction(self) -> TransactionRef:
        return self.mq.current("etl") if "etl" in self.mq.state.transactions else self.mq.begin("etl", 900_000)

    @precondition(lambda self: self.sent)
    @rule()
    def ask_again(self) -> None:
        """A request that an idempotent producer repeats is never scheduled twice."""
        idempotent = [request for request in self.sent if request.producer is not None]
        if idempotent:
            self.mq.one(idempotent[-1])

    @precondition(lambda self: self.mq.state.ongoing)
    @rule(commit=st.sampled_from([True, True, True, False]))
    def end(self, commit: bool) -> None:
        ref = self.mq.current("etl")
        parts = self.mq.state.transactions["etl"].part_count
        assert not isinstance(self.mq.one(EndTransaction(ref, commit, parts)), Refusal)
        for message in self.messages.values():
            if message.state == "open":
                message.state = "waiting" if commit else "gone"

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel some published rows, and check the outcome of each."""
        rows = data.draw(st.lists(st.sampled_from(sorted(self.messages)), min_size=1, max_size=3))
        judged = self.mq.one(CancelDelays(*self._receipts(rows)))
        assert isinstance(judged, DelaysJudged)
        for row, outcome in zip(rows, judged.outcomes, strict=True):
            message = self.messages[row]
            assert (outcome is CancelOutcome.CANCELLED) >= (message.state == "waiting")
            assert outcome is not CancelOutcome.CANCELLED or message.state in ("waiting", "gone")
            self._check_outcome(row, outcome)
            message.state = "gone" if message.state == "waiting" else message.state

    def _receipts(self, rows: Sequence[Row], older: int = 0) -> list[list[int]]:
        """Return the newest receipts of the messages, or those that were valid `older` reschedules before."""
        moved = [max(0, self.messages[row].moved - older) for row in rows]
        begins = [row[2] if times else self.first_rows[row[:2]] for row, times in zip(rows, moved, strict=True)]
        index = [row[2] - first for row, first in zip(rows, begins, strict=True)]
        return [[row[0] for row in rows], [row[1] for row in rows], begins, index, moved]

    def _check_outcome(self, row: Row, outcome: CancelOutcome) -> None:
        """Check an outcome. The journal knows about messages that the state has no more."""
        if outcome is CancelOutcome.NOT_FOUND and self.messages[row].state != "open":
            ended_range, outcome = self._find_ended_range(self._receipts([row]))
            aborted = ended_range.status is DelayStatus.ABORTED
            assert self.messages[row].state == "gone" if aborted else outcome is not CancelOutcome.NOT_FOUND
        assert outcome is not CancelOutcome.RELEASED or self.messages[row].state == "released"

    def _find_ended_range(self, receipt: list[list[int]]) -> tuple[EndedRange, CancelOutcome]:
        """Return a range that has ended, and the outcome of the receipt's row."""
        topic_id, file_id, first_row, index, moved = (column[0] for column in receipt)
        key = RangeKey(topic_id, file_id, first_row, moved)
        (ended_range,) = [range_ for range_ in find_ended_ranges(self.mq.steps) if range_.end.published.key == key][-1:]
        return ended_range, ended_range.find_outcome(index)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), seconds=st.integers(-5, 40), count=st.integers(1, 2))
    def reschedule(self, data: st.DataObject, seconds: int, count: int) -> None:
        """Reschedule one message, which may be in several topics: in all of them, or in none."""
        rows = data.draw(st.lists(st.sampled_from(sorted(self.messages)), min_size=1, max_size=count, unique=True))
        due_ms = max(0, self.mq.now_ms + seconds * 1000)
        judged = self.mq.one(RescheduleDelays(*self._receipts(rows), [due_ms] * len(rows)))
        assert isinstance(judged, DelaysJudged)
        all_wait = all(self.messages[row].state == "waiting" for row in rows)
        assert bool(judged.due_ms) is all_wait
        for n, row in enumerate(rows):
            message = self.messages[row]
            self._check_outcome(row, judged.outcomes[n])
            if all_wait:
                self.publishes += 1
                message.due_ms, message.order, message.moved = (
                    judged.due_ms[n],
                    (self.publishes, 0),
                    judged.reschedules[n],
                )
                assert message.due_ms >= due_ms

    @precondition(lambda self: any(message.moved for message in self.messages.values()))
    @rule(data=st.data(), reschedules=st.booleans())
    def an_old_receipt_changes_nothing(self, data: st.DataObject, reschedules: bool) -> None:
        row = data.draw(st.sampled_from(sorted(row for row, message in self.messages.items() if message.moved)))
        old = self._receipts([row], older=1)
        judged = self.mq.one(RescheduleDelays(*old, [self.mq.now_ms]) if reschedules else CancelDelays(*old))
        assert isinstance(judged, DelaysJudged)
        (outcome,) = judged.outcomes
        if outcome is CancelOutcome.NOT_FOUND:
            outcome = self._find_ended_range(old)[1]
        assert outcome is CancelOutcome.RESCHEDULED
        assert not judged.due_ms

    @rule(name=st.sampled_from(TOPICS), chance=st.integers(0, 9))
    def delete_topic(self, name: str, chance: int) -> None:
        topic_id = self.mq.state.topic_ids.get(name)
        if topic_id is not None and chance == 7:
            self.mq.one(DeleteTopic(name))
            for row, message in self.messages.items():
                if row[0] == topic_id and message.state != "released":
                    message.state = "gone"

    @rule(name=st.sampled_from("ij"), missed=st.sampled_from(MissedPolicy), minutes=st.sampled_from([1, 5]))
    def change_schedule(self, name: str, missed: MissedPolicy, minutes: int) -> None:
        """Create a schedule; one that exists is paused, then resumed, then deleted."""
        schedule = self.mq.state.schedules.get(name)
        if schedule is None and "t" in self.mq.state.topic_ids:
            self.recurring[name] = RecurringModel(self.mq.state.now_ms, minutes * 60_000, missed)
            request: Any = CreateSchedule(name, "t", f"*/{minutes} * * * *", missed=missed)
        elif schedule is None:
            return
        elif schedule.status is ScheduleStatus.PAUSED:
            request = ResumeSchedule(name)
        else:
            request = PauseSchedule(name) if schedule.last_at_ms is None else DeleteSchedule(name)
        assert not isinstance(self.mq.one(request), Refusal)

    def check_occurrences(self, due: Sequence[DueOccurrence], entries: Sequence[JournalEntry]) -> None:
        """Compare the decisions of a step with the model: the last time that is over, unless it was skipped."""
        decided = {entry.record.name: entry.record for entry in entries if isinstance(entry.record, OccurrenceDecided)}
        assert decided.keys() == {occurrence.schedule.name for occurrence in due}
        for schedule in self.mq.state.schedules:
            model, now_ms = self.recurring[schedule.name], self.mq.now_ms
            last_ms = now_ms // model.each_ms * model.each_ms
            if schedule.status is ScheduleStatus.PAUSED or last_ms <= model.decided_ms:
                assert schedule.name not in decided
                continue
            is_skipped = model.missed is MissedPolicy.SKIP and now_ms - last_ms >= 60_000
            assert decided[schedule.name].at_ms == (None if is_skipped else last_ms)
            model.decided_ms = last_ms

    @rule(seconds=st.sampled_from([0, 1, 1, 5, 5, 30, 4_000]), reads=st.booleans())
    def time_passes(self, seconds: int, reads: bool) -> None:
        self.mq.now_ms += seconds * 1000
        self.clock.ms += seconds * 1000
        for _ in range(2):
            self.step()
            self.reader.run() if reads else None

    @rule(partition=st.integers(0, 1), dues=dues, also=dues)
    def publish_twice(self, partition: int, dues: list[int], also: list[int]) -> None:
        self.publish("t", partition, dues, "p")
        self.look()
        self.publish("t", partition, also[:1], "p")

    @rule(seconds=st.sampled_from([1, 30]))
    def the_store_s_clock_is_set_back(self, seconds: int) -> None:
        self.mq.now_ms = max(0, self.mq.now_ms - seconds * 1000)

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def a_file_cannot_be_read_or_can_again(self, data: st.DataObject) -> None:
        file_id = data.draw(st.integers(0, len(self.files) - 1))
        self.unreadable ^= {file_id}

    @rule()
    def reads_end(self) -> None:
        self.reader.run()

    @rule()
    def step(self) -> None:
        """Put a step of the leader in which only time passes."""
        recurring = find_due_occurrences(self.mq.state, self.mq.now_ms, 10)
        machine.begin_step(self.mq.state, self.mq.now_ms)
        self.slots.read_ahead(self.mq.state.delays, self.mq.now_ms)
        entries = self._decide_recurring(recurring)
        self.check_occurrences(recurring, entries)
        entries += self._decide_releases()
        self.mq.land(entries or machine.fold(self.mq.state, [clients.decide_renew(self.mq.state)]))
        self.slots.pack(self.mq.state.delays, self.mq.state.step)
        self.releases_are_due_unique_and_in_order()

    def _decide_recurring(self, recurring: Sequence[DueOccurrence]) -> list[JournalEntry]:
        rows = PendingFile(SEQUENCERS_FILES | self.mq.state.step, sum(len(due.copies) for due in recurring))
        return decide_recurring(self.mq.state, recurring, rows, 0)

    def _decide_releases(self) -> list[JournalEntry]:
        state = self.mq.state
        self.look()
        due = self.slots.take_due(state.delays, min(state.now_ms, self.mq.now_ms))
        return [] if due is None else machine.release_delays(state, due)

    @rule()
    def project(self) -> None:
        add_pass(self.tables, self.mq.state, self.mq.steps[self.projected :])
        self.mark, self.projected = mark_of(self.mq.state), len(self.mq.steps)

    @rule(projects=st.booleans(), dies_in_a_step=st.booleans())
    def another_leads(self, projects: bool, dies_in_a_step: bool) -> None:
        """Decisions of the last leader that did not land have never been."""
        if projects or not self.projected:
            self.project()
        expected = plain(self.mq.state)
        if dies_in_a_step:
            recurring = find_due_occurrences(self.mq.state, self.mq.now_ms, 10)
            machine.begin_step(self.mq.state, self.mq.now_ms)
            self._decide_recurring(recurring)
            self._decide_releases()
        self.mq.state = machine.replay(restored(self.mark, self.tables), self.mq.steps[self.projected :])
        assert plain(self.mq.state) == expected
        self.slots, self.reader, self.queued_step = self._slots(), Background(), self.mq.state.step

    # -- invariants -------------------------------------------------------------------------------------

    @invariant()
    def releases_are_due_unique_and_in_order(self) -> None:
        self.look()
        # a range that could not be read, or not in time, is late and does not hold up others
        self.late |= {key.file_id for key in self.slots._unreadable}
        for step in self.mq.steps[self.checked_steps :]:
            for entry in step.entries:
                if isinstance(entry.record, DelaysReleased):
                    for segment in segments_to_table([entry.segments]).to_pylist():
                        self._check_release(segment, step.decided_at_ms)
        self.checked_steps = len(self.mq.steps)
        waiting = sum(message.state in ("open", "waiting") for message in self.messages.values())
        assert sum(self.mq.state.delays.pending.values()) == waiting

    def _check_release(self, segment: dict[str, Any], at_ms: int) -> None:
        for row in range(segment["first_row"], segment["first_row"] + segment["record_count"]):
            key = (segment["topic_id"], segment["file_id"], row)
            message = self.messages[key]
            assert message.state == "waiting"
            assert message.partition == segment["partition"]
            assert message.due_ms <= min(at_ms, self.mq.now_ms)
            message.state = "released"
            before = [
                other
                for (topic_id, file_id, _), other in self.messages.items()
                if topic_id == key[0] and other.partition == message.partition and other.state == "waiting"
                if (other.due_ms, other.order) < (message.due_ms, message.order)
                if file_id not in self.late
            ]
            assert not before

    def teardown(self) -> None:
        """Check that every message that can be released is released in the end."""
        self.unreadable.clear()
        for _ in range(len(self.messages) + 9):
            self.time_passes(4_000, reads=True)
            self.clock.ms += RETRY_MS
            for _ in range(3):
                self.step()
                self.reader.run()
            self.releases_are_due_unique_and_in_order()
        assert not [message for message in self.messages.values() if message.state == "waiting"]


class PackedDelays(Delays):
    """Delays with most of the waiting ranges in tiny blocks. A step queues only a few ranges."""

    ahead_ms = 1_000
    packs = (2_000, 2)

    def __init__(self) -> None:
        self.patches = ExitStack()
        self.patches.enter_context(patch.multiple(packed, BLOCK_RANGES=4, MAX_SMALL_BLOCKS=2))
        self.patches.enter_context(patch.multiple(rows_of_delays, RESTORED_RANGES=3, NEAR_MS=2_000))
        self.patches.enter_context(
            patch.multiple(delay_queue, _MAX_QUEUED_PER_STEP=2, _MAX_BLOCKS_PER_STEP=1, _MAX_QUEUE=3)
        )
        super().__init__()

    def teardown(self) -> None:
        with self.patches:
            super().teardown()


TestDelays = Delays.TestCase
TestDelays.settings = runs(60, 80)
TestPackedDelays = PackedDelays.TestCase
TestPackedDelays.settings = runs(60, 80)
