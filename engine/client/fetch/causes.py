"""Why messages are dead letters, as headers of theirs: after those that they have, in this order, as text in UTF-8."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS

from ...protocol.values.dead_letters import Cause, cause_of

Numbers = npt.NDArray[np.int64]

PREFIX = "dead-letter."
OFFSET = f"{PREFIX}offset"
"""Comes last: it is another one for each message."""

_FIELDS = {f"{PREFIX}{name.replace('_', '-')}": name for name in Cause.__struct_fields__}


def cause_headers(segments: pa.Table) -> pa.Array:
    """Per segment the headers of its messages but for OFFSET; null of those that are no dead letters."""
    found = [None if text is None else _headers(text) for text in segments.column("dead_letter").to_pylist()]
    return pa.array(found, HEADERS)


def _headers(text: str) -> list[tuple[str, bytes]]:
    cause = cause_of(text)
    return [(key, str(getattr(cause, name)).encode()) for key, name in _FIELDS.items()]


def whose_are(segments: pa.Table) -> Numbers:
    """Of each message of these segments, in order, the number of its segment."""
    return np.repeat(np.arange(segments.num_rows), segments.column("record_count").to_numpy())


def source_offsets(segments: pa.Table, whose: Numbers) -> pa.ChunkedArray:
    """Of each message where it was before it was a dead letter; null of what is none. whose: as `whose_are` tells."""
    nth = np.arange(len(whose)) - np.searchsorted(whose, whose)
    return pc.add(segments.column("source_offset").take(pa.array(whose)), pa.array(nth))


def with_causes(headers: pa.ChunkedArray, segments: pa.Table) -> pa.ChunkedArray:
    """headers: of all messages of these segments, in order."""
    if segments.column("dead_letter").null_count == segments.num_rows:
        return headers
    whose = whose_are(segments)
    causes = cause_headers(segments).take(pa.array(whose))
    added = [causes, _offset_headers(source_offsets(segments, whose).combine_chunks())]
    parts = [headers.combine_chunks(), *added]
    lengths = [pc.fill_null(pc.list_value_length(part), 0).to_numpy() for part in parts]
    ends = np.cumsum(np.sum(lengths, axis=0))
    # the headers of all parts, one part after the other, taken message by message
    begins = np.cumsum([0, *(int(one.sum()) for one in lengths)])[:-1]
    within = [begin + np.cumsum(one) - one for begin, one in zip(begins, lengths, strict=True)]
    firsts = np.stack(within, axis=1).ravel()
    sizes = np.stack(lengths, axis=1).ravel()
    order = np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    flat = pa.concat_arrays([pc.list_flatten(part) for part in parts]).take(pa.array(order))
    is_null = pc.and_(pc.is_null(parts[0]), pc.is_null(causes)).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    result = pa.ListArray.from_arrays(bounds, flat, type=HEADERS, mask=pa.array(is_null))
    return pa.chunked_array([result])


def _offset_headers(offsets: pa.Int64Array) -> pa.Array:
    """Of each one header; none where it is null."""
    is_there = pc.is_valid(offsets)
    values = offsets.drop_null().cast(pa.string()).cast(pa.binary())
    keys = pa.repeat(pa.scalar(OFFSET, HEADERS.value_type.field("key").type), len(values))
    flat = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    ends = np.cumsum(is_there.to_numpy(zero_copy_only=False))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]).astype(np.int32)), flat, type=HEADERS)
