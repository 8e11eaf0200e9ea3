"""The result of a fetch: its messages as a DataFrame, as Arrow, or one by one.

Rows of docs/architecture.md: fetch 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, repeat
from sys import modules
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.storage.native_calls import NATIVE_CALLS

from ...namespace.extras import needs
from ...namespace.namespace import Namespace
from ...namespace.process import ProcessBound
from ...protocol.errors import FileTruncated, IllegalState
from ..html_table import SHOWN_MESSAGES, build_message_table
from ..schemas import SchemaRule
from ..tracing import API, open_span
from .arrow import append_parsed, fetch_arrow
from .plan import FetchPlan
from .rows import (
    HiddenOffsets,
    RowGroupCache,
    count_up_per_row,
    find_hidden_offsets,
    read_in_pieces,
    segment_index_per_row,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class Message(NamedTuple):
    """A message.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: its offset in the partition.
        timestamp: its time, in UTC.
        key: None if it was sent without a key.
        value: None if it was sent without a value.
        headers: pairs of a name and a value.
        delivery_count: in a queue group, how often it was delivered, this delivery included.

    Example:
        >>> [message.value for message in mq.fetch("orders")]  # doctest: +SKIP
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    # Any, not None: a program knows what its topics hold, so type checkers shall not ask for a check before each use.
    key: bytes | Any
    value: bytes | Any
    headers: tuple[tuple[str, bytes | Any], ...]
    delivery_count: int = 1

    @property
    def redelivered(self) -> bool:
        """True if the message was delivered before."""
        return self.delivery_count > 1


Row = tuple[Any, ...]
"""The fields of a `Message` as a plain tuple.

Many rows that wait cost less than many messages: the garbage collector stops looking at tuples of plain values, but
not at instances of a subclass.
"""


def to_message(row: Row) -> Message:
    """Return the message with these fields."""
    return tuple.__new__(Message, row)


