"""Where the rows of ranges are, read at once for all ranges of a file: from the journal's tail, or from the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.files import Files

from ...protocol.errors import FileTruncated
from .fetch_plan import FetchPlan
from .files import data_file
from .kept import KeptRows

if TYPE_CHECKING:
    from .held import HeldPart

_SHOWN = ["key", "value", "timestamp", "headers"]
_TTL = "ttl_ms"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Rows that were read, and for some ranges of the plan, by their index in it, where in `rows` they begin.

    rows: key, value, timestamp, headers, and, where some may have expired, ttl_ms.
    """

    rows: pa.Table
    ranges: Numbers
    begin: Numbers


def sources(files: Files, plan: FetchPlan, kept: KeptRows | None = None) -> Iterator[Source]:
    """All ranges of the plan, each in one source. Raises FileTruncated: rows are not there as they were written.

    kept: where row groups are looked for first, and put.
    """
    # who comes back for the rest of a row group may ask of others whether they have expired
    columns = [*_SHOWN, _TTL] if kept is not None or plan.expirable.num_rows else _SHOWN
    file_ids = plan.segments.column("file_id").to_numpy()
    first_rows = plan.segments.column("first_row").to_numpy()
    ends = first_rows + plan.segments.column("record_count").to_numpy()
    order = np.argsort(file_ids, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(file_ids[order])) + 1) if len(order) else ():
        file_id = int(file_ids[mine[0]])
        parts = plan.held.get(file_id, ())
        is_held = _are_held(parts, first_rows[mine], ends[mine])
        if is_held.any():
            yield _held(file_id, parts, mine[is_held], first_rows, columns)
        if not is_held.all():
            in_file = mine[~is_held]
            footer_hash = plan.segments.column("footer_hash")[int(in_file[0])].as_py()
            yield _read(files, file_id, footer_hash, in_file, first_rows, ends, columns, kept)


def _are_held(parts: Sequence[HeldPart], first_rows: Numbers, ends: Numbers) -> npt.NDArray[np.bool_]:
    """Which ranges lie in parts that follow one another without a gap."""
    if not parts:
        return np.zeros(len(first_rows), np.bool_)
    begins = np.array([part.first_row for part in parts])
    lasts = np.array([part.first_row + part.record_count for part in parts])
    # of each part, where the stretch ends that it belongs to
    is_last = np.append(begins[1:] != lasts[:-1], True)
    stretch_ends = lasts[is_last][np.cumsum(is_last) - is_last]
    at = np.searchsorted(begins, first_rows, side="right") - 1
    return (at >= 0) & (first_rows < lasts[at]) & (ends <= stretch_ends[at])


def running(segments: pa.Table, first: Numbers) -> Numbers:
    """Numbers that begin with each segment's `first` and go up by one with each of its messages."""
    counts = segments.column("record_count").to_numpy()
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _held(file_id: int, parts: Sequence[HeldPart], ranges: Numbers, first_rows: Numbers, columns: list[str]) -> Source:
    begins = np.array([part.first_row for part in parts])
    shift = np.cumsum([0, *(part.record_count for part in parts)])
    at = np.searchsorted(begins, first_rows[ranges], side="right") - 1
    rows = pa.concat_tables([part.rows.select(columns) for part in parts])
    if rows.num_rows != shift[-1]:
        raise _misplaced(file_id)
    return Source(rows, ranges, shift[at] + first_rows[ranges] - begins[at])


def _read(
    files: Files,
    file_id: int,
    footer_hash: int | None,
    ranges: Numbers,
    first_rows: Numbers,
    ends: Numbers,
    columns: list[str],
    kept: KeptRows | None,
) -> Source:
    """Only row groups that hold some of the rows are read."""
    if kept is not None and (known := kept.starts(file_id)) is not None:
        starts = np.array(known)
        needed = _needed(file_id, starts, first_rows[ranges], ends[ranges])
        groups = {group: rows for group in needed if (rows := kept.get(file_id, group)) is not None}
        if len(groups) == len(needed):
            table = pa.concat_tables([groups[group] for group in needed])
            return _source(file_id, table, starts, needed, ranges, first_rows, ends)
    else:
        groups = {}
    with data_file(files, file_id, footer_hash) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        starts = np.cumsum([0, *counts])
        needed = _needed(file_id, starts, first_rows[ranges], ends[ranges])
        if kept is None:
            table = file.read_row_groups(needed, columns=["row", *columns])
        else:  # one by one: of a table that is cut all of it stays in memory
            for group in needed:
                if group not in groups:
                    groups[group] = file.read_row_group(group, columns=["row", *columns])
                    kept.put(file_id, tuple(starts.tolist()), group, groups[group])
            table = pa.concat_tables([groups[group] for group in needed])
    return _source(file_id, table, starts, needed, ranges, first_rows, ends)


def _needed(file_id: int, starts: Numbers, first_rows: Numbers, ends: Numbers) -> list[int]:
    """The row groups that hold some of the ranges."""
    if ends.max() > starts[-1]:
        raise _misplaced(file_id)
    group = np.searchsorted(starts, first_rows, side="right") - 1
    last = np.searchsorted(starts, ends, side="left") - 1
    # of each row group, how many ranges have begun by then and not ended before
    cover = np.zeros(len(starts), np.int64)
    np.add.at(cover, group, 1)
    np.add.at(cover, last + 1, -1)
    needed: list[int] = np.flatnonzero(np.cumsum(cover)[:-1] > 0).tolist()
    return needed


def _source(
    file_id: int,
    table: pa.Table,
    starts: Numbers,
    needed: list[int],
    ranges: Numbers,
    first_rows: Numbers,
    ends: Numbers,
) -> Source:
    """table: the row groups that are needed, one after the other."""
    counts = np.zeros(len(starts) - 1, np.int64)
    counts[needed] = np.diff(starts)[needed]
    shift = np.cumsum(counts) - counts
    group = np.searchsorted(starts, first_rows[ranges], side="right") - 1
    begin = shift[group] + first_rows[ranges] - starts[group]
    _check_rows(file_id, table.column("row").to_numpy(), begin, first_rows[ranges], ends[ranges])
    return Source(table.drop_columns("row"), ranges, begin)


def _check_rows(file_id: int, numbers: Numbers, begin: Numbers, first_rows: Numbers, ends: Numbers) -> None:
    last = begin + (ends - first_rows) - 1
    if last.max() >= len(numbers) or (numbers[begin] != first_rows).any() or (numbers[last] != ends - 1).any():
        raise _misplaced(file_id)


def _misplaced(file_id: int) -> FileTruncated:
    return FileTruncated(f"Data file {file_stem(file_id)} is damaged: its rows are not where they were.")
