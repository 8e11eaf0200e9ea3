"""Topics: their requests, records and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import UnknownTopicOrPartition
from ..parameters import TOPIC, SchemaVersion, schema_from_config
from .base import Count, Number, Request, Result, TopicRecord, Transitions
from .deliveries import Deliveries

MAX_PARTITIONS = 100_000
"""The largest number of partitions of a topic."""


class LogStatus(StrEnum):
    """The states of a partition of a topic."""

    ACTIVE = "active"
    """It takes messages that are published."""
    DRAINING = "draining"
    """The topic has fewer partitions now. Nothing is published to this one; groups read it to its end."""
    ENDED = "ended"
    """All groups have read it to its end and no longer get it. Its messages can be fetched; its number may be used
    again.
    """


class LogEvent(StrEnum):
    """The events that change the state of a partition of a topic."""

    REMOVE = "remove"
    """The topic gets fewer partitions."""
    USE_AGAIN = "use again"
    """The topic gets more partitions."""
    END = "end"


LOG_TRANSITIONS = Transitions(
    "A partition of a topic",
    (LogStatus.ACTIVE,),
    {
        LogEvent.REMOVE: ({LogStatus.ACTIVE}, LogStatus.DRAINING),
        LogEvent.USE_AGAIN: ({LogStatus.DRAINING, LogStatus.ENDED}, LogStatus.ACTIVE),
        LogEvent.END: ({LogStatus.DRAINING}, LogStatus.ENDED),
    },
)


class CreateTopic(Request, frozen=True, tag="create_topic"):  # Decided by `rules/topics.py`.
    topic: str
    partitions: int
    config: dict[str, Any] = {}
    subscriptions: list[str] = []


class AlterTopic(Request, frozen=True, tag="alter_topic"):  # Decided by `rules/topics.py`.
    """Change a topic. `config` sets keys, null resets one; `partitions` and `subscriptions` replace the present ones.

    force: allow fewer partitions. checked_schema: version of the topic's schema against which the client has checked
    the new one; 0: the topic had none. A change of the schema needs it.
    """

    topic: str
    config: dict[str, Any] = {}
    partitions: int | None = None
    subscriptions: list[str] | None = None
    force: bool = False
    checked_schema: int | None = None


class DeleteTopic(Request, frozen=True, tag="delete_topic"):  # Decided by `rules/topics.py`.
    topic: str


class DeleteRecords(Request, frozen=True, tag="delete_records"):  # Decided by `rules/topics.py`.
    """Delete records. before: partition -> the first offset to keep; -1 stands for the high watermark."""

    topic: str
    before: dict[int, int]


class TopicRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic as the client knew it when it hashed the keys."""

    topic: str
    topic_id: Number
    partition_count: Count


class TopicDone(Result, frozen=True, tag="topic"):
    topic_id: int
    partitions: int


class TopicCreated(TopicRecord, frozen=True, tag="topic_created"):
    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]


class TopicAltered(TopicRecord, frozen=True, tag="topic_altered"):
    """The topic has these settings, subscriptions and partitions from now on."""

    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]


class PartitionsEnded(TopicRecord, frozen=True, tag="partitions_ended"):
    """Draining partitions have ended, from the number `first` on."""

    first: int


class TopicDeleted(TopicRecord, frozen=True, tag="topic_deleted"):
    """A topic is deleted. partitions: how many it had, including those that have ended."""

    partitions: int


class LogOutgrown(msgspec.Struct, frozen=True):
    """Messages that the leader has found to be too old or too large: partition -> the first offset to keep.

    by_age, by_size: by the settings retention.ms and retention.bytes that the topic had when the leader looked.
    """

    topic_id: int
    retention_ms: int
    retention_bytes: int
    by_age: dict[int, int]
    by_size: dict[int, int]


class RecordsDeleted(TopicRecord, frozen=True, tag="records_deleted"):
    """Logs start later now: partition -> log start offset. reason: the setting that caused it; empty for a request."""

    log_starts: dict[int, int]
    reason: str = ""


Offsets = npt.NDArray[np.int64]

TimeToLive: TypeAlias = tuple[int | None, int | None]
"""For the messages of a segment: when their time to live starts (None: they do not expire), and the time to live of
those that have none of their own (None: unlimited).
"""


@dataclass(frozen=True)
class Bounds:
    """The bounds of a partition, for a fetch of one isolation.

    Attributes:
        first: the first offset that is still there.
        end: where a fetch ends.
        high_watermark: the offset of the next message that is published.
    """

    topic_id: int
    first: int
    end: int
    high_watermark: int


