"""What a Spark task does with message rows: arrange them, write them to files of its own, and tell the ranges.

Shipped to executors: pyarrow, numpy and xxhash only. Every attempt writes new files under random names; only those
that a request names exist for anyone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.files import open_files

from .arrange import Copy, Run, arrange
from .datafile import BODY, BODY_SCHEMA, DataFileWriter, new_data_file

FLUSH_ROWS = 1 << 20
FLUSH_BYTES = 256 << 20

RANGES = pa.schema(
    [
        ("task", pa.int32()),
        ("batch_id", pa.string()),
        ("size_bytes", pa.int64()),
        ("file_rows", pa.int64()),
        ("copy", pa.int32()),
        ("partition", pa.int32()),
        ("first_row", pa.int64()),
        ("record_count", pa.int64()),
        ("min_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
    ]
)
RANGES_DDL = (
    "task int, batch_id string, size_bytes bigint, file_rows bigint, copy int, partition int, "
    "first_row bigint, record_count bigint, min_timestamp_ms bigint, max_timestamp_ms bigint"
)


@dataclass(frozen=True)
class WriteMessages:
    """A function for mapInArrow: batches of key, value, timestamp and maybe headers, asked -> one row per range (RANGES)."""

    root: str
    storage_options: Mapping[str, str]
    destination: str
    copies: tuple[Copy, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import (
            TaskContext,
        )  # there is one on every executor, and none where this module is only imported

        context = TaskContext.get()
        task = context.partitionId() if context else 0
        files, batch_id = open_files(self.root, dict(self.storage_options)), uuid.uuid4().hex
        runs: list[tuple[int, Run]] = []
        with ExitStack() as stack:
            writer: DataFileWriter | None = None
            for table in _gathered(batches):
                if writer is None:  # an empty task leaves no file
                    writer = stack.enter_context(new_data_file(files, batch_id))
                runs += self._write(writer, table, task)
        if writer is not None and runs:
            yield _ranges(task, batch_id, writer.written(files).size_bytes, writer.record_count, runs)

    def _write(self, writer: DataFileWriter, table: pa.Table, task: int) -> Iterator[tuple[int, Run]]:
        asked = table.column("asked").to_numpy() if "asked" in table.column_names else None
        arranged = arrange(self.copies, _body(table, self.destination), asked, task + writer.record_count)
        first_row = writer.write(arranged.rows)
        for copy, runs in arranged.runs:
            index = self.copies.index(copy)
            yield from ((index, run._replace(first_row=run.first_row + first_row)) for run in runs)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches, many together: long runs make few segments."""
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


def _body(table: pa.Table, destination: str) -> pa.Table:
    n = table.num_rows
    columns = {
        "topic": pa.repeat(destination, n),
        "partition": pa.array(np.zeros(n, np.int32)),
        **{name: table.column(name) for name in ("key", "value", "timestamp")},
    }
    if "headers" in table.column_names:
        columns["headers"] = _null_where_empty(table.column("headers"))
    arrays = [columns.get(name, pa.nulls(n, BODY_SCHEMA.field(name).type)) for name in BODY]
    return pa.table([a.cast(f.type) for a, f in zip(arrays, BODY_SCHEMA, strict=True)], schema=BODY_SCHEMA)


def _null_where_empty(headers: pa.ChunkedArray) -> pa.Array:
    lists = pa.concat_arrays(headers.chunks)
    empty = pc.fill_null(pc.equal(pc.list_value_length(lists), 0), True)
    return pc.if_else(empty, pa.scalar(None, lists.type), lists)


def _ranges(
    task: int, batch_id: str, size_bytes: int, rows: int, runs: list[tuple[int, Run]]
) -> pa.RecordBatch:
    n = len(runs)
    columns = [
        [task] * n,
        [batch_id] * n,
        [size_bytes] * n,
        [rows] * n,
        [copy for copy, _ in runs],
        *zip(*(run for _, run in runs), strict=True),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, RANGES, strict=True)], schema=RANGES
    )
