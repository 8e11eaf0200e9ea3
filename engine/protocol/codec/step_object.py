"""A step as one object: a msgpack array of its head, its entries and the message rows that travel in it.

The head comes first, and decodes without the rest: a standby reads who leads without reading the decisions. The last
element is a checksum of all bytes before it. Rows of docs/architecture.md: publish 10.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa

from ..values.journal import JournalEntry, Step
from ..values.segments import NO_SEGMENTS, Segments
from .journal import check_format, decode_record, encode_record
from .letter import CHECKSUM_BYTES, check_plain, compute_checksum, verify_checksum


class StepHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a step object.

    Attributes:
        format_version: of the whole object.
        namespace_id: Delta's id of the journal; empty for step 0, which is put before there is one.
        nonce: unique to this object, so that its writer recognises it.
        step: its number. Numbers are consecutive.
        decided_at_ms: the sequencer's time, which never goes back.
        leader, leader_epoch, lease_ms: who leads after this step, and for how long after it.
    """

    format_version: int
    namespace_id: str
    nonce: str
    step: int
    decided_at_ms: int
    leader: str
    leader_epoch: int
    lease_ms: int


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a step: the record as JSON, and the columns of its segments, unless they are in the batch.

    segment_count: how many segments of the batch are this entry's, after those of the entries before it.
    """

    record: str
    request_id: str | None
    segments: list[list[Any]] | None
    segment_count: int


class _StepParts(msgspec.Struct, frozen=True, array_like=True):
    """The whole object, in this order.

    batch: the segments of all entries as an Arrow stream.
    rows: as in Step.
    checksum: XXH3 in 64 bits.
    """

    head: msgspec.Raw
    entries: list[_Entry]
    batch: bytes | None
    rows: bytes | None
    checksum: int


class _HeadOnly(msgspec.Struct, frozen=True, array_like=True):
    head: StepHead


_NO_CHECKSUM_YET = msgspec.Raw(b"\xcf" + bytes(CHECKSUM_BYTES))
"""An unsigned number of 64 bits in msgpack, whose place the checksum takes."""

_encoder = msgspec.msgpack.Encoder()
_bodies = msgspec.msgpack.Decoder(_StepParts)
_heads = msgspec.msgpack.Decoder(_HeadOnly)


def encode_step_object(head: StepHead, step: Step) -> bytes:
    """Encode a step, whose number and time the head repeats."""
    # few are faster to write as lists, many as one Arrow batch
    has_batch = step.has_many_segments
    entries = [
        _Entry(
            encode_record(entry.record),
            entry.request_id,
            None if has_batch or not entry.segments else entry.segments.lists(),
            len(entry.segments),
        )
        for entry in step.entries
    ]
    batch = _encode_batch(step.segments) if has_batch else None
    return add_checksum(_encoder.encode((head, entries, batch, step.rows, _NO_CHECKSUM_YET)))


def add_checksum(body: bytes) -> bytes:
    """Return the object with the checksum of all other bytes in its last eight."""
    content = memoryview(body)[:-CHECKSUM_BYTES]
    return b"".join((content, compute_checksum(content)))


def _encode_batch(segments: pa.Table) -> bytes:
    table, sink = segments.combine_chunks(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_head(body: bytes) -> StepHead:
    """Decode only the head of a step object. Raises NewerFormat; ValueError if it is older, or no step object."""
    head = _heads.decode(body).head
    check_format(head.format_version, "step")
    return head


def decode_step_object(body: bytes) -> tuple[StepHead, Step]:
    """Decode a step object. Raises NewerFormat; ValueError if it is no step object, or its bytes were changed."""
    head, whole = decode_head(body), _bodies.decode(body)
    verify_checksum(body[-CHECKSUM_BYTES:], memoryview(body)[:-CHECKSUM_BYTES])
    entries = [
        JournalEntry(decode_record(entry.record), segments, entry.request_id)
        for entry, segments in zip(whole.entries, _decode_segments(whole), strict=True)
    ]
    return head, Step(head.step, head.decided_at_ms, head.leader_epoch, entries, whole.rows)


def _decode_segments(whole: _StepParts) -> list[Segments]:
    """Return the segments of each entry: lists, or slices of one batch without copying."""
    if whole.batch is None:
        return [NO_SEGMENTS if entry.segments is None else Segments(entry.segments) for entry in whole.entries]
    for message in pa.ipc.MessageReader.open_stream(whole.batch):
        check_plain(message)
    with pa.ipc.open_stream(whole.batch) as reader:
        batches = reader.read_all().combine_chunks().to_batches()
    counts = [entry.segment_count for entry in whole.entries]
    starts = accumulate(counts[:-1], initial=0)
    return [
        Segments(batches[0].slice(start, count)) if count else NO_SEGMENTS
        for start, count in zip(starts, counts, strict=True)
    ]
