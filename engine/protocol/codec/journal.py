"""Steps as rows of the journal: one row per entry, JSON except for the segments, which stay columns.

Message rows of a step object are not in the journal: they are in their data file before the journal has the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.segments import SEGMENT_SCHEMA, SEGMENT_STRUCT

from ..values.journal import FORMAT_VERSION, JournalEntry, Step, StepBatch, batch_steps
from ..values.segments import NO_SEGMENTS, Segments
from .records import check_format, decode_record, encode_record

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
