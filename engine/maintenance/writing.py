"""Write the file that a merge puts in the place of others."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.commits import GROUP_ROWS, NewFile, StoredFile, compute_statistics
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.object_stores.files import Files


def write_merged_file(
    files: Files, leftovers: Leftovers, spec: TableSpec, rows: pa.Table, replaced: Sequence[StoredFile]
) -> tuple[NewFile, ...]:
    """Write the rows as one file; none if there are no rows. First announce the files that will be unneeded."""
    return write_merged_pieces(files, leftovers, spec, [rows], replaced)


def write_merged_pieces(
    files: Files, leftovers: Leftovers, spec: TableSpec, pieces: Iterable[pa.Table], replaced: Sequence[StoredFile]
) -> tuple[NewFile, ...]:
    """Write rows as one file, like `write_merged_file`, and hold one piece at a time.

    pieces: in the order of the table, so that the rows are sorted once each piece is.
    """
    path = f"merged-{uuid.uuid4().hex}.parquet"
    leftovers.announce(spec.name, [path, *(file.path for file in replaced)])
    filled = (_sort_rows(spec, rows) for rows in pieces if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return ()
    name, statistics = f"{spec.name}/{path}", list[dict[str, Any]]()
    with (
        files.open_output(name) as sink,
        pq.ParquetWriter(sink, first.schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for rows in chain([first], filled):
            writer.write_table(rows, row_group_size=GROUP_ROWS)
            statistics.append(compute_statistics(rows))
    size, written_ms = files.size(name), files.modified_ms(name)
    return (NewFile(path, size or 0, written_ms or 0, join_statistics(statistics)),)


def _sort_rows(spec: TableSpec, rows: pa.Table) -> pa.Table:
    return rows.sort_by([(key, "ascending") for key in spec.sort_by]) if spec.sort_by else rows


def join_statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of a file from those of its parts. A column needs bounds in all of them."""
    names = [name for name in parts[0]["minValues"] if all(name in part["minValues"] for part in parts)]
    return {
        "numRecords": sum(part["numRecords"] for part in parts),
        "minValues": {name: min(part["minValues"][name] for part in parts) for name in names},
        "maxValues": {name: max(part["maxValues"][name] for part in parts) for name in names},
        "nullCount": {name: sum(part["nullCount"][name] for part in parts) for name in names},
    }
