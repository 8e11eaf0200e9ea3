"""Segments as the table has them, found file by file and row group by row group, by what is known of each.

Files of a table never change: what was learnt of one holds for as long as it is live. Of those that a pass wrote there
may be a hundred, with a few rows each; they are read whole, once, and looked through together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.commits import StoredFile
from lakemq.tables.storage.store import Store, TableHandle

from .lookup import LOOKED_AT, Lookup, Mask, Numbers, chosen

_FEW_ROWS = 4096
"""A file of so many is read whole."""

_MOST_ROWS_KEPT = 1 << 16
"""In memory, of files that were read whole: about 8 MB."""

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NUMBERS = ("topic_id", "partition", "base_offset", "last_offset", "first_offset")


class StoredSegments:
    """As of a step; `move_to` goes on to a later one, and keeps what is known of the files that stay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._footers: dict[str, _Footer] = {}
        self._whole: dict[str, pa.Table] = {}

    def move_to(self, table: TableHandle, step: int) -> None:
        """What the table holds up to this step, at the handle's version."""
        self._step, self._files = step, sorted(table.files(), key=_last_step, reverse=True)
        self._bounds = _Bounds.of([file.statistics for file in self._files])
        paths = {file.path for file in self._files}
        self._footers = {path: footer for path, footer in self._footers.items() if path in paths}
        self._whole = {path: rows for path, rows in self._whole.items() if path in paths}
        rows = np.cumsum([file.record_count for file in self._files])
        self._is_small = [
            0 < file.record_count <= _FEW_ROWS and before <= _MOST_ROWS_KEPT
            for file, before in zip(self._files, rows.tolist(), strict=True)
        ]
        self._small: pa.Table | None = None

    def find(self, lookup: Lookup) -> pa.Table:
        """FileNotFoundError: a file was merged meanwhile, and deleted."""
        wanted = np.flatnonzero(self._bounds.may_have(lookup)).tolist()
        parts = [lookup.among(self._read(self._files[i], lookup)) for i in wanted if not self._is_small[i]]
        if any(self._is_small[i] for i in wanted):
            self._small = self._small_files() if self._small is None else self._small
            parts.append(lookup.among(self._small))
        found = pa.concat_tables([LOOKED_AT.empty_table(), *parts])
        return chosen(found, found.column("step").to_numpy() <= self._step)

    def _small_files(self) -> pa.Table:
        """All their rows."""
        small = [file for file, is_small in zip(self._files, self._is_small, strict=True) if is_small]
        for file in small:
            if file.path not in self._whole:
                self._whole[file.path] = self._read(file)
        return pa.concat_tables([self._whole[file.path] for file in small]).combine_chunks()

    def _read(self, file: StoredFile, lookup: Lookup | None = None) -> pa.Table:
        """The rows of a file; what is looked for is among them."""
        footer = self._footers.get(file.path)
        with (
            self._store.files.open_input(f"{SEGMENTS.name}/{unquote(file.path)}") as source,
            pq.ParquetFile(source, metadata=footer.metadata if footer else None) as parquet,
        ):
            if not parquet.schema_arrow.equals(SEGMENTS.stored_schema):  # another engine has merged it
                where = lookup.expression() if lookup else None
                return _checked(self._store.dataset(SEGMENTS, [file]).to_table(columns=LOOKED_AT.names, filter=where))
            if lookup is None:
                return _checked(parquet.read(columns=LOOKED_AT.names, use_threads=False))
            if footer is None:
                footer = self._footers[file.path] = _Footer.of(parquet.metadata)
            groups = np.flatnonzero(footer.bounds.may_have(lookup)).tolist()
            many = len(groups) > 4
            return _checked(parquet.read_row_groups(groups, columns=LOOKED_AT.names, use_threads=many))


def _checked(rows: pa.Table) -> pa.Table:
    return SEGMENTS.checked(rows.select(LOOKED_AT.names))


def _last_step(file: StoredFile) -> int:
    return file.statistics.get("max.step") or 0


@dataclass(frozen=True)
class _Bounds:
    """Of some files, or row groups: the least and the greatest value of each column, where they are known."""

    low: dict[str, Numbers]
    high: dict[str, Numbers]
    has_aborts: Mask

    @classmethod
    def of(cls, statistics: Sequence[Mapping[str, Any]]) -> _Bounds:
        """Of each, as a StoredFile has them."""

        def column(name: str, unknown: int) -> Numbers:
            found = [one.get(name) for one in statistics]
            return np.array([unknown if bound is None else bound for bound in found], np.int64)

        kinds = [one.get("min.kind") for one in statistics]
        return cls(
            {name: column(f"min.{name}", _LOWEST) for name in _NUMBERS},
            {name: column(f"max.{name}", _HIGHEST) for name in _NUMBERS},
            # of all kinds it is the first
            np.array([kind is None or kind <= "abort" for kind in kinds], np.bool_),
        )

    def may_have(self, lookup: Lookup) -> Mask:
        """Which may have some of what is looked for."""
        first, last = lookup.partitions
        of_topic = (self.low["topic_id"] <= lookup.topic_id) & (self.high["topic_id"] >= lookup.topic_id)
        of_partitions = (self.low["partition"] <= last) & (self.high["partition"] >= first)
        in_range = self.low["base_offset"] < lookup.end
        if lookup.committed:
            in_range |= self.has_aborts & (self.low["first_offset"] < lookup.end)
        return of_topic & of_partitions & in_range & (self.high["last_offset"] >= lookup.start)


@dataclass(frozen=True)
class _Footer:
    """Of a Parquet file, and the bounds of its row groups."""

    metadata: pq.FileMetaData
    bounds: _Bounds

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> _Footer:
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        wanted = {name: places[name] for name in ("kind", *_NUMBERS)}
        groups: list[dict[str, Any]] = []
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            bounds: dict[str, Any] = {}
            for name, place in wanted.items():
                known = group.column(place).statistics
                if known is not None and known.has_min_max:
                    bounds |= {f"min.{name}": known.min, f"max.{name}": known.max}
            groups.append(bounds)
        return cls(metadata, _Bounds.of(groups))
