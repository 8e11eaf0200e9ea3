"""How far groups have come in their partitions, and the samples of it that the leader takes every minute.

A sample holds totals and no differences. So a leader that dies takes none with it: the next one goes on from the state.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.groups import ASSIGNMENTS, CONSUMER_OFFSETS
from lakemq.tables.specs.journal import SAMPLES, SampleRow
from lakemq.tables.specs.topics import PARTITIONS

from ..protocol.values.assignments import TopicIdPartition
from ..protocol.values.clients import LeaderElected
from ..protocol.values.delays import DelaysReleased
from ..protocol.values.deliveries import Deliveries
from ..protocol.values.journal import StepBatch, is_renewal
from ..protocol.values.state import State

LagOrigin = Literal["committed", "start", "log_start"]


@dataclass(frozen=True)
class PartitionProgress:
    """How far a group has come in a partition, whichever member has it. All lags are counted here.

    Attributes:
        next_offset: the first offset that is left for the group: the committed one, or before the first commit the one
            at which the group begins; but no deleted one.
        counted_from: as in `PartitionLag`.
        readable_end: end of what the group's isolation sees.
        end: end of the log.
        deleted_count: offsets that were deleted before the group was done with them.
        owner: the member that has the partition.
        deliveries: in a queue group, what became of the messages from the committed offset on.
    """

    topic_id: int
    next_offset: int
    counted_from: LagOrigin
    readable_end: int
    end: int
    deleted_count: int
    owner: str | None
    deliveries: Deliveries | None = None

    def count_remaining(self, end: int) -> int:
        """Return how many offsets before `end` are left: neither deleted, nor consumed by the group."""
        if self.deliveries is None:
            return max(0, end - self.next_offset)
        return self.deliveries.count_remaining(end, self.next_offset)


def find_progress(
    state: State, name: str, tp: TopicIdPartition, isolation: str = "read_committed"
) -> PartitionProgress:
    """Return how far a group has come in a partition. isolation: of its members; a queue group has its own."""
    topic, partition = state.topics[tp[0]], tp[1]
    committed, group = state.offsets.get(name, {}).get(tp), state.groups.get(name)
    assignment = group.assignments.get(tp) if group else None
    deliveries = state.find_deliveries(name, tp)
    log_start = offset = int(topic.log_starts[partition])
    counted_from: LagOrigin = "log_start"
    if committed is not None:
        offset, counted_from = committed.offset, "committed"
    elif assignment is not None and assignment.start_offset is not None:
        offset, counted_from = assignment.start_offset, "start"
    if group is not None and group.is_queue:
        isolation = group.setting("isolation.level")
    ends = topic.find_ends(isolation)
    return PartitionProgress(
        topic.topic_id,
        max(offset, log_start),
        counted_from,
        int(ends[partition]),
        int(topic.high_watermarks[partition]),
        sum(counted.deleted_count for counted in (committed, assignment) if counted),
        assignment.owner if assignment else None,
        None if deliveries is None else deliveries.copy(),  # later steps change the state
    )


# Samples: rows of the table of this name. Passes that write tables anyway write them, so an idle namespace gets none.


Subject = tuple[str, str]
"""A topic and a group that reads it. Group "": the topic itself."""

MINUTE_MS = 60_000

MOST_SUBJECTS = 500
"""Subjects sampled in a minute, so that no step waits longer than some milliseconds. The others follow in the next."""

_MOST_STEPS = 10_000
"""Steps of a minute whose times are kept, the newest."""


def find_minute(time_ms: int) -> int:
    """Return the beginning of the minute."""
    return time_ms // MINUTE_MS * MINUTE_MS


def list_subjects(state: State) -> Iterator[Subject]:
    """Yield all subjects."""
    yield from ((topic, "") for topic in state.topic_ids)
    yield from _list_readers(state, state.topics.keys())


def _list_readers(state: State, topic_ids: Collection[int]) -> Iterator[Subject]:
    """Yield the subjects that are groups in these topics."""
    for group in {**state.offsets, **state.groups}:
        read = {topic_id for topic_id, _ in state.offsets.get(group, ())}
        if group in state.groups:
            read.update(state.groups[group].partition_counts)
        yield from ((state.topics[topic_id].topic, group) for topic_id in sorted(read) if topic_id in topic_ids)


def build_sample(state: State, subject: Subject, minute_ms: int) -> SampleRow:
    """Return the row of a subject as of the state."""
    (name, group), offsets, lag = subject, None, None
    topic = state.topics[state.topic_ids[name]] if name in state.topic_ids else None
    if topic is not None and not group:
        offsets = int(topic.high_watermarks.sum())
    elif topic is not None:
        committed = state.offsets.get(group, {})
        assigned = state.groups[group].assignments if group in state.groups else {}
        topic_partitions = ((topic.topic_id, partition) for partition in range(topic.log_count))
        parts = [find_progress(state, group, tp) for tp in topic_partitions if tp in committed or tp in assigned]
        if parts:
            lag = sum(part.count_remaining(part.end) for part in parts)
            offsets = sum(part.end - part.deleted_count for part in parts) - lag
    return SampleRow(step=state.step, minute_ms=minute_ms, topic=name, group=group, offsets=offsets, lag=lag)


class Sampler:
    """Collects which subjects change in a minute, and makes their rows. For the sequencer's thread, for one term.

    Attributes:
        took_ms: how long the last steps took. The sequencer adds to it.
    """

    def __init__(self, state: State, list_overdue: Callable[[], Collection[tuple[str, str]]] = tuple) -> None:
        """Begin a term.

        Args:
            state: at its beginning. If it has a leader, that one died, and left changes without a row.
            list_overdue: returns groups with member ids: those that the leader has last found overdue.
        """
        self.took_ms: deque[int] = deque(maxlen=_MOST_STEPS)
        self._changed: dict[Subject, None] = dict.fromkeys(list_subjects(state) if state.leader else ())
        self._minute_ms, self._step_count = find_minute(state.now_ms), 0
        self._late_ms: int | None = None
        self._list_overdue = list_overdue
        self._decided_at_ms = state.now_ms if state.leader else None
        """When the last step was decided; None after a leader that has resigned."""
        self._pause_ms = 0
        self._noted_ms: dict[str, int] = {}
        """Groups with overdue members -> the minute of their last row."""

    @property
    def _has_rows(self) -> bool:
        return bool(self._changed or self._step_count)

    def take_rows(self, state: State, steps: StepBatch, tables: Mapping[str, pa.Table], is_last: bool) -> pa.Table:
        """Return the rows of the minute before, once it has ended, and those of the first trouble of this minute.

        Args:
            state: after `steps`.
            tables: the rows that these steps have changed.
            is_last: whether the leader resigns, so that the rows of this minute are due, too.
        """
        minute_ms = find_minute(state.now_ms)
        if not self._has_rows:
            self._minute_ms = minute_ms
        self._note(state, steps, tables)
        rows = self._take_trouble(state, minute_ms)
        if self._has_rows and (is_last or minute_ms > self._minute_ms):
            rows += self._take_minute(state, minute_ms, is_last)
        return SAMPLES.table(rows)

    def _take_trouble(self, state: State, minute_ms: int) -> list[SampleRow]:
        """Return a row for a time without a step, and one a minute of each group with overdue members."""
        overdue = {
            name
            for name, member_id in self._list_overdue()
            if name in state.groups and member_id in state.groups[name].members
        }
        new = sorted(name for name in overdue if self._noted_ms.get(name) != minute_ms)
        rows = [SampleRow(step=state.step, minute_ms=minute_ms, topic="", group=name) for name in new]
        if pause_ms := self._pause_ms:
            row = SampleRow(step=state.step, minute_ms=minute_ms, topic="", group="", steps=0, step_p99_ms=pause_ms)
            rows.append(row)
        self._pause_ms, self._noted_ms = 0, dict.fromkeys(overdue, minute_ms)
        return rows

    def _take_minute(self, state: State, minute_ms: int, is_last: bool) -> list[SampleRow]:
        """Return the rows of what has changed. minute_ms: the minute that begins."""
        grown = {state.topic_ids[topic] for topic, group in self._changed if not group and topic in state.topic_ids}
        subjects = [*(self._changed | dict.fromkeys(_list_readers(state, grown)))]
        count = len(subjects) if is_last else MOST_SUBJECTS
        rows = [build_sample(state, subject, self._minute_ms) for subject in subjects[:count]]
        if self._step_count:
            rows.append(self._build_own_row(state.step))
        self._changed, self._minute_ms = dict.fromkeys(subjects[count:]), minute_ms
        return rows

    def _note(self, state: State, steps: StepBatch, tables: Mapping[str, pa.Table]) -> None:
        for spec, columns in (
            (PARTITIONS, ["topic"]),
            *((s, ["topic", "group"]) for s in (CONSUMER_OFFSETS, ASSIGNMENTS)),
        ):
            if spec.name in tables:
                keys = tables[spec.name].group_by(columns).aggregate([]).to_pylist()
                self._changed |= dict.fromkeys((key["topic"], key.get("group", "")) for key in keys)
        self._step_count += sum(not is_renewal(step) for step in steps)
        for placed in steps.find_entries(DelaysReleased):
            assert isinstance(placed.entry.record, DelaysReleased)
            self._late_ms = max(self._late_ms or 0, placed.entry.record.late_ms)
        elections = [(placed.step.step, placed.entry.record) for placed in steps.find_entries(LeaderElected)]
        resigned = {step for step, record in elections if isinstance(record, LeaderElected) and not record.leader}
        for step in steps:
            pause_ms = 0 if self._decided_at_ms is None else step.decided_at_ms - self._decided_at_ms
            if pause_ms > state.lease_ms:
                self._pause_ms = max(self._pause_ms, pause_ms)
            self._decided_at_ms = None if step.step in resigned else step.decided_at_ms

    def _build_own_row(self, step: int) -> SampleRow:
        """Return the row of the sequencer, and set its counts back."""
        p50_ms, p99_ms = map(int, np.percentile(self.took_ms, (50, 99))) if self.took_ms else (None, None)
        row = SampleRow(
            step=step,
            minute_ms=self._minute_ms,
            topic="",
            group="",
            steps=self._step_count,
            step_p50_ms=p50_ms,
            step_p99_ms=p99_ms,
            late_ms=self._late_ms,
        )
        self.took_ms.clear()
        self._step_count, self._late_ms = 0, None
        return row