class FetchResult(ProcessBound):
    """A fixed range of offsets; reading it twice gives the same messages. `len(result)` is their number.

    Nothing is read before it is asked for.

    Example:
        >>> orders = mq.fetch("orders").to_arrow()  # doctest: +SKIP
    """

    def __init__(
        self,
        namespace: Namespace,
        plan: FetchPlan,
        spark: SparkSession | None,
        replan: Callable[[FetchPlan], FetchPlan | None],
        cache: RowGroupCache | None = None,
        schema: SchemaRule | None = None,
        find_schema: Callable[..., SchemaRule] | None = None,
    ) -> None:
        """A result of a plan.

        Args:
            namespace: to read from.
            plan: what to read.
            spark: the session for `to_spark`.
            replan: returns a plan that reads the same messages where they are now; None if they have not moved.
            cache: row groups of a consumer, which reads on in them.
            schema: the schema that parses values; None: they are not parsed.
            find_schema: returns the newest schema of topics.
        """
        self._schema, self.find_schema = schema, find_schema
        self._namespace, self.plan, self._spark, self._replan = namespace, plan, spark, replan
        self._cache = cache
        self._table: pa.Table | None = None

    def with_schema(self, schema: SchemaRule) -> FetchResult:
        """Return the same result, with values that are parsed by the schema.

        Args:
            schema: of the topic, as `find_schema` returns it.

        Raises:
            MissingExtra: what parses values is not installed.
        """
        parts = self._namespace, self.plan, self._spark, self._replan, self._cache
        return FetchResult(*parts, schema, self.find_schema)

    @property
    def record_count(self) -> int:
        """The number of messages. It is known without reading, unless some may have expired or be superseded."""
        return self.plan.record_count - self.hidden.total

    @cached_property
    def hidden(self) -> HiddenOffsets:
        """The offsets of messages that are not shown.

        If that cannot be read, it is empty, and from then on all messages are shown. Reading them raises the error, if
        there is still one.
        """
        if not self.plan.expirable.num_rows:
            return HiddenOffsets({}, {})
        try:
            return self._read_or_replan(
                self.plan, lambda plan: find_hidden_offsets(self._namespace.files, plan, self._cache)
            )
        except FileTruncated:
            # The files may be readable a moment later. A message that is not listed here must then be shown.
            self.plan = replace(self.plan, now_ms=None)
            return HiddenOffsets({}, {})

    def offsets(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return partition -> the ascending offsets of its messages, without those that are not shown."""
        segments = self.plan.segments
        offsets = count_up_per_row(segments, segments.column("base_offset").to_numpy())
        partitions = segments.column("partition").to_numpy()[segment_index_per_row(segments)]
        by_partition = {partition: offsets[partitions == partition] for partition in np.unique(partitions).tolist()}
        for hidden in self.hidden:
            for partition, numbers in hidden.items():
                by_partition[partition] = np.setdiff1d(by_partition[partition], numbers)
        return by_partition

    def to_arrow(self, progress: bool = False) -> pa.Table:
        """Return all messages by partition and offset, with the columns of Spark's Kafka source, and `parsed` if asked.

        Args:
            progress: show a bar of tqdm in the terminal or the notebook.

        Raises:
            FileTruncated: messages are missing or damaged.
            StorageError: the store failed.
            MissingExtra: with `progress`, tqdm is not installed.
        """
        if self._table is not None:
            return self._table
        pieces = [*self.pieces(progress=True)] if progress else []
        return pa.concat_tables(pieces) if pieces else self._read(self.plan)

    def load(self) -> None:
        """Read all messages now, so that nothing is read when they are asked for. Raises what `to_arrow` raises."""
        self._table = self.to_arrow()

    def pieces(
        self, limit: int | None = None, target_bytes: int = 16 << 20, progress: bool = False
    ) -> Iterator[pa.Table]:
        """Yield the messages in order, in tables of bounded size.

        Args:
            limit: the most messages; None: all.
            target_bytes: about the size of a table.
            progress: show a bar of tqdm in the terminal or the notebook. It counts messages that were yielded.

        Raises:
            FileTruncated: messages are missing or damaged.
            StorageError: the store failed.
            MissingExtra: with `progress`, tqdm is not installed.
        """
        pieces = read_in_pieces(self._read, self.plan, limit, target_bytes)
        if not progress:
            return pieces
        with needs("progress"):
            from tqdm.auto import tqdm  # in a notebook, this bar is one of its widgets
        total = self.record_count if limit is None else min(limit, self.record_count)
        bar = partial(tqdm, total=total, desc=f"fetch {self.plan.topic}", unit=" messages", unit_scale=True)
        return _count_rows(pieces, bar)

    def _read(self, plan: FetchPlan) -> pa.Table:
        with self._open_span(plan):
            messages = self._read_or_replan(plan, lambda new: fetch_arrow(self._namespace.files, new, self._cache))
            return messages if self._schema is None else append_parsed(messages, self._schema)

    def _open_span(self, plan: FetchPlan) -> AbstractContextManager[Any]:
        # Without the module no application can have set a tracer. A read of nothing, as of an empty batch, has no span.
        if API not in modules or not plan.record_count:
            return nullcontext()
        named = {"destination.name": plan.topic, "batch.message_count": plan.record_count}
        return open_span("fetch", "receive", plan.topic, named)

    @NATIVE_CALLS.guard
    def _read_or_replan(self, plan: FetchPlan, read: Callable[[FetchPlan], T]) -> T:
        """Read by the plan. If files are gone because they were merged, read by a new plan."""
        try:
            return read(plan)
        except FileTruncated:
            new_plan = self._replan(plan)
            if new_plan is None:
                raise
        return read(new_plan)

    def to_spark(self) -> DataFrame:
        """Return all messages as a DataFrame with the columns of Spark's Kafka source, in no particular order.

        Raises:
            IllegalState: no Spark session runs.
            FileTruncated: messages are missing or damaged.
        """
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        from .spark import fetch_spark, parse_in_spark  # pyspark is heavy, and not every client has it

        spark = self._spark
        with self._open_span(self.plan):
            messages = self._read_or_replan(self.plan, lambda plan: fetch_spark(spark, self._namespace, plan))
        return messages if self._schema is None else parse_in_spark(messages, self._schema)

    def __iter__(self) -> Iterator[Message]:
        return map(to_message, self._rows())

    def _rows(self) -> Iterator[Row]:
        return chain.from_iterable(map(_iterate_rows, self.to_arrow().to_batches(max_chunksize=10_000)))

    def __len__(self) -> int:
        return self.record_count

    def _repr_html_(self) -> str:
        tables = self.pieces(SHOWN_MESSAGES)
        batches = chain.from_iterable(table.to_batches() for table in tables)
        rows = chain.from_iterable(map(_iterate_rows, batches))
        return build_message_table(Message._fields, rows, self.record_count)


def _count_rows(tables: Iterator[pa.Table], open_bar: Callable[[], Any]) -> Iterator[pa.Table]:
    """Yield the tables, and count their rows in a bar, which is shown from the first one on."""
    with open_bar() as bar:
        for table in tables:
            bar.update(table.num_rows)
            yield table


def _iterate_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch (FETCHED), column by column: a dictionary per row would take four times as long."""
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    columns = {name: batch.column(name) for name in names}
    headers = columns.pop("headers")
    # Messages that were published together have the same time, so convert each distinct time once.
    times = columns["timestamp"].cast(pa.timestamp("us")).dictionary_encode()
    distinct = [time.replace(tzinfo=UTC) for time in times.dictionary.to_numpy(zero_copy_only=False).tolist()]
    return zip(
        columns["topic"].to_pylist(),
        columns["partition"].to_pylist(),
        columns["offset"].to_pylist(),
        map(distinct.__getitem__, times.indices.to_numpy().tolist()),
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        map(_to_pairs, headers.to_pylist()) if headers.null_count < len(headers) else repeat(()),
        repeat(1),  # delivery_count, which a QueueBatch corrects
    )


def _to_pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())
