"""Find messages in files of `final_messages`: these have the messages of a topic by partition and offset.

A file has exactly the committed messages of its ranges. So the place of a message follows from the number of committed
messages before it in its range, and no file is opened to plan a fetch. What cannot be counted is read from the file
that was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.values.segments import cut_segments
from .lookup import Numbers, OffsetRange

Mask = npt.NDArray[np.bool_]


class _Pieces(NamedTuple):
    """Parts of segments, each within one final range or outside of all.

    Attributes:
        segment: index of its segment.
        skipped: messages of the segment before it.
        length: its messages.
        final: index of the final range from which it is read; -1: it is read from the file that was published.
        nth: messages before it in the final range.
    """

    segment: Numbers
    skipped: Numbers
    length: Numbers
    final: Numbers
    nth: Numbers


def widen_ranges(ranges: Sequence[OffsetRange], finals: pa.Table) -> list[OffsetRange]:
    """Return ranges that have all offsets of each final range in which messages must be counted."""
    widened = {range_.partition: range_ for range_ in ranges}
    gapped = finals.filter(pa.array(~_mask_dense(finals)))
    columns = (gapped.column(name).to_pylist() for name in ("partition", "base_offset", "last_offset"))
    for partition, base, last in zip(*columns, strict=True):
        range_ = widened[partition]
        widened[partition] = replace(range_, start=min(range_.start, base), end=max(range_.end, last + 1))
    return list(widened.values())


def move_to_final_files(segments: pa.Table, finals: pa.Table) -> pa.Table:
    """Return the segments, cut and with the places of their messages in final files, where these are known.

    In each partition the offsets that are read from final files follow one another. Dead letters stay where they are,
    because `segments` has their causes.

    Args:
        segments: of committed messages (PLAN_SCHEMA), by partition and offset: all of the ranges of `widen_ranges`.
        finals: rows that name files, by partition and offset.
    """
    partitions = segments.column("partition").to_numpy()
    pieces = [
        _cut_partition(segments, np.flatnonzero(partitions == partition), finals, partition)
        for partition in np.unique(partitions).tolist()
    ]
    if not pieces:
        return segments
    every = _Pieces(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    result = cut_segments(segments.take(pa.array(every.segment)), every.skipped, every.length)
    is_moved, final = pa.array(every.final >= 0), pa.array(every.final, mask=every.final < 0)
    places = {name: finals.column(name).take(final) for name in ("file_id", "footer_hash", "first_row")}
    places["first_row"] = pc.add(places["first_row"], pa.array(every.nth))
    places["file_partition"] = finals.column("partition").take(final)
    for name, column in places.items():
        moved = pc.if_else(is_moved, column, result.column(name))
        result = result.set_column(result.schema.get_field_index(name), name, moved)
    return result


def _mask_dense(finals: pa.Table) -> Mask:
    """Return which ranges have a message at each offset."""
    base, last, count = (finals.column(name).to_numpy() for name in ("base_offset", "last_offset", "record_count"))
    mask: Mask = last - base + 1 == count
    return mask


def _cut_partition(segments: pa.Table, indices: Numbers, finals: pa.Table, partition: int) -> _Pieces:
    """Return the pieces of the segments of a partition. indices: of these segments."""
    final_indices = np.flatnonzero(finals.column("partition").to_numpy() == partition)
    bases, ends, counts = (
        finals.column(name).to_numpy()[final_indices] for name in ("base_offset", "last_offset", "record_count")
    )
    ends = ends + 1
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
    # A final range is used if the place of each message is known: it has no gap, or all its messages were looked up.
    before, total = _count_messages(final, length, len(final_indices))
    is_dense = _mask_dense(finals)[final_indices]
    is_dead = segments.column("dead_letter").is_valid().to_numpy()[indices][index]
    has_dead = np.bincount(final[is_dead & (final >= 0)], minlength=len(final_indices)) > 0
    is_used = _select_last_stretch((is_dense | (total == counts)) & ~has_dead)
    final = np.where((final >= 0) & np.append(is_used, False)[final], final, -1)
    place = np.where(np.append(is_dense, False)[final], piece_begin - np.append(bases, 0)[final], before)
    return _Pieces(indices[index], piece_begin - begin[index], length, np.append(final_indices, -1)[final], place)


def _count_messages(final: Numbers, length: Numbers, final_count: int) -> tuple[Numbers, Numbers]:
    """Return for each piece the messages before it in its final range, and the messages of each final range."""
    is_inside = final >= 0
    before = np.cumsum(np.where(is_inside, length, 0)) - length
    total, first = np.zeros(final_count, np.int64), np.full(final_count + 1, np.iinfo(np.int64).max)
    np.add.at(total, final[is_inside], length[is_inside])
    np.minimum.at(first, final[is_inside], before[is_inside])
    return before - first[final], total


def _select_last_stretch(usable: Mask) -> Mask:
    """Return the mask of the last usable ranges that follow one another: Spark reads one range per partition."""
    changes = np.cumsum(np.diff(usable[::-1], prepend=False))[::-1]  # up to the end: usable or not
    mask: Mask = changes == 1
    return mask
