"""Fetching in Arrow: row ranges of Parquet files as messages, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS, file_stem
from lakemq.tables.specs.spec import TIME
from lakemq.tables.storage.files import Files

from ...protocol.errors import FileTruncated
from .files import data_file
from .held import held_rows
from .plan import FetchPlan

FETCHED: pa.Schema = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""The schema of Spark's Kafka source, with headers."""

_STORED = ["row", "key", "value", "timestamp", "headers"]


@dataclass(frozen=True)
class _Range:
    partition: int
    base_offset: int
    record_count: int
    file_id: int
    footer_hash: int | None
    first_row: int
    append_time_ms: int | None


def fetch_arrow(files: Files, plan: FetchPlan) -> pa.Table:
    """All messages of the plan, by partition and offset, as FETCHED. Raises FileTruncated rather than come short."""
    pieces = list(_pieces(files, plan))
    return pa.Table.from_batches([b for piece in pieces for b in piece.to_batches()], FETCHED)


def _pieces(files: Files, plan: FetchPlan) -> Iterator[pa.Table]:
    columns = ("partition", "base_offset", "record_count", "file_id", "footer_hash", "first_row", "append_time_ms")
    ranges = [_Range(*values) for values in zip(*(plan.segments.column(c).to_pylist() for c in columns), strict=True)]
    by_file: dict[int, list[int]] = {}
    for i, one in enumerate(ranges):
        by_file.setdefault(one.file_id, []).append(i)
    read: dict[int, pa.Table] = {}
    for file_id, mine in by_file.items():
        parts, missing = plan.held.get(file_id, ()), []
        for i in mine:
            rows = held_rows(parts, ranges[i].first_row, ranges[i].record_count) if parts else None
            if rows is None:
                missing.append((i, ranges[i]))
            else:
                read[i] = rows
        if missing:
            read.update(_read_file(files, file_id, missing))
    for i, one in enumerate(ranges):
        yield _message_table(plan.topic, one, read.pop(i))


def _read_file(files: Files, file_id: int, ranges: list[tuple[int, _Range]]) -> Iterator[tuple[int, pa.Table]]:
    """Rows of each range; only row groups that hold some of them are read."""
    with data_file(files, file_id, ranges[0][1].footer_hash) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        starts = np.cumsum([0, *counts])
        needed = sorted({g for _, r in ranges for g in _groups(starts, r)})
        table = file.read_row_groups(needed, columns=_STORED)
    shift = np.cumsum([0, *(counts[g] for g in needed)])
    for i, one in ranges:
        groups = _groups(starts, one)
        at = needed.index(groups[0])
        rows = table.slice(int(shift[at]) + one.first_row - int(starts[groups[0]]), one.record_count)
        _check_rows(file_id, rows.column("row"), one)
        yield i, rows


def _groups(starts: np.ndarray, one: _Range) -> list[int]:
    first = int(np.searchsorted(starts, one.first_row, side="right")) - 1
    last = int(np.searchsorted(starts, one.first_row + one.record_count, side="left")) - 1
    return list(range(first, last + 1))


def _check_rows(file_id: int, numbers: pa.ChunkedArray, one: _Range) -> None:
    if numbers[0].as_py() != one.first_row or numbers[-1].as_py() != one.first_row + one.record_count - 1:
        raise FileTruncated(f"Data file {file_stem(file_id)} is damaged: its rows are not where they were.")


def _message_table(topic: str, one: _Range, rows: pa.Table) -> pa.Table:
    n = one.record_count
    stamp = rows.column("timestamp")
    if one.append_time_ms is not None:
        stamp = pa.repeat(pa.scalar(one.append_time_ms * 1000, TIME), n)
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(topic, n),
        pa.repeat(pa.scalar(one.partition, pa.int32()), n),
        pa.array(np.arange(one.base_offset, one.base_offset + n)),
        stamp,
        pa.repeat(pa.scalar(0 if one.append_time_ms is None else 1, pa.int32()), n),
        rows.column("headers"),
    ]
    return pa.table(columns, schema=FETCHED)


def first_at_or_after(files: Files, plan: FetchPlan, time_us: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first message of a one-partition plan that is not before `time_us`."""
    for piece in _pieces(files, plan):
        stamps = pc.cast(piece.column("timestamp"), pa.int64())
        late = pc.greater_equal(stamps, time_us)
        index = pc.index(late, True).as_py()
        if index >= 0:
            return piece.column("offset")[index].as_py(), stamps[index].as_py() // 1000
    return None
