"""`delayed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakemq.tables.specs.delayed import DELAYED, HOUR_MS, DelayedRow

from ..values.base import Record
from ..values.delays import (
    CancelOutcome,
    Delayed,
    DelayedRange,
    DelaysCancelled,
    DelaysDropped,
    DelaysReleased,
    DelaysSettled,
    DelayStatus,
    RangeEnd,
    RangeKey,
    WaitingRange,
    keys_of,
    outcome_of,
    ranges_of,
)
from ..values.state import State
from .steps import Project, Restore, Steps


@dataclass(frozen=True)
class RangeEnded:
    """How a range ended, what its last rows were, when, and by which request, if by any."""

    end: RangeEnd
    status: DelayStatus
    at_ms: int
    by: str | None

    def outcome_of(self, index: int) -> CancelOutcome:
        """What became of a row."""
        told, released_count, cancelled, rescheduled = self.end
        if self.status is DelayStatus.ABORTED or index >= told.record_count:
            return CancelOutcome.NOT_FOUND
        outcome = outcome_of(index, released_count, cancelled, rescheduled)
        # with its topic
        return CancelOutcome.CANCELLED if outcome is CancelOutcome.WAITING else outcome


def ended_ranges(steps: Steps) -> Iterator[RangeEnded]:
    """The ranges that these steps have ended."""
    for step in steps:
        for one in step.entries:
            for end, status in _ends(one.record):
                yield RangeEnded(end, status, step.decided_at_ms, one.request_id)


def _ends(record: Record) -> Iterator[tuple[RangeEnd, DelayStatus]]:
    if isinstance(record, DelaysReleased):
        yield from ((end, DelayStatus.RELEASED) for end in record.done.ends())
    elif isinstance(record, DelaysCancelled):
        status = DelayStatus.RESCHEDULED if record.producer_id else DelayStatus.CANCELLED
        yield from ((end, status) for end in record.done.ends())
    elif isinstance(record, DelaysDropped):
        yield from ((end, DelayStatus.CANCELLED) for end in record.ranges.ends())
    elif isinstance(record, DelaysSettled):
        yield from ((RangeEnd(told, 0, [], []), DelayStatus.ABORTED) for told in record.aborted.rows())


def _delayed(state: State, steps: Steps) -> pa.Table:
    changed: dict[RangeKey, tuple[int, str | None]] = {}
    for step in steps:
        for one in step.entries:
            changed |= dict.fromkeys(_touched(one.record), (step.decided_at_ms, one.request_id))
    ended = {one.end.told.key: one for one in ended_ranges(steps)}
    changed |= {key: (one.at_ms, one.by) for key, one in ended.items() if key not in state.delays.ranges}
    return DELAYED.table(_row(state, key, *changed[key], ended) for key in sorted(changed))


def _touched(record: Record) -> Iterator[RangeKey]:
    if isinstance(record, Delayed):
        yield from (told.key for told in record.ranges.rows())
    elif isinstance(record, DelaysCancelled | DelaysReleased | DelaysSettled):
        yield from keys_of(record.topic_id, record.file_id, record.first_row)
    if isinstance(record, DelaysCancelled):
        yield from (told.key for told in record.instead.rows())


def _row(state: State, key: RangeKey, at_ms: int, by: str | None, ended: dict[RangeKey, RangeEnded]) -> DelayedRow:
    live = state.delays.ranges.get(key)
    cancelled: Sequence[int]
    rescheduled: Sequence[int]
    if live is None:
        (told, released_count, cancelled, rescheduled), status = ended[key].end, ended[key].status
    else:
        told, status = live.told, DelayStatus.OPEN if live.is_open else DelayStatus.WAITING
        released_count, cancelled, rescheduled = live.released_count, live.cancelled, live.rescheduled
    return DelayedRow(
        step=state.step,
        **told._asdict(),
        due_hour=told.first_due_ms // HOUR_MS,
        producer_id=live.producer_id if live else None,
        producer_epoch=live.producer_epoch if live else None,
        transactional_id=live.transactional_id if live else None,
        scheduled_step=live.step if live else None,
        position=live.position if live else None,
        waiting_count=live.left_count if live else 0,
        released_count=released_count,
        cancelled_rows=list(cancelled) or None,
        rescheduled_rows=list(rescheduled) or None,
        state=status.value,
        changed_at_ms=at_ms,
        changed_by=by,
        removed=live is None,
    )


def ended_row(row: DelayedRow) -> RangeEnded:
    """What a row tells of a range that has ended."""
    told = DelayedRange(*(getattr(row, name) for name in DelayedRange._fields))
    end = RangeEnd(told, row.released_count, list(row.cancelled_rows or ()), list(row.rescheduled_rows or ()))
    return RangeEnded(end, DelayStatus(row.state), row.changed_at_ms, row.changed_by)


_LIVE = (
    "scheduled_step",
    "position",
    "producer_id",
    "producer_epoch",
    "transactional_id",
    "state",
    "released_count",
    "cancelled_rows",
    "rescheduled_rows",
)
_PIECE_ROWS = 1 << 16


def _restore(state: State, rows: pa.Table) -> None:
    """There may be a million: column by column, and piece by piece, as that is all that is held besides the state."""
    told, is_open_as = DelayedRange._fields, DelayStatus.OPEN.value
    rows = rows.sort_by([("scheduled_step", "ascending"), ("position", "ascending")]).select([*told, *_LIVE])
    for piece in rows.to_batches(max_chunksize=_PIECE_ROWS):
        columns = [column.to_pylist() for column in piece.columns]
        ranges = ranges_of(columns[: len(told)])
        for one, *live in zip(ranges, *columns[len(told) :], strict=True):
            step, position, producer_id, producer_epoch, transactional_id, status, released, cancelled, moved = live
            if not 0 <= released < one.record_count or step is None or position is None:
                raise ValueError(f"{DELAYED.name} has a range of {one.topic} that is not as it was written")
            author = producer_id, producer_epoch, transactional_id
            is_open = status == is_open_as
            waiting = WaitingRange(one, step, position, *author, is_open, released, cancelled or (), moved or ())
            state.delays.add(waiting)


PROJECT: Project = {DELAYED.name: _delayed}
RESTORE: Restore = {DELAYED.name: _restore}
