"""A fetch that has been planned: its messages as a DataFrame, as Arrow, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...namespace.namespace import Namespace
from ...protocol.errors import FileTruncated, IllegalState
from .arrow import fetch_arrow
from .causes import whose_are
from .expiry import expired_offsets
from .kept import KeptRows
from .pieces import pieces
from .plan import FetchPlan
from .rows import running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class Message(NamedTuple):
    """One message, for those who want them one by one. delivery_count: in a queue group, this delivery included."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int = 1

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery_count > 1


class Fetched:
    """A fixed range of offsets; reading it twice gives the same messages."""

    def __init__(
        self,
        namespace: Namespace,
        plan: FetchPlan,
        spark: SparkSession | None,
        plan_again: Callable[[FetchPlan], FetchPlan | None],
        kept: KeptRows | None = None,
    ) -> None:
        """plan_again: where the messages of a plan are now; None: where they were; kept: rows of who reads on."""
        self._namespace, self.plan, self._spark, self._plan_again = namespace, plan, spark, plan_again
        self._kept = kept

    @property
    def record_count(self) -> int:
        """Number of messages, known without reading them, but for those that may have expired."""
        return self.plan.record_count - sum(map(len, self.expired.values()))

    @cached_property
    def expired(self) -> Mapping[int, npt.NDArray[np.int64]]:
        """Partition -> offsets of messages that have expired and are not shown.

        None, where that cannot be read: then all are shown, and whoever reads them is told why, if it is still so.
        """
        if not self.plan.expirable.num_rows:
            return {}
        try:
            return self._found(self.plan, lambda found: expired_offsets(self._namespace.files, found, self._kept))
        except FileTruncated:
            # read a moment later, what is not said to have expired must not be left out
            self.plan = replace(self.plan, now_ms=None)
            return {}

    def offsets(self) -> dict[int, npt.NDArray[np.int64]]:
        """Partition -> the offsets of its messages, ascending, without those that have expired."""
        segments = self.plan.segments
        at = running(segments, segments.column("base_offset").to_numpy())
        of = segments.column("partition").to_numpy()[whose_are(segments)]
        found = {partition: at[of == partition] for partition in np.unique(of).tolist()}
        return {
            p: np.setdiff1d(all_of, self.expired[p]) if p in self.expired else all_of for p, all_of in found.items()
        }

    def to_arrow(self) -> pa.Table:
        """All messages, by partition and offset, in the schema of Spark's Kafka source."""
        return self._read(self.plan)

    def pieces(self, limit: int | None = None, target_bytes: int = 16 << 20) -> Iterator[pa.Table]:
        """The same in order, at most `limit` of them, in tables of about `target_bytes`. Raises FileTruncated."""
        return pieces(self._read, self.plan, limit, target_bytes)

    def _read(self, plan: FetchPlan) -> pa.Table:
        return self._found(plan, lambda found: fetch_arrow(self._namespace.files, found, self._kept))

    def _found(self, plan: FetchPlan, read: Callable[[FetchPlan], T]) -> T:
        """What is read by the plan, or once more by another one: its files may have been merged, and be gone."""
        try:
            return read(plan)
        except FileTruncated:
            again = self._plan_again(plan)
            if again is None:
                raise
        return read(again)

    def to_spark(self) -> DataFrame:
        """The same as a DataFrame; the order of its rows is Spark's. Raises IllegalState without a Spark session."""
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        from .spark import fetch_spark  # pyspark is heavy, and not every client has it

        spark = self._spark
        return self._found(self.plan, lambda found: fetch_spark(spark, self._namespace, found))

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(map(_messages, self.to_arrow().to_batches(max_chunksize=10_000)))


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """The rows of a batch of FETCHED, column by column: a dictionary a row takes four times as long."""
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    columns = {name: batch.column(name) for name in names}
    headers = columns.pop("headers")
    # those of a batch that was sent together are one
    times = columns["timestamp"].cast(pa.timestamp("us")).dictionary_encode()
    known = [time.replace(tzinfo=timezone.utc) for time in times.dictionary.to_numpy(zero_copy_only=False).tolist()]
    return map(
        Message,
        columns["topic"].to_pylist(),
        columns["partition"].to_pylist(),
        columns["offset"].to_pylist(),
        map(known.__getitem__, times.indices.to_numpy().tolist()),
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        map(_headers, headers.to_pylist()) if headers.null_count < len(headers) else repeat(()),
    )


def _headers(listed: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one["key"], one["value"]) for one in listed or ())
