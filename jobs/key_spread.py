"""The spread of a topic's keys over its partitions: shares of messages, keys and bytes, and of the most frequent key.

This reads the newest messages, the same share of every partition, so that proportions are those of the log. Counts are
exact for the messages read; their number bounds time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.topics import TopicDescription


NEWEST = 100_000
"""Messages that are read by default, in about a second."""

_TOO_MUCH = 2
"""A partition with this multiple of its fair share is reported."""

_LEAST_KEYS, _LEAST_MESSAGES = 20, 100
"""Least keys and messages per partition for a warning: with fewer, a partition may have twice its share by chance."""

_PARTIAL_ROWS = 1_000_000
"""Rows of partial counts at which they are summed up, so that memory does not grow with the pieces read."""


@dataclass(frozen=True)
class PartitionSpread:
    """The counts of a partition. hot_key: the most frequent key; None if no message has a key."""

    partition: int
    messages: int
    keys: int
    size_bytes: int
    hot_key: bytes | None
    hot_key_messages: int


@dataclass(frozen=True)
class KeySpread:
    """The counts of the partitions that take messages. offsets: of the topic; read: those that were counted."""

    topic: str
    partitions: tuple[PartitionSpread, ...]
    offsets: int
    read: int

    @property
    def fair_share(self) -> float:
        return 1 / max(1, len(self.partitions))

    def share(self, partition: PartitionSpread, figure: str) -> float:
        """The share of a partition in the topic. figure: messages, keys or size_bytes."""
        total = sum(getattr(other, figure) for other in self.partitions)
        return getattr(partition, figure) / total if total else 0.0

    def warnings(self) -> list[str]:
        """Return warnings about partitions with twice their fair share, and about keys that fill a partition alone.

        The texts show no key, since keys may be private.
        """
        count = len(self.partitions)
        messages = sum(partition.messages for partition in self.partitions)
        keys = sum(partition.keys for partition in self.partitions)
        if count < 2 or messages < _LEAST_MESSAGES * count:
            return []
        figures = [("size_bytes", "bytes")] + ([("keys", "keys")] if keys >= _LEAST_KEYS * count else [])
        return [
            warning
            for partition in self.partitions
            for warning in (*self._unfair(partition, figures), *self._hot_key(partition, messages))
        ]

    def _unfair(self, partition: PartitionSpread, figures: Sequence[tuple[str, str]]) -> Iterator[str]:
        for figure, name in figures:
            share = self.share(partition, figure)
            if share >= _TOO_MUCH * self.fair_share:
                yield (
                    f"Partition {partition.partition} of {self.topic} has {share:.0%} of the {name}; a fair share is"
                    f" {self.fair_share:.0%}."
                )

    def _hot_key(self, partition: PartitionSpread, messages: int) -> Iterator[str]:
        share = partition.hot_key_messages / messages
        if share >= self.fair_share:
            yield (
                f"One key has {share:.0%} of the messages of {self.topic}, in partition {partition.partition}: more"
                f" partitions do not spread it. A fair share of a partition is {self.fair_share:.0%}."
            )


def find_key_spread(mq: Connection, topic: str, newest: int = NEWEST) -> KeySpread:
    """Read about `newest` committed messages of a topic, and count their keys and bytes.

    Raises UnknownTopicOrPartition, FileTruncated.
    """
    description = mq.topics.describe(topic)
    starts, ends = _newest_offsets(description, newest)
    fetched = mq.fetch(topic, start=starts, end=ends, partitions=list(starts), include_expired=True)
    partial = [_NO_COUNTS]
    for piece in fetched.pieces():
        partial.append(_count_per_key(piece))
        if sum(part.num_rows for part in partial) > _PARTIAL_ROWS:
            partial = [_sum_up(partial)]
    counts = _sum_up(partial)
    partitions = tuple(_partition_spread(counts, partition) for partition in starts)
    read = sum(ends[partition] - starts[partition] for partition in starts)
    return KeySpread(topic, partitions, sum(_log_sizes(description).values()), read)


def describe_fullest_partition(topic: TopicDescription) -> str | None:
    """Describe the partition with most offsets if it has twice its fair share. This reads no messages."""
    sizes = _log_sizes(topic)
    total, count = sum(sizes.values()), len(sizes)
    fullest = max(sizes, key=lambda partition: sizes[partition])
    if count < 2 or total < _LEAST_MESSAGES * count or sizes[fullest] * count < _TOO_MUCH * total:
        return None
    share = sizes[fullest] / total
    return f"partition {fullest} of {topic.topic} has {share:.0%} of the offsets, fair is {1 / count:.0%}"


def _log_sizes(topic: TopicDescription) -> dict[int, int]:
    """Return the number of offsets per partition that takes messages; draining partitions are left out."""
    return {
        partition: topic.end_offsets[partition] - topic.beginning_offsets[partition]
        for partition in range(topic.partitions)
    }


def _newest_offsets(topic: TopicDescription, newest: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the start and end offsets of the newest messages: the same share of each partition."""
    sizes = _log_sizes(topic)
    total = max(1, sum(sizes.values()))
    ends = {partition: topic.end_offsets[partition] for partition in sizes}
    read = {partition: min(size, -(-size * newest // total)) for partition, size in sizes.items()}
    return {partition: ends[partition] - read[partition] for partition in sizes}, ends


_NO_COUNTS = pa.table(
    {
        "partition": pa.array([], pa.int32()),
        "key": pa.array([], pa.binary()),
        "messages": pa.array([], pa.int64()),
        "size_bytes": pa.array([], pa.int64()),
    }
)


def _count_per_key(messages: pa.Table) -> pa.Table:
    """Count messages and bytes per partition and key. messages: columns of FETCHED."""
    sizes = [pc.fill_null(pc.binary_length(messages.column(name)), 0).cast(pa.int64()) for name in ("key", "value")]
    table = pa.table(
        {
            "partition": messages.column("partition").cast(pa.int32()),
            "key": messages.column("key").cast(pa.binary()),
            "messages": pa.repeat(pa.scalar(1, pa.int64()), messages.num_rows),
            "size_bytes": pc.add(*sizes),
        }
    )
    return _sum_up([table])


def _sum_up(parts: Sequence[pa.Table]) -> pa.Table:
    sums = [("messages", "sum"), ("size_bytes", "sum")]
    table = pa.concat_tables(parts).group_by(["partition", "key"]).aggregate(sums)
    columns = [table.column(name) for name in ("partition", "key", "messages_sum", "size_bytes_sum")]
    return pa.table(columns, schema=_NO_COUNTS.schema)


def _partition_spread(counts: pa.Table, partition: int) -> PartitionSpread:
    rows = counts.filter(pc.equal(counts.column("partition"), partition))
    with_key = rows.filter(pc.is_valid(rows.column("key")))
    hot_key, hot_key_messages = None, 0
    if with_key.num_rows:
        most = pc.index(with_key.column("messages"), pc.max(with_key.column("messages"))).as_py()
        hot_key, hot_key_messages = (with_key.column(name)[most].as_py() for name in ("key", "messages"))
    return PartitionSpread(
        partition=partition,
        messages=pc.sum(rows.column("messages")).as_py() or 0,
        keys=with_key.num_rows,
        size_bytes=pc.sum(rows.column("size_bytes")).as_py() or 0,
        hot_key=hot_key,
        hot_key_messages=hot_key_messages,
    )
