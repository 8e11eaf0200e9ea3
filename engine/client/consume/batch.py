"""What a poll brought: messages of some partitions, and where the group goes on after them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from ...protocol.errors import IllegalState
from ..fetch.arrow import FETCHED
from ..fetch.fetched import Fetched, Message
from ..offsets import ConsumedOffsets, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ConsumerBatch:
    """A fixed range of offsets of some partitions; reading it twice gives the same messages. False when it is empty.

    offsets: (topic, partition) -> the offset to go on from, of every partition that moved, also past what is not shown.
    """

    def __init__(self, group: str, parts: list[Fetched], offsets: ConsumedOffsets) -> None:
        """parts: one per topic, at least one, so that a batch without messages is a DataFrame as well; none where the
        consumer had no partitions.
        """
        self.group, self._parts, self.offsets = group, parts, offsets

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> where its messages begin."""
        return {(part.plan.topic, one.partition): one.start for part in self._parts for one in part.plan.ranges}

    @property
    def record_count(self) -> int:
        return sum(part.record_count for part in self._parts)

    def to_arrow(self) -> pa.Table:
        """All messages, by topic, partition and offset, in the schema of Spark's Kafka source."""
        return pa.concat_tables([FETCHED.empty_table(), *(part.to_arrow() for part in self._parts)])

    def to_spark(self) -> DataFrame:
        """The same as a DataFrame; the order of its rows is Spark's.

        Raises IllegalState without a Spark session, and where the consumer had no partitions.
        """
        if not self._parts:
            raise IllegalState("The consumer had no partitions: there is nothing of which it could be a DataFrame.")
        return reduce(lambda left, right: left.unionAll(right), [part.to_spark() for part in self._parts])

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._parts)

    def __bool__(self) -> bool:
        return self.record_count > 0
