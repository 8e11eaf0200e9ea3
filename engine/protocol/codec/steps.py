"""Steps: as one object in the step log, and as rows of the journal, one row per entry.

A step object is a msgpack array of its head, its entries and the message rows that travel in it. The head comes first,
and decodes without the rest: a standby reads who leads without reading the decisions. The last element is a checksum of
all bytes before it. Rows of the journal have JSON except for the segments, which stay columns. They lack message rows,
which are in their data file before the journal has the step. Rows of docs/architecture.md: publish 10.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.topics import SEGMENT_SCHEMA, SEGMENT_STRUCT

from ..errors import NewerFormat
from ..values.base import Record
from ..values.clients import Answered
from ..values.journal import FORMAT_VERSION, RECORDS, AnyRecord, JournalEntry, Step, StepBatch, batch_steps
from ..values.segments import NO_SEGMENTS, Segments
from .few_rows import MAX_FEW_BYTES, FewRows, Rows, concatenate_rows, decode_few_rows, encode_few_rows, rows_to_table
from .letter import (
    CHECKSUM_BYTES,
    check_answer,
    check_plain,
    compute_checksum,
    decode_rows,
    encode_rows,
    verify_checksum,
)

# The message rows of a step: few ones as msgpack (`few_rows`), others as an Arrow stream (`letter`).
#
# Building and encoding an Arrow table takes longer than deciding a step of one message. Most readers need the rows of
# many steps at once, and build one table for all of them.


_MOST_FEW_ROWS = 100
"""Arrow takes 60 us longer to begin, and 0.6 us less per row."""

_ARROW_START = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow stream. The msgpack of few rows begins with another byte."""


def join_step_rows(parts: Sequence[Rows]) -> Rows | None:
    """Return the rows of a step's letters, one after another, in the form that is encoded faster; None without rows."""
    if sum(part.num_rows for part in parts) > _MOST_FEW_ROWS:
        return rows_to_table(parts)
    return concatenate_rows(parts)


def encode_step_rows(rows: Rows) -> bytes:
    """Encode the rows of a step for `decode_step_rows`."""
    if isinstance(rows, FewRows):
        body = encode_few_rows(rows)
        if len(body) <= MAX_FEW_BYTES:  # readers refuse more
            return body
    return encode_rows(rows_to_table([rows]))


def decode_step_rows(bodies: Iterable[bytes]) -> pa.Table:
    """Return the rows of steps, one after another, as BODY_SCHEMA.

    Raises ValueError, ArrowException or OSError if a body is not the rows of a step.
    """
    return rows_to_table([_decode(body) for body in bodies])


def _decode(body: bytes) -> Rows:
    view = memoryview(body)
    return decode_rows(view) if body.startswith(_ARROW_START) else decode_few_rows(view)


# Records as JSON, which holds integers of any size.


_encoder = msgspec.json.Encoder()
_records: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_ANSWERED = str(Answered.__struct_config__.tag)
_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in RECORDS)


class _RecordTag(msgspec.Struct):
    record: str


_tags = msgspec.json.Decoder(_RecordTag)


def check_format(version: int, holder: str) -> None:
    """Raise NewerFormat or ValueError unless this is the version of steps that this LakeMQ reads. holder: has it."""
    if version > FORMAT_VERSION:
        raise NewerFormat(found=f"{holder} format {version}", expected=f"at most {FORMAT_VERSION}")
    if version < FORMAT_VERSION:
        raise ValueError(f"{holder} format {version} is older than {FORMAT_VERSION}, and no command migrates it")


def encode_record(record: Record) -> str:
    """Encode a record, without its segments."""
    return _encoder.encode(record).decode()


def decode_record(text: str) -> Record:
    """Decode a record. Raises NewerFormat if only a newer version knows its kind; ValueError if it is none."""
    try:
        return _records.decode(text)
    except msgspec.ValidationError:
        kind = _tags.decode(text).record
        if kind == _ANSWERED:
            check_answer(text)
        if kind in _KINDS:
            raise
        raise NewerFormat(found=f"a decision {kind}", expected="one that this version knows") from None


# Steps as rows of the journal, and back.


