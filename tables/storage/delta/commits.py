"""The parts of a commit: files that join a table and files that leave it."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..object_stores.files import Files

LONGEST_BOUND = 32
"""Longest text, in bytes, that is a bound in a file's statistics; Delta's own writers cut at the same length."""


GROUP_ROWS = 1 << 14
"""Rows per row group: the least that a look-up in a large file reads."""

_FEW_ROWS = 1_000
"""A file of fewer rows is mostly what describes them, so it has no dictionaries."""


class CommitConflict(Exception):
    """Another process committed to the table first; nothing was written."""


@dataclass(frozen=True)
class StoredFile:
    """A live data file of a table: its path below the table, and Delta's statistics of its columns.

    modified_ms: the time of the file, as the log has it.
    """

    path: str
    size_bytes: int
    record_count: int
    statistics: Mapping[str, Any]
    partition_values: Mapping[str, Any] = field(default_factory=dict)
    modified_ms: int = 0


@dataclass(frozen=True)
class NewFile:
    """An existing file that a commit will add to a table."""

    path: str
    size_bytes: int
    modified_ms: int
    statistics: Mapping[str, Any]
    partition_values: Mapping[str, Any] = field(default_factory=dict)


def write_rows(files: Files, table: str, rows: pa.Table, now_ms: int) -> NewFile:
    """Write rows durably as a new data file of a table, and return the file for a commit. Raises OSError.

    now_ms: time of the file, for the log.
    """
    path, is_large = f"part-{uuid.uuid4().hex}.parquet", rows.num_rows >= _FEW_ROWS
    with files.open_output(f"{table}/{path}") as sink:
        pq.write_table(
            rows,
            sink,
            GROUP_ROWS,
            compression="snappy",
            use_dictionary=is_large,
            store_schema=False,
            write_page_checksum=True,
        )
        size_bytes = sink.tell()
    return NewFile(path, size_bytes, now_ms, compute_statistics(rows))


def compute_statistics(rows: pa.Table) -> dict[str, Any]:
    """Return Delta's statistics of a file with these rows: exact bounds of numbers and of short texts."""
    bounds = {
        name: pc.min_max(rows.column(name)).as_py()
        for name, type in zip(rows.schema.names, rows.schema.types, strict=True)
        if pa.types.is_integer(type) or (pa.types.is_string(type) and not _has_long_text(rows.column(name)))
    }
    bounded = {name: limits for name, limits in bounds.items() if limits["min"] is not None}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: limits["min"] for name, limits in bounded.items()},
        "maxValues": {name: limits["max"] for name, limits in bounded.items()},
        "nullCount": {name: rows.column(name).null_count for name in bounded},
    }


def _has_long_text(column: pa.ChunkedArray) -> bool:
    """Return whether the column holds long texts, such as JSON, whose bounds would only bloat the log."""
    return (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST_BOUND
