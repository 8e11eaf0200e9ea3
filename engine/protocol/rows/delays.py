"""The table `delayed`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import DELAYED, HOUR_MS, DelayedRow

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
    columns_to_keys,
    columns_to_ranges,
    count_cancelled_after,
    find_outcome,
)
from ..values.journal import Step, StepBatch, batch_steps
from ..values.packed import COLUMNS, NULL, RESTORED_RANGES, Block, Numbers, reorder_columns, sort_by_publishing
from ..values.state import State
from ..values.waiting import CountedBlock
from . import Project, Restore


@dataclass(frozen=True)
class EndedRange:
    """How a range ended: the state of its last rows, when it ended, and the request that ended it, if any."""

    end: RangeEnd
    status: DelayStatus
    at_ms: int
    changed_by: str | None

    def find_outcome(self, index: int) -> CancelOutcome:
        """Return the outcome for a row."""
        published, released_count, cancelled, rescheduled = self.end
        if self.status is DelayStatus.ABORTED or index >= published.record_count:
            return CancelOutcome.NOT_FOUND
        outcome = find_outcome(index, released_count, cancelled, rescheduled)
        # a row that still waited was dropped together with its topic
        return CancelOutcome.CANCELLED if outcome is CancelOutcome.WAITING else outcome


def find_ended_ranges(steps: Sequence[Step]) -> Iterator[EndedRange]:
    """Yield the ranges that these steps have ended."""
    for step, _, entry in batch_steps(steps).find_entries(*_ENDS):
        for end, status in _find_ends(entry.record):
            yield EndedRange(end, status, step.decided_at_ms, entry.request_id)


_ENDS = (DelaysReleased, DelaysCancelled, DelaysDropped, DelaysSettled)
"""Records that end ranges."""


def _find_ends(record: Record) -> Iterator[tuple[RangeEnd, DelayStatus]]:
    if isinstance(record, DelaysReleased):
        yield from ((end, DelayStatus.RELEASED) for end in record.done.to_ends())
    elif isinstance(record, DelaysCancelled):
        status = DelayStatus.RESCHEDULED if record.is_reschedule else DelayStatus.CANCELLED
        yield from ((end, status) for end in record.done.to_ends())
    elif isinstance(record, DelaysDropped):
        yield from ((end, DelayStatus.CANCELLED) for end in record.ranges.to_ends())
    elif isinstance(record, DelaysSettled):
        yield from ((RangeEnd(range_, 0, [], []), DelayStatus.ABORTED) for range_ in record.aborted.to_ranges())


def _project_delays(state: State, steps: StepBatch) -> pa.Table:
    changed: dict[RangeKey, tuple[int, str | None]] = {}
    for step, _, entry in steps.find_entries(*_CHANGES):
        changed |= dict.fromkeys(_find_changed_keys(entry.record), (step.decided_at_ms, entry.request_id))
    ended = {end.end.published.key: end for end in find_ended_ranges(steps)}
    state.delays.ranges.unpack([*changed, *ended])
    changed |= {
        key: (end.at_ms, end.changed_by) for key, end in ended.items() if key not in state.delays.ranges.unpacked
    }
    return DELAYED.table(_build_row(state, key, *changed[key], ended) for key in sorted(changed))


_CHANGES = (Delayed, DelaysCancelled, DelaysReleased, DelaysSettled)
"""Records that add ranges, or change them."""


def _find_changed_keys(record: Record) -> Iterator[RangeKey]:
    if isinstance(record, Delayed):
        yield from (range_.key for range_ in record.ranges.to_ranges())
    elif isinstance(record, DelaysCancelled | DelaysReleased | DelaysSettled):
        yield from columns_to_keys(record.topic_id, record.file_id, record.first_row)
    if isinstance(record, DelaysCancelled):
        yield from (range_.key for range_ in record.instead.to_ranges())


def _build_row(
    state: State, key: RangeKey, at_ms: int, by: str | None, ended: dict[RangeKey, EndedRange]
) -> DelayedRow:
    live = state.delays.ranges.unpacked.get(key)
    cancelled: Sequence[int]
    rescheduled: Sequence[int]
    if live is None:
        (published, released_count, cancelled, rescheduled), status = ended[key].end, ended[key].status
    else:
        published, status = live.published, live.status
        released_count, cancelled, rescheduled = live.released_count, live.cancelled, live.rescheduled
    return DelayedRow(
        step=state.step,
        **published._asdict(),
        due_hour=published.first_due_ms // HOUR_MS,
        producer_id=live.producer_id if live else None,
        producer_epoch=live.producer_epoch if live else None,
        transactional_id=live.transactional_id if live else None,
        scheduled_step=live.step if live else None,
        position=live.position if live else None,
        waiting_count=live.waiting_count if live else 0,
        released_count=released_count,
        cancelled_rows=list(cancelled) or None,
        rescheduled_rows=list(rescheduled) or None,
        state=status.value,
        changed_at_ms=at_ms,
        changed_by=by,
        removed=live is None,
    )


def read_ended_range(row: DelayedRow) -> EndedRange:
    """Return the ended range that a row of the table describes."""
    published = DelayedRange(*(getattr(row, name) for name in DelayedRange._fields))
    end = RangeEnd(published, row.released_count, list(row.cancelled_rows or ()), list(row.rescheduled_rows or ()))
    return EndedRange(end, DelayStatus(row.state), row.changed_at_ms, row.changed_by)


_LIVE_COLUMNS = (
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
RESTORED_COLUMNS = (*DelayedRange._fields, *_LIVE_COLUMNS)
"""Columns of `delayed` from which the state is restored."""

NEAR_MS = 3_600_000
"""Ranges that are due later than this are packed when the state is restored."""


def _restore(state: State, rows: pa.Table) -> None:
    restore_pieces(state, [rows])


def restore_pieces(state: State, pieces: Iterable[pa.Table]) -> None:
    """Restore everything that waits.

    There may be millions of ranges, so those that are due much later never become objects.

    pieces: tables of rows of `delayed`, with the newest row of each range that still has waiting rows.
    """
    near: list[pa.Table] = []

    def iterate_later() -> Iterator[pa.Table]:
        for piece in pieces:
            is_later = _is_later(piece, state.now_ms + NEAR_MS)
            if not is_later.all():
                near.append(piece.filter(pa.array(~is_later)))
            yield piece.filter(pa.array(is_later))

    for block, counts in pack_pieces(iterate_later()):
        state.delays.add_block(block, counts)
    if near:
        _restore_objects(state, pa.concat_tables(near))


def pack_pieces(pieces: Iterable[pa.Table]) -> Iterator[CountedBlock]:
    """Pack ranges into blocks.

    pieces: tables of rows of `delayed`, with the newest row of each range. None of them is of an open transaction.
    Raises ValueError if LakeMQ did not write a row like that.
    """
    several, count = list[pa.Table](), 0
    for piece in pieces:
        several.append(piece)
        count += piece.num_rows
        if count >= RESTORED_RANGES:
            yield _pack_rows(pa.concat_tables(several))
            several, count = [], 0
    if count:
        yield _pack_rows(pa.concat_tables(several))


def _is_later(rows: pa.Table, near_ms: int) -> npt.NDArray[np.bool_]:
    """Return which ranges are due later than that and can be packed."""
    is_later: npt.NDArray[np.bool_] = _to_numbers(rows.column("first_due_ms")) >= near_ms
    is_later &= pc.equal(rows.column("state"), DelayStatus.WAITING.value).to_numpy()
    return is_later


def _pack_rows(rows: pa.Table) -> CountedBlock:
    """Pack ranges as one block. Raises ValueError."""
    columns = {
        name: _to_numbers(rows.column(_STORED_AS.get(name, name))) for name in COLUMNS if name != "has_footer_hash"
    }
    released, record_count = columns["released_count"], columns["record_count"]
    is_as_written = (released >= 0) & (released < record_count)
    is_as_written &= (columns["step"] != NULL) & (columns["position"] != NULL)
    if not is_as_written.all():
        _raise_not_as_written(rows.column("topic")[int(np.argmin(is_as_written))].as_py())
    columns["has_footer_hash"] = rows.column("footer_hash").is_valid().to_numpy().astype(np.int64)
    order = sort_by_publishing(columns)
    topic_ids, firsts, numbers = np.unique(columns["topic_id"], return_index=True, return_inverse=True)
    names = rows.column("topic").take(pa.array(firsts)).to_pylist()
    changes = _find_changes(rows)
    waiting_count = record_count - released
    for row, (cancelled, _) in changes.items():
        waiting_count[row] -= count_cancelled_after(cancelled, int(released[row]))
    counts = np.bincount(numbers, waiting_count).astype(np.int64)
    topics = dict(zip(topic_ids.tolist(), names, strict=True))
    if changes:
        number_of_row = np.empty(len(order), np.int64)
        number_of_row[order] = np.arange(len(order))
        changes = {int(number_of_row[row]): change for row, change in changes.items()}
    block = Block(reorder_columns(columns, order), topics, changes)
    return block, dict(zip(topics, counts.tolist(), strict=True))


def _find_changes(rows: pa.Table) -> dict[int, tuple[Sequence[int], Sequence[int]]]:
    """Return the cancelled and rescheduled rows of ranges, by the number of the range in the table."""
    changed = np.flatnonzero(rows.column("cancelled_rows").is_valid().to_numpy())
    if not len(changed):
        return {}
    lists = rows.select(["cancelled_rows", "rescheduled_rows"]).take(pa.array(changed)).to_pylist()
    return {
        row: (cancelled["cancelled_rows"], cancelled["rescheduled_rows"] or ())
        for row, cancelled in zip(changed.tolist(), lists, strict=True)
        if cancelled["cancelled_rows"]
    }


def _raise_not_as_written(topic: str) -> NoReturn:
    raise ValueError(f"{DELAYED.name} has a range of {topic} that is not as it was written")


_STORED_AS = {"step": "scheduled_step"}


def _to_numbers(column: pa.ChunkedArray) -> Numbers:
    if column.null_count:
        column = column.fill_null(NULL)
    numbers: Numbers = column.to_numpy().astype(np.int64, copy=False)
    return numbers


def _restore_objects(state: State, rows: pa.Table) -> None:
    """Restore ranges as objects, column by column and in pieces, so that little memory is needed besides the state."""
    names, is_open_as = DelayedRange._fields, DelayStatus.OPEN.value
    rows = rows.sort_by([("scheduled_step", "ascending"), ("position", "ascending")]).select([*names, *_LIVE_COLUMNS])
    for piece in rows.to_batches(max_chunksize=_PIECE_ROWS):
        columns = [column.to_pylist() for column in piece.columns]
        ranges = columns_to_ranges(columns[: len(names)])
        for range_, *live in zip(ranges, *columns[len(names) :], strict=True):
            step, position, producer_id, producer_epoch, transactional_id, status, released, cancelled, moved = live
            if not 0 <= released < range_.record_count or step is None or position is None:
                _raise_not_as_written(range_.topic)
            author = producer_id, producer_epoch, transactional_id
            is_open = status == is_open_as
            waiting = WaitingRange(range_, step, position, *author, is_open, released, cancelled or (), moved or ())
            state.delays.add(waiting)


PROJECT: Project = {DELAYED.name: _project_delays}
RESTORE: Restore = {DELAYED.name: _restore}
