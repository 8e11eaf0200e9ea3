"""`delayed`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakemq.tables.specs.delayed import DELAYED, HOUR_MS, DelayedRow

from ..values.base import Record
from ..values.delays import (
    Delayed,
    DelayedRange,
    DelaysCancelled,
    DelaysDropped,
    DelaysReleased,
    DelaysSettled,
    DelayStatus,
    RangeKey,
    WaitingRange,
    keys_of,
)
from ..values.state import State
from .steps import Project, Restore, Steps, records

_Ended = tuple[DelayedRange, DelayStatus]


def _delayed(state: State, steps: Steps) -> pa.Table:
    changed: dict[RangeKey, int] = {}
    ended: dict[RangeKey, _Ended] = {}
    for step, record in records(steps):
        ended |= {told.key: (told, status) for told, status in _ended(record)}
        changed |= dict.fromkeys(_touched(record), step.decided_at_ms)
    return DELAYED.table(_row(state, key, changed[key], ended) for key in sorted(changed))


def _ended(record: Record) -> Iterator[_Ended]:
    if isinstance(record, DelaysReleased):
        yield from ((told, DelayStatus.RELEASED) for told in record.done.rows())
    elif isinstance(record, DelaysCancelled):
        yield from ((told, DelayStatus.CANCELLED) for told in record.done.rows())
    elif isinstance(record, DelaysDropped):
        yield from ((told, DelayStatus.CANCELLED) for told in record.ranges.rows())
    elif isinstance(record, DelaysSettled):
        yield from ((told, DelayStatus.ABORTED) for told in record.aborted.rows())


def _touched(record: Record) -> Iterator[RangeKey]:
    if isinstance(record, Delayed):
        yield from (told.key for told in record.ranges.rows())
    elif isinstance(record, DelaysCancelled | DelaysReleased | DelaysSettled):
        yield from keys_of(record.topic_id, record.file_id, record.first_row)
    yield from (told.key for told, _ in _ended(record))


def _row(state: State, key: RangeKey, at_ms: int, ended: dict[RangeKey, _Ended]) -> DelayedRow:
    live = state.delays.ranges.get(key)
    if live is None:
        told, status = ended[key]
        released_count = told.record_count if status is DelayStatus.RELEASED else 0
    else:
        told, status = live.told, DelayStatus.OPEN if live.is_open else DelayStatus.WAITING
        released_count = live.released_count
    return DelayedRow(
        step=state.step,
        **told._asdict(),
        due_hour=told.first_due_ms // HOUR_MS,
        producer_id=live.producer_id if live else None,
        producer_epoch=live.producer_epoch if live else None,
        transactional_id=live.transactional_id if live else None,
        scheduled_step=live.step if live else None,
        position=live.position if live else None,
        released_count=released_count,
        cancelled_rows=live.cancelled if live and live.cancelled else None,
        state=status.value,
        changed_at_ms=at_ms,
        removed=live is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in DELAYED.rows(rows.sort_by([("scheduled_step", "ascending"), ("position", "ascending")])):
        told = DelayedRange(*(getattr(row, name) for name in DelayedRange._fields))
        author = row.producer_id, row.producer_epoch, row.transactional_id
        if not 0 <= row.released_count < row.record_count or row.scheduled_step is None or row.position is None:
            raise ValueError(f"{DELAYED.name} has a range of {row.topic} that is not as it was written")
        is_open = row.state == DelayStatus.OPEN.value
        one = WaitingRange(told, row.scheduled_step, row.position, *author, is_open, row.released_count)
        one.cancelled = list(row.cancelled_rows or ())
        state.delays.add(one)


PROJECT: Project = {DELAYED.name: _delayed}
RESTORE: Restore = {DELAYED.name: _restore}
