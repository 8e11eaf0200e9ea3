"""Fetching in Arrow: row ranges of Parquet files as messages, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import HEADERS
from lakemq.tables.specs.spec import TIME
from lakemq.tables.storage.files import Files

from .causes import with_causes
from .expiry import have_expired
from .fetch_plan import FetchPlan
from .kept import KeptRows
from .rows import Numbers, Source, running, sources

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
"""Rows of a range, on average, below which ranges are put together row by row: above, as slices, which copy nothing."""

_NO_TIME = -1


def fetch_arrow(files: Files, plan: FetchPlan, kept: KeptRows | None = None) -> pa.Table:
    """All messages of the plan that have not expired, by partition and offset, as FETCHED.

    Raises FileTruncated rather than come short. kept: where rows are looked for before they are read.
    """
    pieces = list(_pieces(files, plan, kept))
    return pa.Table.from_batches([b for piece in pieces for b in piece.to_batches()], FETCHED)


def _pieces(files: Files, plan: FetchPlan, kept: KeptRows | None = None) -> Iterator[pa.Table]:
    """The messages, in order. Of many short ranges at once, else range by range."""
    found = list(sources(files, plan, kept))
    ranges = plan.segments.num_rows
    if not ranges:
        return
    if ranges > 1 and plan.record_count < ranges * _FEW_ROWS:
        rows, begin = _taken(found, plan)
        yield _messages(plan, plan.segments, rows.take(begin))
        return
    at: dict[int, tuple[pa.Table, int]] = {}
    for source in found:
        at |= {i: (source.rows, begin) for i, begin in zip(source.ranges.tolist(), source.begin.tolist(), strict=True)}
    counts = plan.segments.column("record_count").to_pylist()
    for i, count in enumerate(counts):
        rows, first = at[i]
        yield _messages(plan, plan.segments.slice(i, 1), rows.slice(first, count))


def _taken(found: Sequence[Source], plan: FetchPlan) -> tuple[pa.Table, Numbers]:
    """All rows, and for each message of the plan which of them it is."""
    begin = np.zeros(plan.segments.num_rows, np.int64)
    before = 0
    for source in found:
        begin[source.ranges] = source.begin + before
        before += source.rows.num_rows
    # thousands of small chunks would be looked through for each row
    return pa.concat_tables([source.rows for source in found]).combine_chunks(), running(plan.segments, begin)


def _messages(plan: FetchPlan, segments: pa.Table, rows: pa.Table) -> pa.Table:
    """segments: those of the plan that `rows` are of, in order."""
    counts = segments.column("record_count").to_numpy()
    appended = np.repeat(segments.column("append_time_ms").fill_null(_NO_TIME).to_numpy(), counts)
    is_appended = appended != _NO_TIME
    stamp = rows.column("timestamp")
    if is_appended.any():
        by_sequencer = pa.array(appended * 1000).cast(TIME)
        stamp = pc.if_else(pa.array(is_appended), by_sequencer, stamp)
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(plan.topic, rows.num_rows),
        pa.array(np.repeat(segments.column("partition").to_numpy(), counts), pa.int32()),
        pa.array(running(segments, segments.column("base_offset").to_numpy())),
        stamp,
        pa.array(is_appended.astype(np.int32)),
        with_causes(rows.column("headers"), segments),
    ]
    table = pa.table(columns, schema=FETCHED)
    expired = have_expired(plan.now_ms, segments, rows)
    return table if expired is None else table.filter(pa.array(~expired))


def first_at_or_after(files: Files, plan: FetchPlan, time_us: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first message of a one-partition plan that is not before `time_us`."""
    for piece in _pieces(files, plan):
        stamps = pc.cast(piece.column("timestamp"), pa.int64())
        late = pc.greater_equal(stamps, time_us)
        index = pc.index(late, True).as_py()
        if index >= 0:
            return piece.column("offset")[index].as_py(), stamps[index].as_py() // 1000
    return None
