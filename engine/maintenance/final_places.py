"""Find the places of messages in files of `final_messages`: these have the messages of a topic by partition and offset.

A file has exactly the committed messages of its ranges. So the place of a message follows from the number of committed
messages before it in its range, and no file is opened.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.topics import COMPACTED

from ..protocol.values.segments import cut_segments

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_OF_COMPACTED = ("step", "topic_id", "topic", "partition", "base_offset", "record_count", "last_offset")
"""Columns of a compacted segment. Its messages have gone, and so have the facts about them."""


class MovedSegments(NamedTuple):
    """Segments with places in final files.

    Attributes:
        segments: cut where a final range begins or ends.
        is_moved: which of them are in a final file now.
        is_whole: which final ranges have all their messages in `segments`. Only these are used.
    """

    segments: pa.Table
    is_moved: Mask
    is_whole: Mask


def cut_out_runs(segments: pa.Table, runs: pa.Table) -> tuple[pa.Table, pa.Table] | None:
    """Return the segments of a topic without the offsets of these runs, and segments of the kind COMPACTED for them.

    Args:
        segments: rows of `segments` of committed messages, by partition and offset, disjoint.
        runs: columns partition, base_offset, last_offset, and record_count, which counts messages. Sorted and disjoint.

    Returns:
        None if a run has not as many messages in the segments.
    """
    if not runs.num_rows:
        return segments, segments.slice(0, 0)
    nowhere = {name: pa.nulls(runs.num_rows, pa.int64()) for name in ("file_id", "footer_hash", "first_row")}
    result = move_to_final_files(segments, pa.table({name: runs.column(name) for name in runs.column_names} | nowhere))
    if not result.is_whole.all():
        return None
    within = result.segments.filter(pa.array(result.is_moved))
    columns = {field.name: pa.nulls(within.num_rows, field.type) for field in within.schema}
    columns |= {name: within.column(name) for name in _OF_COMPACTED}
    for name, value in (("kind", COMPACTED), ("transactional", False), ("origin", "publish")):
        columns[name] = pa.array([value] * within.num_rows, within.schema.field(name).type)
    compacted = pa.table(list(columns.values()), schema=within.schema)
    return result.segments.filter(pa.array(~result.is_moved)), compacted


class _Pieces(NamedTuple):
    """Parts of segments, each within one final range or outside of all.

    Attributes:
        segment: index of its segment.
        skipped: messages of the segment before it.
        length: its messages.
        final: index of its final range; -1: it is in none that is whole.
        nth: messages before it in the final range.
    """

    segment: Numbers
    skipped: Numbers
    length: Numbers
    final: Numbers
    nth: Numbers


def move_to_final_files(segments: pa.Table, finals: pa.Table) -> MovedSegments:
    """Return the segments of a topic, cut and with the places of their messages in final files.

    Args:
        segments: of committed messages, by partition and offset, disjoint.
        finals: ranges of a final file each, by partition and offset, disjoint.
    """
    partitions, final_partitions = (rows.column("partition").to_numpy() for rows in (segments, finals))
    is_whole, pieces = np.zeros(finals.num_rows, np.bool_), []
    for partition in np.unique(np.concatenate([partitions, final_partitions])).tolist():
        ranges = np.flatnonzero(final_partitions == partition)
        cut, is_whole[ranges] = _cut_partition(segments, np.flatnonzero(partitions == partition), finals, ranges)
        pieces.append(cut)
    if not pieces:
        return MovedSegments(segments, np.zeros(0, np.bool_), is_whole)
    every = _Pieces(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    result = cut_segments(segments.take(pa.array(every.segment)), every.skipped, every.length)
    is_moved: Mask = every.final >= 0
    final = pa.array(every.final, mask=~is_moved)
    places = {name: finals.column(name).take(final) for name in ("file_id", "footer_hash", "first_row")}
    places["first_row"] = pc.add(places["first_row"], pa.array(every.nth))
    places["file_partition"] = finals.column("partition").take(final)
    for name, column in places.items():
        moved = pc.if_else(pa.array(is_moved), column, result.column(name))
        result = result.set_column(result.schema.get_field_index(name), name, moved)
    return MovedSegments(result, is_moved, is_whole)


def _cut_partition(segments: pa.Table, indices: Numbers, finals: pa.Table, ranges: Numbers) -> tuple[_Pieces, Mask]:
    """Return the pieces of the segments of a partition, and which of its final ranges are whole.

    indices, ranges: of its segments, and of its final ranges.
    """
    bases, lasts, counts = (
        finals.column(name).to_numpy()[ranges] for name in ("base_offset", "last_offset", "record_count")
    )
    ends = lasts + 1
    begin = segments.column("base_offset").to_numpy()[indices]
    end = begin + segments.column("record_count").to_numpy()[indices]
    # Cut each segment where a final range begins or ends within it.
    bounds = np.unique(np.concatenate([bases, ends]))
    low = np.searchsorted(bounds, begin, side="right")
    number = np.searchsorted(bounds, end, side="left") - low + 1
    index = np.repeat(np.arange(len(indices)), number)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(number) - number, number)
    inner = np.append(bounds, 0)  # an offset after the last one is looked up, and not used
    piece_begin = np.where(nth == 0, begin[index], inner[low[index] + nth - 1])
    piece_end = np.where(nth == number[index] - 1, end[index], inner[low[index] + nth])
    length = piece_end - piece_begin
    # Find the final range of each piece. -1 stands for none, and is also the index of what is appended below.
    at = np.searchsorted(bases, piece_begin, side="right") - 1
    final = np.where((at >= 0) & (piece_begin < np.append(ends, 0)[at]), at, -1)
    before, total = _count_messages(final, length, len(ranges))
    is_whole: Mask = total == counts
    final = np.where(np.append(is_whole, False)[final], final, -1)
    return _Pieces(indices[index], piece_begin - begin[index], length, np.append(ranges, -1)[final], before), is_whole


def _count_messages(final: Numbers, length: Numbers, final_count: int) -> tuple[Numbers, Numbers]:
    """Return for each piece the messages before it in its final range, and the messages of each final range."""
    is_inside = final >= 0
    before = np.cumsum(np.where(is_inside, length, 0)) - length
    total, first = np.zeros(final_count, np.int64), np.full(final_count + 1, np.iinfo(np.int64).max)
    np.add.at(total, final[is_inside], length[is_inside])
    np.minimum.at(first, final[is_inside], before[is_inside])
    return before - first[final], total
