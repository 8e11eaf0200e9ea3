"""Steps as rows of the journal: one row per entry, JSON except for the segments, which stay columns.

Message rows of a step object are not in the journal: they are in their data file before the journal has the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.topics import SEGMENT_SCHEMA, SEGMENT_STRUCT

from ..errors import NewerFormat
from ..values.base import Record
from ..values.clients import Answered
from ..values.journal import FORMAT_VERSION, RECORDS, AnyRecord, JournalEntry, Step, StepBatch, batch_steps
from ..values.segments import NO_SEGMENTS, Segments
from .few_rows import MAX_FEW_BYTES, FewRows, Rows, concatenate_rows, decode_few_rows, encode_few_rows, rows_to_table
from .letter import check_answer, decode_rows, encode_rows

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


_SEGMENT_LIST = pa.list_(SEGMENT_STRUCT)
_FEW_TO_ENCODE = 8
"""Up to this number of segments, rows make a list in Arrow faster than the columns do, which other tables need anyway.

For one segment it takes half of the time, for a thousand eleven times as long.
"""

_FEW_TO_DECODE = 1000
"""Up to this number of segments, rows are made from Arrow faster than columns."""


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
    if counts.sum() <= _FEW_TO_ENCODE:
        return pa.array([entry.segments.rows() or None for step in steps for entry in step.entries], _SEGMENT_LIST)
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
    """Return the segments of each entry: few as lists, many as slices of one buffer without copying rows."""
    if (pc.sum(pc.list_value_length(column)).as_py() or 0) <= _FEW_TO_DECODE:
        return [_rows_to_segments(part) if part else NO_SEGMENTS for part in column.to_pylist()]
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


def _rows_to_segments(rows: list[dict[str, Any]]) -> Segments:
    return Segments([[row[name] for row in rows] for name in SEGMENT_SCHEMA.names])
