"""Reading delayed rows that wait, as of one step, with their places and the columns that predicates use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import BINARY, INT32, TEXT, TIME
from lakemq.tables.storage.delta.changelog import select_newest
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.data_file_reader import open_data_file
from ...namespace.loading.load import read_delayed_rows
from ...protocol.errors import FileTruncated, StorageError
from ...protocol.values.delayed.delays import DelayStatus

PLACE = ("topic_id", "file_id", "first_row", "row", "reschedules")
"""The columns that say where a row is, as `Place` has them."""

SHOWN = pa.schema(
    {"topic": TEXT, "partition": INT32, "key": BINARY, "headers": HEADERS, "timestamp": TIME, "deliver_at": TIME}
)
"""What a predicate may look at; the view `pending_delayed_rows` has the same."""

_OF_RANGE = ("topic", "partition", "topic_id", "file_id", "first_row", "reschedules")
_READ = ["key", "headers", "timestamp", "deliver_at"]

Numbers = npt.NDArray[np.int64]


def read_pending_rows(store: Store, topic: str | None, unread: bool = False) -> Iterator[pa.Table]:
    """Yield the waiting rows of the topic, or of all, with columns of SHOWN and PLACE.

    unread: yield rows of unreadable files, too, with nulls for their contents. Else such a file raises FileTruncated
    or StorageError.
    """
    ranges = select_newest(read_delayed_rows(store.open(DELAYED)), DELAYED.keys)
    ranges = ranges.filter(~pc.field("removed") & (pc.field("state") == DelayStatus.WAITING.value))
    if topic is not None:
        ranges = ranges.filter(pc.field("topic") == topic)
    # rows of a range lie together, mostly so do the ranges of a file
    ranges = ranges.sort_by([("file_id", "ascending"), ("first_row", "ascending")]).combine_chunks()
    if not ranges.num_rows:
        return
    file_ids = ranges.column("file_id").to_numpy()
    begins = np.flatnonzero(np.concatenate([[True], file_ids[1:] != file_ids[:-1]]))
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(file_ids)], strict=True):
        yield _read_file_rows(store.files, ranges.slice(first, end - first), unread)


def _read_file_rows(files: Files, ranges: pa.Table, unread: bool) -> pa.Table:
    """Read the waiting rows of ranges in one file."""
    member, row = _find_waiting_rows(ranges)
    of_range = ranges.select([*_OF_RANGE, "first_due_ms"]).take(pa.array(member))
    try:
        place = (ranges.column(name)[0].as_py() for name in ("file_id", "footer_hash"))
        with open_data_file(files, *place) as parquet:
            stored = parquet.read(_READ)
        rows = _take_rows(stored, of_range.column("first_row").to_numpy() + row)
    except (FileTruncated, StorageError):
        if not unread:
            raise
        rows = pa.table({name: pa.nulls(len(row), SHOWN.field(name).type) for name in _READ})
    columns = {
        **{name: of_range.column(name) for name in _OF_RANGE},
        **{name: rows.column(name) for name in _READ},
        "row": pa.array(row),
    }
    moved = pc.greater(of_range.column("reschedules"), 0)
    if pc.any(moved).as_py():
        due_times = pc.cast(of_range.column("first_due_ms"), pa.timestamp("ms", "UTC")).cast(TIME)
        columns["deliver_at"] = pc.if_else(moved, due_times, rows.column("deliver_at"))
    return pa.table({name: columns[name] for name in (*SHOWN.names, *PLACE)})


def _take_rows(rows: pa.Table, index: Numbers) -> pa.Table:
    """Return the rows at these indexes, without a copy if they are consecutive."""
    if len(index) and (np.diff(index) == 1).all():
        return rows.slice(int(index[0]), len(index))
    return rows.take(pa.array(index))


def _find_waiting_rows(ranges: pa.Table) -> tuple[Numbers, Numbers]:
    """Return per waiting row the index of its range, and its number in the range."""
    released = ranges.column("released_count").to_numpy()
    counts = ranges.column("record_count").to_numpy() - released
    member = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts) + released[member]
    cancelled = ranges.column("cancelled_rows")
    if cancelled.null_count == len(cancelled):
        return member, row
    span = int(ranges.column("record_count").to_numpy().max())
    gone = pc.list_parent_indices(cancelled).to_numpy() * span + pc.list_flatten(cancelled).to_numpy()
    waits = ~np.isin(member * span + row, gone)
    return member[waits], row[waits]
