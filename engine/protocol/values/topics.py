"""Topics: what may be asked of them, what is decided, what is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import UnknownTopicOrPartition
from ..parameters import TOPIC
from .base import Count, Number, Record, Request, Result
from .deliveries import Deliveries
from .transitions import Transitions

MAX_PARTITIONS = 100_000
"""Of a topic."""


class LogStatus(str, Enum):
    """The states of a partition of a topic."""

    ACTIVE = "active"
    """It takes what is published."""
    DRAINING = "draining"
    """The topic has fewer partitions now: nothing is published to it, groups go on until they have come to its end."""
    ENDED = "ended"
    """They have, and are given it no more. What it still holds can be fetched; its number may be used again."""


LOG_TRANSITIONS = Transitions(
    "A partition of a topic",
    {
        LogStatus.ACTIVE: {LogStatus.DRAINING},
        LogStatus.DRAINING: {LogStatus.ACTIVE, LogStatus.ENDED},
        LogStatus.ENDED: {LogStatus.ACTIVE},
    },
)


class CreateTopic(Request, frozen=True, tag="create_topic"):
    topic: str
    partitions: int
    config: dict[str, Any] = {}
    subscriptions: list[str] = []


class AlterTopic(Request, frozen=True, tag="alter_topic"):
    """`config` sets keys, null resets one to its default; `partitions` and `subscriptions` replace what is there.

    force: also if there are fewer partitions then.
    """

    topic: str
    config: dict[str, Any] = {}
    partitions: int | None = None
    subscriptions: list[str] | None = None
    force: bool = False


class DeleteTopic(Request, frozen=True, tag="delete_topic"):
    topic: str


class DeleteRecords(Request, frozen=True, tag="delete_records"):
    """Partition -> offset before which all is deleted; -1 stands for the high watermark."""

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


class TopicCreated(Record, frozen=True, tag="topic_created"):
    topic_id: int
    topic: str
    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]

    @property
    def subject(self) -> str:
        return self.topic


class TopicAltered(Record, frozen=True, tag="topic_altered"):
    """The topic as it is from now on."""

    topic_id: int
    topic: str
    partitions: int
    config: dict[str, Any]
    subscriptions: list[str]

    @property
    def subject(self) -> str:
        return self.topic


class PartitionsEnded(Record, frozen=True, tag="partitions_ended"):
    """Groups have come to the end of those from the number `first` on, which were draining."""

    topic_id: int
    topic: str
    first: int

    @property
    def subject(self) -> str:
        return self.topic


class TopicDeleted(Record, frozen=True, tag="topic_deleted"):
    """partitions: how many it had, those included that have ended."""

    topic_id: int
    topic: str
    partitions: int

    @property
    def subject(self) -> str:
        return self.topic


class LogOutgrown(msgspec.Struct, frozen=True):
    """What a look of the leader's at a topic has found: partition -> where the first segment begins that is to stay.

    by_age: by the retention.ms that it had then; by_size: by its retention.bytes.
    """

    topic_id: int
    retention_ms: int
    retention_bytes: int
    by_age: dict[int, int]
    by_size: dict[int, int]


class RecordsDeleted(Record, frozen=True, tag="records_deleted"):
    """Partition -> new log start offset. reason: the setting that asked for it; empty where somebody did."""

    topic_id: int
    topic: str
    log_starts: dict[int, int]
    reason: str = ""

    @property
    def subject(self) -> str:
        return self.topic


Offsets = npt.NDArray[np.int64]

TimeToLive: TypeAlias = tuple[int | None, int | None]
"""Of the messages of a segment: since when it counts, None: they do not expire; and how long it is of those that have
none of their own, None: for ever.
"""


@dataclass
class Topic:
    """A topic and its partitions; `high_watermarks[p]` is the offset the next message of partition p gets.

    open_transactions: partition -> producer_id -> first offset of that producer's open transaction; redrives: partition
    -> which of its dead letters are to go back where they come from (dying), or are done with (acknowledged).
    draining_count, ended_count: of all partitions the last ones have ended, and those before them drain.
    """

    topic_id: int
    topic: str
    config: dict[str, Any]
    subscriptions: list[str]
    high_watermarks: Offsets
    log_starts: Offsets
    open_transactions: dict[int, dict[int, int]] = field(default_factory=dict)
    redrives: dict[int, Deliveries] = field(default_factory=dict)
    draining_count: int = 0
    ended_count: int = 0

    def copy(self) -> Topic:
        """The same, with partitions of its own."""
        open_transactions = {p: dict(firsts) for p, firsts in self.open_transactions.items()}
        return replace(
            self,
            high_watermarks=self.high_watermarks.copy(),
            log_starts=self.log_starts.copy(),
            open_transactions=open_transactions,
            redrives={p: known.copy() for p, known in self.redrives.items()},
        )

    @property
    def log_count(self) -> int:
        """Of all its partitions, those included that have ended."""
        return len(self.high_watermarks)

    @property
    def consumed_count(self) -> int:
        """Of those that groups have: they go on in what drains."""
        return self.log_count - self.ended_count

    @property
    def partition_count(self) -> int:
        """Of those that take what is published."""
        return self.consumed_count - self.draining_count

    def status(self, partition: int) -> LogStatus:
        if partition < self.partition_count:
            return LogStatus.ACTIVE
        return LogStatus.DRAINING if partition < self.consumed_count else LogStatus.ENDED

    def give_partitions(self, count: int) -> list[int]:
        """From now on so many take what is published; returns those that do again after they had ended."""
        ended = range(self.consumed_count, min(count, self.log_count))
        added = np.zeros(max(0, count - self.log_count), np.int64)
        consumed = max(self.consumed_count, count)
        self.high_watermarks = np.concatenate([self.high_watermarks, added])
        self.log_starts = np.concatenate([self.log_starts, added])
        self.ended_count, self.draining_count = self.log_count - consumed, consumed - count
        return list(ended)

    def end_from(self, first: int) -> None:
        """Those from this number on have ended."""
        self.draining_count, self.ended_count = first - self.partition_count, self.log_count - first

    def place(self, partition: int) -> tuple[int, int]:
        """Its id, and this partition of it; raises UnknownTopicOrPartition."""
        if not 0 <= partition < self.log_count:
            raise UnknownTopicOrPartition(
                f"{self.topic} has no such partition.", found=partition, expected=f"0 to {self.log_count - 1}"
            )
        return self.topic_id, partition

    @property
    def last_stable_offsets(self) -> Offsets:
        """Where read_committed ends: the first offset of the earliest open transaction, else the high watermark."""
        if not self.open_transactions:
            return self.high_watermarks
        offsets = self.high_watermarks.copy()
        for partition, firsts in self.open_transactions.items():
            offsets[partition] = max(min(firsts.values()), int(self.log_starts[partition]))
        return offsets

    def ttl(self, has_ttl: bool, now_ms: int) -> TimeToLive:
        """Of messages that come into the log now. has_ttl: some have a time to live of their own."""
        default_ms = self.setting("ttl.ms")
        if default_ms < 0:
            return (now_ms if has_ttl else None), None
        return now_ms, default_ms

    def setting(self, key: str) -> Any:
        """The value set, else the default."""
        return self.config.get(key, TOPIC[key].default)


REQUESTS = (CreateTopic, AlterTopic, DeleteTopic, DeleteRecords)
RESULTS = (TopicDone,)
RECORDS = (TopicCreated, TopicAltered, PartitionsEnded, TopicDeleted, RecordsDeleted)
