"""What commits to a table are made of: files that become part of it and files that go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

LONGEST_BOUND = 32
"""Bytes of a text that is a bound in a file's statistics, as Delta's own writers cut it."""


GROUP_ROWS = 1 << 14
"""Rows of a row group: who looks up little in a large file reads so many at least."""


class CommitConflict(Exception):
    """Somebody else committed to the table first: nothing was written."""


@dataclass(frozen=True)
class StoredFile:
    """A live data file of a table: path below the table, and what Delta's statistics say of its columns."""

    path: str
    size_bytes: int
    record_count: int
    statistics: Mapping[str, Any]


@dataclass(frozen=True)
class NewFile:
    """A file that is there already and is to become part of a table."""

    path: str
    size_bytes: int
    modified_ms: int
    statistics: Mapping[str, Any]

    def stored(self) -> StoredFile:
        """The same once it is part of the table."""
        said = self.statistics
        bounds = {f"min.{name}": bound for name, bound in said.get("minValues", {}).items()}
        bounds |= {f"max.{name}": bound for name, bound in said.get("maxValues", {}).items()}
        return StoredFile(self.path, self.size_bytes, said["numRecords"], bounds)


def statistics_of(rows: pa.Table, texts: bool = True) -> dict[str, Any]:
    """Delta's statistics of a file with these rows: exact bounds of numbers and, with `texts`, of short texts."""
    bounds = {
        name: pc.min_max(rows.column(name)).as_py()
        for name, type in zip(rows.schema.names, rows.schema.types, strict=True)
        if pa.types.is_integer(type) or (texts and pa.types.is_string(type) and not _has_long_text(rows.column(name)))
    }
    known = {name: b for name, b in bounds.items() if b["min"] is not None}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: b["min"] for name, b in known.items()},
        "maxValues": {name: b["max"] for name, b in known.items()},
        "nullCount": {name: rows.column(name).null_count for name in known},
    }


def _has_long_text(column: pa.ChunkedArray) -> bool:
    """Such as JSON: its bounds would stand in the log at full length, and help nobody."""
    return (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST_BOUND
