"""A fetch that has been planned: its messages as a DataFrame, as Arrow, or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from ...namespace.namespace import Namespace
from ...protocol.errors import IllegalState
from .arrow import fetch_arrow
from .plan import (
    FetchPlan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Message:
    """One message, for those who want them one by one."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Fetched:
    """A fixed range of offsets; reading it twice gives the same messages."""

    def __init__(self, namespace: Namespace, plan: FetchPlan, spark: SparkSession | None) -> None:
        self._namespace, self.plan, self._spark = namespace, plan, spark

    @property
    def record_count(self) -> int:
        """Number of messages, known without reading them."""
        return self.plan.record_count

    def to_arrow(self) -> pa.Table:
        """All messages, by partition and offset, in the schema of Spark's Kafka source."""
        return fetch_arrow(self._namespace.files, self.plan)

    def to_spark(self) -> DataFrame:
        """The same as a DataFrame; the order of its rows is Spark's. Raises IllegalState without a Spark session."""
        if self._spark is None:
            raise IllegalState("No Spark session: connect with lakemq.connect(path, spark=...).")
        from .spark import fetch_spark  # pyspark is heavy, and not every client has it

        return fetch_spark(self._spark, self._namespace, self.plan)

    def __iter__(self) -> Iterator[Message]:
        for batch in self.to_arrow().to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
                yield Message(
                    row["topic"],
                    row["partition"],
                    row["offset"],
                    row["timestamp"],
                    row["key"],
                    row["value"],
                    headers,
                )
