"""Read the rows of a plan, once per file for all its ranges: from the newest steps if they have them, else the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.object_stores.files import Files

from ....namespace.data_file_reader import open_data_file
from ....protocol.errors import FileTruncated
from ..planning.fetch_plan import FetchPlan
from .row_group_cache import RowGroupCache

if TYPE_CHECKING:
    from ..lookup.tail import StepRows

_SHOWN = ["key", "value", "timestamp", "headers"]
_TTL = "ttl_ms"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RangeRows:
    """Rows that were read, and where in them some ranges of the plan begin.

    Attributes:
        rows: key, value, timestamp, headers; also ttl_ms if messages of the plan may have expired.
        ranges: indices of the ranges in the plan.
        begin: for each of these ranges, the index in `rows` of its first row.
    """

    rows: pa.Table
    ranges: Numbers
    begin: Numbers


@dataclass(frozen=True)
class _FileRanges:
    """Ranges of a plan in one file, by their indices in the plan, and the file rows from first to end (exclusive)."""

    file_id: int
    indices: Numbers
    first_rows: Numbers
    ends: Numbers

    def select(self, mask: npt.NDArray[np.bool_]) -> _FileRanges:
        return _FileRanges(self.file_id, self.indices[mask], self.first_rows[mask], self.ends[mask])


def read_sources(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> Iterator[RangeRows]:
    """Read all ranges of the plan, and yield sources that have each range once.

    Args:
        files: the data files.
        plan: what to read.
        cache: row groups are looked for here first, and added.

    Raises:
        FileTruncated: rows are not there as they were written.
    """
    # With a cache the time to live is always read, because a later read of the row group may ask for it.
    columns = [*_SHOWN, _TTL] if cache is not None or plan.expirable.num_rows else _SHOWN
    for ranges in _group_by_file(plan):
        parts = plan.step_rows.get(ranges.file_id, ())
        in_steps = _are_in_steps(parts, ranges)
        if in_steps.any():
            yield _take_from_steps(parts, ranges.select(in_steps), columns)
        if not in_steps.all():
            in_file = ranges.select(~in_steps)
            footer_hash = plan.segments.column("footer_hash")[int(in_file.indices[0])].as_py()
            try:
                rows = _read_from_file(files, footer_hash, in_file, columns, cache)
            except FileTruncated as error:
                raise FileTruncated(
                    f"Messages of topic {plan.topic} cannot be read. {error.detail} `lakemq doctor` names all such"
                    " files, and how to go on.",
                    found=error.found,
                    expected=error.expected,
                ) from error
            yield rows


def _group_by_file(plan: FetchPlan) -> Iterator[_FileRanges]:
    file_ids = plan.segments.column("file_id").to_numpy()
    first_rows = plan.segments.column("first_row").to_numpy()
    ends = first_rows + plan.segments.column("record_count").to_numpy()
    order = np.argsort(file_ids, kind="stable")
    for indices in np.split(order, np.flatnonzero(np.diff(file_ids[order])) + 1) if len(order) else ():
        yield _FileRanges(int(file_ids[indices[0]]), indices, first_rows[indices], ends[indices])


def _are_in_steps(parts: Sequence[StepRows], ranges: _FileRanges) -> npt.NDArray[np.bool_]:
    """Return a mask of the ranges that lie in parts which follow one another without a gap."""
    if not parts:
        return np.zeros(len(ranges.first_rows), np.bool_)
    begins = np.array([part.first_row for part in parts])
    ends = np.array([part.first_row + part.record_count for part in parts])
    # Parts without a gap form a stretch. Compute for each part the end of its stretch.
    is_last_of_stretch = np.append(begins[1:] != ends[:-1], True)
    stretch_ends = ends[is_last_of_stretch][np.cumsum(is_last_of_stretch) - is_last_of_stretch]
    index = np.searchsorted(begins, ranges.first_rows, side="right") - 1
    return (index >= 0) & (ranges.first_rows < ends[index]) & (ranges.ends <= stretch_ends[index])


def count_up_per_row(segments: pa.Table, first: Numbers) -> Numbers:
    """Return a number per message of the segments: the segment's `first`, then one more for each next message."""
    counts = segments.column("record_count").to_numpy()
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def segment_index_per_row(segments: pa.Table) -> Numbers:
    """Return the index of its segment for each message of the segments, in order."""
    return np.repeat(np.arange(segments.num_rows), segments.column("record_count").to_numpy())


