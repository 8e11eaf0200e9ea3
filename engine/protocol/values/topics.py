"""Topics: what may be asked of them, what is decided, what is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import UnknownTopicOrPartition
from ..parameters import TOPIC
from .base import Count, Number, Record, Request, Result
from .deliveries import Deliveries

MAX_PARTITIONS = 100_000
"""Of a topic."""


class CreateTopic(Request, frozen=True, tag="create_topic"):
    topic: str
    partitions: int
    config: dict[str, Any] = {}
    subscriptions: list[str] = []


class AlterTopic(Request, frozen=True, tag="alter_topic"):
    """`config` sets keys, null resets one to its default; `partitions` and `subscriptions` replace what is there."""

    topic: str
    config: dict[str, Any] = {}
    partitions: int | None = None
    subscriptions: list[str] | None = None


class DeleteTopic(Request, frozen=True, tag="delete_topic"):
    topic: str


class DeleteRecords(Request, frozen=True, tag="delete_records"):
    """Partition -> offset before which all is deleted; -1 stands for the high watermark."""

    topic: str
    before: dict[int, int]


class TopicRef(msgspec.Struct, frozen=True, array_like=True):
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


class TopicDeleted(Record, frozen=True, tag="topic_deleted"):
    """partitions: how many it had."""

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


@dataclass
class Topic:
    """A topic and its partitions; `high_watermarks[p]` is the offset the next message of partition p gets.

    open_transactions: partition -> producer_id -> first offset of that producer's open transaction; redrives: partition
    -> which of its dead letters are to go back where they come from (dying), or are done with (acknowledged).
    """

    topic_id: int
    topic: str
    config: dict[str, Any]
    subscriptions: list[str]
    high_watermarks: Offsets
    log_starts: Offsets
    open_transactions: dict[int, dict[int, int]] = field(default_factory=dict)
    redrives: dict[int, Deliveries] = field(default_factory=dict)

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
    def partition_count(self) -> int:
        return len(self.high_watermarks)

    def place(self, partition: int) -> tuple[int, int]:
        """Its id, and this partition of it; raises UnknownTopicOrPartition."""
        if not 0 <= partition < self.partition_count:
            raise UnknownTopicOrPartition(
                f"{self.topic} has no such partition.", found=partition, expected=f"0 to {self.partition_count - 1}"
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

    def setting(self, key: str) -> Any:
        """The value set, else the default."""
        return self.config.get(key, TOPIC[key].default)


REQUESTS = (CreateTopic, AlterTopic, DeleteTopic, DeleteRecords)
RESULTS = (TopicDone,)
RECORDS = (TopicCreated, TopicAltered, TopicDeleted, RecordsDeleted)
