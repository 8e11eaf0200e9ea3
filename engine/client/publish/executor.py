"""The work of a Spark task on message rows: arrange them, write them to data files, and return the ranges.

Shipped to executors: pyarrow, numpy and xxhash only, unless a topic has a schema. Every attempt writes new files
under random names; only those that a request names exist for anyone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.storage.object_stores.files import Files, open_files

from ...namespace.data_file import (
    ROW_GROUP_BYTES,
    DataFileWriter,
    WrittenFile,
    new_data_file,
    new_file_id,
)
from ..rows.body import COLUMN_TYPES, ArrowBody, build_arrow_body
from ..rows.placing import Copy, RowRun

FLUSH_ROWS = 1 << 18
FLUSH_BYTES = 64 << 20
"""Rows are sorted and written this many at a time. Memory that a worker has touched is then used again, as fresh pages
cost the kernel more than sorting and compressing do. Fewer would make runs short, and segments many."""

RANGES = pa.schema(
    [
        ("task", pa.int32()),
        ("file_id", pa.int64()),
        ("size_bytes", pa.int64()),
        ("file_rows", pa.int64()),
        ("footer_hash", pa.int64()),
        ("destination", pa.int32()),
        ("copy", pa.int32()),
        ("partition", pa.int32()),
        ("first_row", pa.int64()),
        ("record_count", pa.int64()),
        ("min_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("first_due_ms", pa.int64()),
        ("last_due_ms", pa.int64()),
        ("reason", pa.string()),
        ("has_ttl", pa.bool_()),
    ]
)


class Destination(NamedTuple):
    """A destination of rows, and the copies to store. Without copies no topic receives the rows."""

    name: str
    copies: tuple[Copy, ...]


class WrittenRun(NamedTuple):
    """A run of rows in a file. destination, copy: numbers; destination ELSEWHERE: the name is not among them."""

    destination: int
    copy: int
    run: RowRun
    has_ttl: bool


ELSEWHERE = -1

TOPIC = "topic"
"""Column with the destination of each row, if rows have several."""
FAILED = "failed"
"""Column with the mark of the expectation that a row fails; null for the others. Only behind a gate."""

# no topic has this partition: rows that ask for it are stored as rejected
NO_PARTITION = 2**40
NOWHERE = Destination("", (Copy(1, "xxhash64", 2**40, ()),))


@dataclass(frozen=True)
class WriteMessages:
    """A function for mapInArrow: batches of columns of COLUMN_TYPES, and maybe TOPIC and FAILED -> one row per run.

    now_ms: of the call. Without a column TOPIC all rows go to the one destination; rows of a topic that is no
    destination are stored as rejected. Gives RANGES.
    """

    root: str
    storage_options: Mapping[str, str] = field(repr=False)
    destinations: tuple[Destination, ...]
    now_ms: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # there is one on every executor, and none where this module is only imported
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context else 0
        written = write_rows(open_files(self.root, dict(self.storage_options)), batches, self._write)
        if written is not None:
            yield _to_record_batch(task, *written)

    def _write(self, writer: DataFileWriter, table: pa.Table) -> Iterator[WrittenRun]:
        start = round_robin_start(writer)
        for index, rows in self._split_by_destination(table):
            destination = NOWHERE if index == ELSEWHERE else self.destinations[index]
            body, requested = _build_body(rows, destination.name, self.now_ms)
            yield from write_body(writer, index, destination.copies, body, requested, start)

    def _split_by_destination(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        if TOPIC not in table.column_names:
            yield 0, table
            return
        names = pa.array([d.name for d in self.destinations], pa.string())
        index = pc.fill_null(pc.index_in(table.column(TOPIC), names), ELSEWHERE)
        for number in sorted(pc.unique(index).to_pylist()):
            yield number, table.filter(pc.equal(index, number))


def write_rows(
    files: Files,
    batches: Iterator[pa.RecordBatch],
    write: Callable[[DataFileWriter, pa.Table], Iterable[WrittenRun]],
) -> tuple[WrittenFile, list[WrittenRun]] | None:
    """Write rows to one file, and return it with its runs; None if there are no rows. write: writes some rows."""
    placed: list[WrittenRun] = []
    with ExitStack() as stack:
        writer: DataFileWriter | None = None
        for table in _combine_batches(batches):
            if writer is None:  # an empty task leaves no file
                writer = stack.enter_context(new_data_file(files, new_file_id()))
            placed += write(writer, table)
    return (writer.written(files), placed) if writer is not None and placed else None


def write_body(
    writer: DataFileWriter,
    destination: int,
    copies: tuple[Copy, ...],
    body: ArrowBody,
    requested: npt.NDArray[np.int64] | None,
    start: int,
) -> Iterator[WrittenRun]:
    """Arrange the rows for each copy and write them; without copies as rejected, because no topic receives them.

    destination: its number; else as `arrange`.
    """
    if not copies:
        copies, requested = NOWHERE.copies, np.full(body.num_rows, NO_PARTITION)
    arranged = body.arrange_for_file(copies, requested, start)
    first_row = writer.write_all(piece for rows in arranged.rows for piece in rows.cut(ROW_GROUP_BYTES))
    for copy, (_, runs) in enumerate(arranged.runs):
        for run in runs:
            yield WrittenRun(destination, copy, run._replace(first_row=run.first_row + first_row), body.has_ttl)


def round_robin_start(writer: DataFileWriter) -> int:
    """Return the partition at which rows without a key begin."""
    # Not the task's number: DataFrames of one row, published one after the other, all have only task 0.
    return (writer.file_id >> 29) + writer.record_count


def _combine_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into large tables: long runs make few segments."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= FLUSH_ROWS or size >= FLUSH_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(pending)


def _build_body(table: pa.Table, destination: str, now_ms: int) -> tuple[ArrowBody, npt.NDArray[np.int64] | None]:
    names = table.column_names
    columns = {name: table.column(name).cast(kind) for name, kind in COLUMN_TYPES.items() if name in names}
    body, requested = build_arrow_body(columns, destination, now_ms)
    if TOPIC in names:  # rejected rows keep the names that they came with
        body = body.with_topics(table.column(TOPIC))
    if FAILED in names:
        requested = _mark_failed_rows(table.column(FAILED), requested)
    return body, requested


def _mark_failed_rows(marks: pa.ChunkedArray, requested: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """Return the explicit partitions, with the mark of each row that fails an expectation."""
    explicit = pa.scalar(-1, pa.int64()) if requested is None else pa.chunked_array([pa.array(requested)])
    marked: npt.NDArray[np.int64] = pc.coalesce(marks.cast(pa.int64()), explicit).to_numpy()
    return marked


def _to_record_batch(task: int, file: WrittenFile, placed: Sequence[WrittenRun]) -> pa.RecordBatch:
    n = len(placed)
    columns = [
        [task] * n,
        [file.file_id] * n,
        [file.size_bytes] * n,
        [file.record_count] * n,
        [file.footer_hash] * n,
        [written.destination for written in placed],
        [written.copy for written in placed],
        *zip(*(written.run for written in placed), strict=True),
        [written.has_ttl for written in placed],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, RANGES, strict=True)], schema=RANGES
    )