def _take_from_steps(parts: Sequence[StepRows], ranges: _FileRanges, columns: list[str]) -> RangeRows:
    part_begins = np.array([part.first_row for part in parts])
    table_begins = np.cumsum([0, *(part.record_count for part in parts)])
    rows = pa.concat_tables([part.rows.select(columns) for part in parts])
    if rows.num_rows != table_begins[-1]:
        raise _misplaced_error(ranges.file_id)
    part = np.searchsorted(part_begins, ranges.first_rows, side="right") - 1
    return RangeRows(rows, ranges.indices, table_begins[part] + ranges.first_rows - part_begins[part])


def _read_from_file(
    files: Files, footer_hash: int | None, ranges: _FileRanges, columns: list[str], cache: RowGroupCache | None
) -> RangeRows:
    """Read the row groups that have rows of the ranges, from the cache if all are there, else from the file."""
    file_id = ranges.file_id
    groups: dict[int, pa.Table] = {}
    if cache is not None and (cached_starts := cache.row_group_starts(file_id)) is not None:
        starts = np.array(cached_starts)
        needed = _find_row_groups(starts, ranges)
        groups = {group: rows for group in needed if (rows := cache.get(file_id, group)) is not None}
        if len(groups) == len(needed):
            table = pa.concat_tables([groups[group] for group in needed])
            return _locate(table, starts, needed, ranges)
    with open_data_file(files, file_id, footer_hash) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        starts = np.cumsum([0, *counts])
        needed = _find_row_groups(starts, ranges)
        if cache is None:
            table = file.read_row_groups(needed, columns=["row", *columns])
        else:
            # Read the groups one by one. A slice of a table of several would keep all of them in memory.
            for group in needed:
                if group not in groups:
                    groups[group] = file.read_row_group(group, columns=["row", *columns])
                    cache.put(file_id, tuple(starts.tolist()), group, groups[group])
            table = pa.concat_tables([groups[group] for group in needed])
    return _locate(table, starts, needed, ranges)


def _find_row_groups(starts: Numbers, ranges: _FileRanges) -> list[int]:
    """Return the row groups that have rows of the ranges. starts: of the row groups, and the end of the last."""
    if ranges.ends.max() > starts[-1]:
        raise _misplaced_error(ranges.file_id)
    first_group = np.searchsorted(starts, ranges.first_rows, side="right") - 1
    last_group = np.searchsorted(starts, ranges.ends, side="left") - 1
    # Add 1 where a range begins and subtract 1 behind its last group: the running sum counts ranges per group.
    changes = np.zeros(len(starts), np.int64)
    np.add.at(changes, first_group, 1)
    np.add.at(changes, last_group + 1, -1)
    needed: list[int] = np.flatnonzero(np.cumsum(changes)[:-1] > 0).tolist()
    return needed


def _locate(table: pa.Table, starts: Numbers, needed: list[int], ranges: _FileRanges) -> RangeRows:
    """Return the source of the ranges. table: the needed row groups, one after the other."""
    counts = np.zeros(len(starts) - 1, np.int64)
    counts[needed] = np.diff(starts)[needed]
    table_begins = np.cumsum(counts) - counts
    group = np.searchsorted(starts, ranges.first_rows, side="right") - 1
    begin = table_begins[group] + ranges.first_rows - starts[group]
    _check_row_numbers(table.column("row").to_numpy(), begin, ranges)
    return RangeRows(table.drop_columns("row"), ranges.indices, begin)


def _check_row_numbers(row_numbers: Numbers, begin: Numbers, ranges: _FileRanges) -> None:
    """Raise FileTruncated unless the first and the last row of each range have the numbers that they should have."""
    last = begin + (ranges.ends - ranges.first_rows) - 1
    if (
        last.max() >= len(row_numbers)
        or (row_numbers[begin] != ranges.first_rows).any()
        or (row_numbers[last] != ranges.ends - 1).any()
    ):
        raise _misplaced_error(ranges.file_id)


def _misplaced_error(file_id: int) -> FileTruncated:
    return FileTruncated(f"Data file {file_stem(file_id)} is damaged: its rows are not where they were.")
