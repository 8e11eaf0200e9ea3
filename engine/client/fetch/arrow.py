"""Fetch in Arrow: row ranges of Parquet files as messages, and their values as typed columns, without a JVM.

Rows of docs/architecture.md: fetch 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import TIME
from lakemq.tables.storage.object_stores.files import Files

from ..schemas import SchemaRule
from ..schemas.topic_schema import PARSED, compile_schema
from .rows import (
    FetchPlan,
    Numbers,
    RangeRows,
    RowGroupCache,
    append_cause_headers,
    count_up_per_row,
    mask_expirable_segments,
    mask_hidden_messages,
    read_sources,
)

FETCHED: pa.Schema = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""The schema of Spark's Kafka source, with headers."""

_FEW_ROWS = 256
"""Average rows of a range below which ranges are put together row by row. Above it they are slices, without a copy."""

_NO_TIME = -1


def fetch_arrow(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> pa.Table:
    """Return all messages of the plan that are shown, by partition and offset (FETCHED).

    Args:
        files: the data files.
        plan: what to read.
        cache: row groups are looked for here before they are read.

    Raises:
        FileTruncated: messages are missing or damaged. The table is never incomplete.
    """
    pieces = list(_fetch_pieces(files, plan, cache))
    return pa.Table.from_batches([batch for piece in pieces for batch in piece.to_batches()], FETCHED)


def _fetch_pieces(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> Iterator[pa.Table]:
    """Yield the messages in order: all at once if there are many short ranges, else range by range."""
    sources = list(read_sources(files, plan, cache))
    range_count = plan.segments.num_rows
    if not range_count:
        return
    if range_count > 1 and plan.record_count < range_count * _FEW_ROWS:
        rows, index = _index_messages(sources, plan)
        yield _build_messages(plan, plan.segments, rows.take(index))
        return
    places: dict[int, tuple[pa.Table, int]] = {}
    for source in sources:
        for i, begin in zip(source.ranges.tolist(), source.begin.tolist(), strict=True):
            places[i] = source.rows, begin
    for i, count in enumerate(plan.segments.column("record_count").to_pylist()):
        rows, begin = places[i]
        yield _build_messages(plan, plan.segments.slice(i, 1), rows.slice(begin, count))


def _index_messages(sources: Sequence[RangeRows], plan: FetchPlan) -> tuple[pa.Table, Numbers]:
    """Return the rows of all sources, and for each message of the plan its index in them."""
    begin = np.zeros(plan.segments.num_rows, np.int64)
    row_count = 0
    for source in sources:
        begin[source.ranges] = source.begin + row_count
        row_count += source.rows.num_rows
    # Combine the chunks: taking rows by index would look through thousands of small chunks for each row.
    rows = pa.concat_tables([source.rows for source in sources]).combine_chunks()
    return rows, count_up_per_row(plan.segments, begin)


def _build_messages(plan: FetchPlan, segments: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the messages (FETCHED) that are shown. rows: of these segments of the plan, in order."""
    counts = segments.column("record_count").to_numpy()
    # A publisher may say a time in its request, and write one that Python lacks. Its message must be readable, too.
    times = rows.column("timestamp").cast(pa.timestamp("us"))
    timestamps = pc.max_element_wise(pc.min_element_wise(times, datetime.max), datetime.min).cast(TIME)
    timestamp_types = np.zeros(rows.num_rows, np.int32)
    if segments.column("append_time_ms").null_count < segments.num_rows:
        append_times = np.repeat(segments.column("append_time_ms").fill_null(_NO_TIME).to_numpy(), counts)
        has_append_time = append_times != _NO_TIME
        by_sequencer = pa.array(append_times * 1000).cast(TIME)
        timestamps = pc.if_else(pa.array(has_append_time), by_sequencer, timestamps)
        timestamp_types = has_append_time.astype(np.int32)
    headers = rows.column("headers")
    if segments.column("dead_letter").null_count < segments.num_rows:
        headers = append_cause_headers(headers, segments)
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(plan.topic, rows.num_rows),
        pa.array(np.repeat(segments.column("partition").to_numpy(), counts), pa.int32()),
        pa.array(count_up_per_row(segments, segments.column("base_offset").to_numpy())),
        timestamps,
        pa.array(timestamp_types),
        headers,
    ]
    table = pa.table(columns, schema=FETCHED)
    if not mask_expirable_segments(plan.now_ms, segments).any():
        return table
    return table.filter(pa.array(~mask_hidden_messages(plan.now_ms, segments, rows)))


def find_first_at_or_after(files: Files, plan: FetchPlan, time_us: int) -> tuple[int, int] | None:
    """Return offset and timestamp (ms) of the first message of a one-partition plan that is not before `time_us`."""
    for piece in _fetch_pieces(files, plan):
        timestamps = pc.cast(piece.column("timestamp"), pa.int64())
        index = pc.index(pc.greater_equal(timestamps, time_us), True).as_py()
        if index >= 0:
            return piece.column("offset")[index].as_py(), timestamps[index].as_py() // 1000
    return None


# Messages with their values as typed columns, by the schema of their topic.


_CHUNK_ROWS = 1 << 14
"""Rows that are decoded at once: as Python objects they take many times their size."""


def append_parsed(messages: pa.Table, rule: SchemaRule) -> pa.Table:
    """Return the messages with a column `parsed`: their values by the schema, null where a value does not fit it."""
    schema = compile_schema(rule)
    chunks = [
        schema.parse(messages.column("value").slice(first, _CHUNK_ROWS).to_pylist())
        for first in range(0, messages.num_rows, _CHUNK_ROWS)
    ]
    return messages.append_column(PARSED, pa.chunked_array(chunks, schema.parsed_type))


@dataclass(frozen=True)
class AppendParsed:
    """`append_parsed` as a function for mapInArrow."""

    rule: SchemaRule

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from append_parsed(pa.Table.from_batches([batch]), self.rule).to_batches()