def encode_steps(steps: Sequence[Step]) -> pa.Table:
    """Return the steps as rows of the journal, in order of step and position."""
    entries = [(step, position, entry) for step in steps for position, entry in enumerate(step.entries)]
    columns: dict[str, list[Any]] = {
        "step": [step.step for step, _, _ in entries],
        "position": [position for _, position, _ in entries],
        "kind": [entry.record.kind for _, _, entry in entries],
        "subject": [entry.record.subject for _, _, entry in entries],
        "decision": [encode_record(entry.record) for _, _, entry in entries],
        "request_id": [entry.request_id for _, _, entry in entries],
        "decided_at_ms": [step.decided_at_ms for step, _, _ in entries],
        "leader_epoch": [step.leader_epoch for step, _, _ in entries],
        "format_version": [FORMAT_VERSION] * len(entries),
    }
    segments = _build_segment_lists(batch_steps(steps))
    schema = JOURNAL.stored_schema
    # pa.table(dictionary) takes three times as long
    arrays = [segments if f.name == "segments" else pa.array(columns[f.name], f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _build_segment_lists(steps: StepBatch) -> pa.Array:
    """Return one list of segment structs per entry, null for entries without segments."""
    counts = np.array(list(chain.from_iterable(steps.segment_counts)), np.int64)
    table = steps.segments.combine_chunks()
    columns = [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in table.columns]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    items = pa.StructArray.from_arrays(columns, fields=list(SEGMENT_SCHEMA))
    return pa.ListArray.from_arrays(offsets, items, mask=pa.array(counts == 0))


def decode_steps(rows: pa.Table) -> list[Step]:
    """Return rows of the journal, in any order, as steps in order. Raises NewerFormat; ValueError for other rows."""
    if rows.num_rows == 0:
        return []
    rows = _sort_rows(JOURNAL.validate(rows))
    for version in rows.column("format_version").unique().to_pylist():
        check_format(version, "journal")
    segments = _decode_segments(rows.column("segments"))
    heads = zip(
        rows.column("step").to_pylist(),
        rows.column("decision").to_pylist(),
        rows.column("request_id").to_pylist(),
        rows.column("decided_at_ms").to_pylist(),
        rows.column("leader_epoch").to_pylist(),
        segments,
        strict=True,
    )
    steps = []
    for step, group in groupby(heads, key=lambda head: head[0]):
        members = list(group)
        entries = [JournalEntry(decode_record(text), part, request) for _, text, request, _, _, part in members]
        steps.append(Step(step, members[0][3], members[0][4], entries))
    return steps


def _sort_rows(rows: pa.Table) -> pa.Table:
    """Return the rows by step and position. Rows of one commit are sorted already; checking is faster than sorting."""
    places = list(zip(rows.column("step").to_pylist(), rows.column("position").to_pylist(), strict=True))
    if all(place < next_place for place, next_place in pairwise(places)):
        return rows
    return rows.sort_by([("step", "ascending"), ("position", "ascending")])


def decode_steps_after(rows: pa.Table, step: int) -> list[Step] | None:
    """Return the steps; None unless they follow `step` without a gap."""
    steps = decode_steps(rows)
    expected = range(step + 1, step + 1 + len(steps))
    return steps if [decoded.step for decoded in steps] == list(expected) else None


def _decode_segments(column: pa.ChunkedArray) -> list[Segments]:
    """Return the segments of each entry, as slices of one buffer without copying rows."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    lists = lists.cast(pa.list_(SEGMENT_STRUCT))
    lengths = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    batch = pa.RecordBatch.from_struct_array(lists.flatten())
    starts = np.cumsum(lengths) - lengths
    return [
        Segments(batch.slice(start, length)) if length else NO_SEGMENTS
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


# Steps as objects.


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

_object_encoder = msgspec.msgpack.Encoder()
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
    return add_checksum(_object_encoder.encode((head, entries, batch, step.rows, _NO_CHECKSUM_YET)))


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
        for entry, segments in zip(whole.entries, _decode_object_segments(whole), strict=True)
    ]
    return head, Step(head.step, head.decided_at_ms, head.leader_epoch, entries, whole.rows)


def _decode_object_segments(whole: _StepParts) -> list[Segments]:
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