@dataclass
class Topic:
    """A topic and its partitions. `high_watermarks[p]` is the offset that the next message of partition p gets, and
    `final_offsets[p]` the end of what is in `final_messages`.

    open_transactions: partition -> producer_id -> first offset of that producer's open transaction. redrives: partition
    -> its dead letters that are to go back (dying) or are finished (acknowledged). ended_count: the last partitions,
    which have ended. draining_count: the partitions before them, which drain. schemas: the versions of its schema.
    """

    topic_id: int
    topic: str
    config: dict[str, Any]
    subscriptions: list[str]
    high_watermarks: Offsets
    log_starts: Offsets
    final_offsets: Offsets
    open_transactions: dict[int, dict[int, int]] = field(default_factory=dict)
    redrives: dict[int, Deliveries] = field(default_factory=dict)
    draining_count: int = 0
    ended_count: int = 0
    schemas: tuple[SchemaVersion, ...] = ()

    def copy(self) -> Topic:
        """The same, with partitions of its own."""
        open_transactions = {p: dict(firsts) for p, firsts in self.open_transactions.items()}
        return replace(
            self,
            high_watermarks=self.high_watermarks.copy(),
            log_starts=self.log_starts.copy(),
            final_offsets=self.final_offsets.copy(),
            open_transactions=open_transactions,
            redrives={p: deliveries.copy() for p, deliveries in self.redrives.items()},
        )

    @property
    def log_count(self) -> int:
        """The number of all partitions, including those that have ended."""
        return len(self.high_watermarks)

    @property
    def consumed_count(self) -> int:
        """The number of partitions that groups read: active and draining ones."""
        return self.log_count - self.ended_count

    @property
    def partition_count(self) -> int:
        """The number of partitions that take new messages."""
        return self.consumed_count - self.draining_count

    def status(self, partition: int) -> LogStatus:
        if partition < self.partition_count:
            return LogStatus.ACTIVE
        return LogStatus.DRAINING if partition < self.consumed_count else LogStatus.ENDED

    def set_partition_count(self, count: int) -> list[int]:
        """Set how many partitions take new messages. Returns the partitions that had ended and are used again."""
        self._move(range(count, self.partition_count), LogEvent.REMOVE)
        self._move(range(self.partition_count, min(count, self.log_count)), LogEvent.USE_AGAIN)
        ended = range(self.consumed_count, min(count, self.log_count))
        added = np.zeros(max(0, count - self.log_count), np.int64)
        consumed = max(self.consumed_count, count)
        self.high_watermarks = np.concatenate([self.high_watermarks, added])
        self.log_starts = np.concatenate([self.log_starts, added])
        self.final_offsets = np.concatenate([self.final_offsets, added])
        self.ended_count, self.draining_count = self.log_count - consumed, consumed - count
        return list(ended)

    def end_partitions(self, first: int) -> None:
        """End the partitions from this number on."""
        self._move(range(first, self.consumed_count), LogEvent.END)
        self.draining_count, self.ended_count = first - self.partition_count, self.log_count - first

    def _move(self, partitions: range, event: LogEvent) -> None:
        """Check that the event may come to these partitions. Their states follow from the counts."""
        for status in {self.status(partition) for partition in partitions}:
            LOG_TRANSITIONS.move(status, event)

    def find_partition(self, partition: int) -> tuple[int, int]:
        """Return the topic's id and this partition. Raises UnknownTopicOrPartition."""
        if not 0 <= partition < self.log_count:
            raise UnknownTopicOrPartition(
                f"{self.topic} has no such partition.", found=partition, expected=f"0 to {self.log_count - 1}"
            )
        return self.topic_id, partition

    @property
    def last_stable_offsets(self) -> Offsets:
        """The end of each partition under read_committed: the first offset of its earliest open transaction, else its
        high watermark.
        """
        if not self.open_transactions:
            return self.high_watermarks
        offsets = self.high_watermarks.copy()
        for partition, firsts in self.open_transactions.items():
            offsets[partition] = max(min(firsts.values()), int(self.log_starts[partition]))
        return offsets

    def find_ends(self, isolation: str) -> Offsets:
        """Return the end of each partition for readers of this isolation."""
        return self.last_stable_offsets if isolation == "read_committed" else self.high_watermarks

    def read_bounds(self, isolation: str, partitions: Sequence[int] | None = None) -> list[Bounds]:
        """Return the bounds for a fetch of this isolation, of these partitions in their order, or of all."""
        index = slice(None) if partitions is None else np.array(partitions, np.int64)
        columns = self.log_starts, self.find_ends(isolation), self.high_watermarks
        rows = zip(*(column[index].tolist() for column in columns), strict=True)
        return [Bounds(self.topic_id, *row) for row in rows]

    def ttl(self, has_ttl: bool, now_ms: int) -> TimeToLive:
        """Return the time to live of messages that enter the log now. has_ttl: some have one of their own."""
        default_ms = self.setting("ttl.ms")
        if default_ms < 0:
            return (now_ms if has_ttl else None), None
        return now_ms, default_ms

    @property
    def schema(self) -> SchemaVersion | None:
        """The schema that new messages must fit; None: any value fits."""
        return self.schemas[-1] if self.schemas and schema_from_config(self.config) else None

    def setting(self, key: str) -> Any:
        """Return the topic's value of a setting, else the default."""
        return self.config.get(key, TOPIC[key].default)


REQUESTS = (CreateTopic, AlterTopic, DeleteTopic, DeleteRecords)
RESULTS = (TopicDone,)
RECORDS = (TopicCreated, TopicAltered, PartitionsEnded, TopicDeleted, RecordsDeleted)
