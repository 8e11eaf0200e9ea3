"""Headers that say why a message is a dead letter. They follow the message's own headers, as text in UTF-8."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS

from ....protocol.values.queues.dead_letters import Cause, decode_cause
from .rows import segment_index_per_row

Numbers = npt.NDArray[np.int64]

PREFIX = "dead-letter."
OFFSET = f"{PREFIX}offset"
"""The last of the headers. It differs from message to message; the others are the same for a whole segment."""

_FIELDS = {f"{PREFIX}{name.replace('_', '-')}": name for name in Cause.__struct_fields__}


def build_cause_headers(segments: pa.Table) -> pa.Array:
    """Return the headers of each segment except OFFSET; null for segments without dead letters."""
    texts = segments.column("dead_letter").to_pylist()
    return pa.array([None if text is None else _build_headers(text) for text in texts], HEADERS)


def _build_headers(text: str) -> list[tuple[str, bytes]]:
    cause = decode_cause(text)
    return [(key, str(getattr(cause, name)).encode()) for key, name in _FIELDS.items()]


def compute_source_offsets(segments: pa.Table, segment_indices: Numbers) -> pa.ChunkedArray:
    """Return each message's offset in its source topic; null for messages that are not dead letters.

    Args:
        segments: columns `source_offset` and `record_count`.
        segment_indices: as `segment_index_per_row` returns them.
    """
    index_in_segment = np.arange(len(segment_indices)) - np.searchsorted(segment_indices, segment_indices)
    return pc.add(segments.column("source_offset").take(pa.array(segment_indices)), pa.array(index_in_segment))


def append_cause_headers(headers: pa.ChunkedArray, segments: pa.Table) -> pa.ChunkedArray:
    """Return the headers of all messages of the segments, with those of dead letters appended.

    Args:
        headers: the messages' own headers, in the order of the segments.
        segments: columns `dead_letter`, `source_offset` and `record_count`.
    """
    segment_indices = segment_index_per_row(segments)
    causes = build_cause_headers(segments).take(pa.array(segment_indices))
    offsets = _build_offset_headers(compute_source_offsets(segments, segment_indices).combine_chunks())
    parts = [headers.combine_chunks(), causes, offsets]
    # Each of the three parts is a list array with a list per message. Concatenate their flat values, part after part,
    # and then take them in the order of messages: for each message its own headers, its causes and its offset.
    lengths = [pc.fill_null(pc.list_value_length(part), 0).to_numpy() for part in parts]
    part_begins = np.cumsum([0, *(int(of_part.sum()) for of_part in lengths)])[:-1]
    list_begins = [begin + np.cumsum(of_part) - of_part for begin, of_part in zip(part_begins, lengths, strict=True)]
    begins = np.stack(list_begins, axis=1).ravel()
    sizes = np.stack(lengths, axis=1).ravel()
    order = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    values = pa.concat_arrays([pc.list_flatten(part) for part in parts]).take(pa.array(order))
    is_null = pc.and_(pc.is_null(parts[0]), pc.is_null(causes)).to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(np.sum(lengths, axis=0))])
    result = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=HEADERS, mask=pa.array(is_null))
    return pa.chunked_array([result])


def _build_offset_headers(offsets: pa.Int64Array) -> pa.Array:
    """Return a list with one header per offset; an empty list where the offset is null."""
    is_valid = pc.is_valid(offsets)
    values = offsets.drop_null().cast(pa.string()).cast(pa.binary())
    keys = pa.repeat(pa.scalar(OFFSET, HEADERS.value_type.field("key").type), len(values))
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    bounds = np.concatenate([[0], np.cumsum(is_valid.to_numpy(zero_copy_only=False))])
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pairs, type=HEADERS)
