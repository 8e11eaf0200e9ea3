"""Message bodies in Arrow: any number of rows, for letters and for files. `few_rows` has the form for a few rows.

Runs on Spark executors too: pyarrow, numpy and xxhash only. Rows of docs/architecture.md: publish 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import BODY_SCHEMA, HEADERS
from lakemq.tables.specs.spec import TIME

from ...namespace.data_file import BODY, repeat_name
from .delay_rule import NO_DUE, RequestedDelays, move_delay_headers, request_delays
from .placing import NO_SUCH_PARTITION, Arranged, Copy, RequestedPartitions, SortedRows, arrange

if TYPE_CHECKING:
    from ...protocol.codec.few_rows import Rows


COLUMN_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "timestamp": TIME,
    "partition": pa.int64(),
    "deliver_at": pa.int64(),
    "delay_ms": pa.int64(),
    "ttl_ms": pa.int64(),
}
"""Columns of a user's table. deliver_at is in microseconds. All but value may be missing."""

KEY_HEADERS = ("QUEUE_PARTITION_KEY", "JMSXGroupID")
"""Headers that supply a missing key: the first with a value counts. Solace's and JMS clients set them."""


@dataclass(frozen=True)
class ArrowBody:
    """Message bodies of one destination, not placed yet. delays: None if no row is delayed.

    table: columns of BODY; the topic as a dictionary, because sorting and writing equal names as text takes longer.
    """

    destination: str
    table: pa.Table
    delays: RequestedDelays | None = None

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Number of bytes in a letter, where each row has the topic as text."""
        return int(self.table.nbytes) + len(self.destination) * self.num_rows

    @property
    def timestamps_us(self) -> npt.NDArray[np.int64]:
        """Timestamp per row."""
        timestamps_us: npt.NDArray[np.int64] = self.table.column("timestamp").cast(pa.int64()).to_numpy()
        return timestamps_us

    @property
    def headers(self) -> pa.ChunkedArray:
        """Headers per row, as a column of lists."""
        return self.table.column("headers")

    @property
    def has_ttl(self) -> bool:
        """Whether some of the rows have a time to live."""
        return bool(self.table.column("ttl_ms").null_count < self.num_rows)

    def arrange(self, copies: Sequence[Copy], requested: RequestedPartitions, start: int) -> Arranged[Rows]:
        """Return the rows as a letter takes them: checked and, once per copy, sorted by partition and due time.

        Args:
            copies: the copies to store.
            requested: explicit partitions.
            start: where the round of rows without a key begins.
        """
        arranged = arrange(copies, self.table, self.delays, _to_numbers(requested), start, by_slot=True)
        rows = pa.concat_tables([copy_rows.to_table() for copy_rows in arranged.rows])
        columns = [rows.column(f.name).cast(f.type) for f in BODY_SCHEMA]
        table = pa.table(columns, schema=BODY_SCHEMA)
        return Arranged(table, arranged.runs, arranged.partition, arranged.due_ms, arranged.per_copy, arranged.reasons)

    def arrange_for_file(
        self, copies: Sequence[Copy], requested: RequestedPartitions, start: int
    ) -> Arranged[tuple[SortedRows, ...]]:
        """Return the rows as a file takes them: a run may have delayed rows of a whole hour."""
        return arrange(copies, self.table, self.delays, _to_numbers(requested), start)

    def to_arrow(self) -> ArrowBody:
        """Return itself: files are written from this form."""
        return self

    def with_topics(self, topics: pa.ChunkedArray) -> ArrowBody:
        """Return the same body with this name in each row."""
        at = self.table.column_names.index("topic")
        return replace(self, table=self.table.set_column(at, "topic", topics.dictionary_encode()))

    def slice(self, first: int, count: int) -> ArrowBody:
        """Return the body of these rows."""
        delays = None if self.delays is None else self.delays.slice(first, count)
        return ArrowBody(self.destination, self.table.slice(first, count), delays)


def _to_numbers(requested: RequestedPartitions) -> npt.NDArray[np.int64] | None:
    return None if requested is None else np.asarray(requested, np.int64)


def build_arrow_body(
    columns: Mapping[str, pa.ChunkedArray], destination: str, now_ms: int
) -> tuple[ArrowBody, npt.NDArray[np.int64] | None]:
    """Build a body, and the partitions that rows ask for (None: there is no such column).

    Missing timestamps are now. Missing keys come from KEY_HEADERS, and missing delays from DELAY_HEADERS.

    Args:
        columns: as in COLUMN_TYPES.
        destination: its name.
        now_ms: time of the call.
    """
    n = len(columns["value"])
    typed = {name: columns.get(name, pa.chunked_array([pa.nulls(n, kind)])) for name, kind in COLUMN_TYPES.items()}
    stamps = typed["timestamp"]
    if stamps.null_count:
        stamps = pc.fill_null(stamps, pa.scalar(now_ms * 1000, TIME))
    headers = _set_null_where_empty(typed["headers"])
    key = _fill_key_from_headers(typed["key"], headers)
    headers, at_us, delay_ms = move_delay_headers(headers, typed["deliver_at"], typed["delay_ms"])
    arrays = {
        "topic": repeat_name(destination, n),
        "partition": pa.array(np.zeros(n, np.int32)),
        "key": key,
        "value": typed["value"],
        "headers": headers,
        "timestamp": stamps,
        "deliver_at": pa.nulls(n, TIME),
        "ttl_ms": typed["ttl_ms"],
    }
    table = pa.table({name: arrays[name] for name in BODY})
    body = ArrowBody(destination, table, _read_delays(at_us, delay_ms, now_ms))
    if "partition" not in columns:
        return body, None
    requested = pc.fill_null(typed["partition"], -1).to_numpy()
    return body, np.maximum(requested, NO_SUCH_PARTITION)


def _read_delays(at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray, now_ms: int) -> RequestedDelays | None:
    if at_us.null_count == delay_ms.null_count == len(at_us):
        return None
    delay_ms = pc.max_element_wise(delay_ms, -1, skip_nulls=False)
    at, delay = (pc.fill_null(column, NO_DUE).to_numpy() for column in (at_us, delay_ms))
    return request_delays(at, delay, now_ms * 1000)


def _set_null_where_empty(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return null for empty lists of headers: such a message has none."""
    if headers.null_count == len(headers):
        return headers
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(is_empty).as_py():
        return headers
    return pc.if_else(pc.fill_null(is_empty, True), pa.scalar(None, headers.type), headers)


def _fill_key_from_headers(key: pa.ChunkedArray, headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the key, or else the value of the first of KEY_HEADERS that a row has, wherever it stands."""
    if key.null_count == 0 or headers.null_count == len(headers):
        return key
    flat = pc.list_flatten(headers)
    names, values = pc.struct_field(flat, "key"), pc.struct_field(flat, "value")
    rows = pc.list_parent_indices(headers)
    for name in KEY_HEADERS:
        chosen = pc.and_kleene(pc.equal(names, name), pc.is_valid(values))
        first_rows, first = np.unique(rows.filter(chosen).to_numpy(), return_index=True)
        places = np.full(len(key), -1)
        places[first_rows] = first
        key = pc.coalesce(key, values.filter(chosen).take(pa.array(places, mask=places < 0)))
    return key
