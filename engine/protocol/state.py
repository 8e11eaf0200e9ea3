"""What the sequencer knows. Always the fold of `evolve` over the journal, from a snapshot in the projections.

It holds one entry per topic, partition, producer, transactional id, group's partition, application and client, and
nothing per segment or message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .errors import UnknownTopicOrPartition
from .names import shown
from .parameters import TOPIC
from .records import TransactionStatus, UnitAppended
from .requests import AnyResult, OffsetCommit

Offsets = npt.NDArray[np.int64]


@dataclass
class Topic:
    """A topic and its partitions; `high_watermarks[p]` is the offset the next message of partition p gets.

    open_transactions: partition -> producer_id -> first offset of that producer's open transaction.
    """

    topic_id: int
    topic: str
    config: dict[str, Any]
    subscriptions: list[str]
    high_watermarks: Offsets
    log_starts: Offsets
    open_transactions: dict[int, dict[int, int]] = field(default_factory=dict)

    def copy(self) -> Topic:
        """The same, with partitions of its own."""
        open_transactions = {p: dict(firsts) for p, firsts in self.open_transactions.items()}
        return replace(
            self,
            high_watermarks=self.high_watermarks.copy(),
            log_starts=self.log_starts.copy(),
            open_transactions=open_transactions,
        )

    @property
    def partition_count(self) -> int:
        return len(self.high_watermarks)

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


@dataclass
class Producer:
    """An idempotent producer: its last five appends per (topic_id, partition), oldest first.

    transactional_id: the id it belongs to, and with which it is forgotten.
    """

    epoch: int
    seen_at_ms: int
    transactional_id: str | None = None
    units: dict[tuple[int, int], tuple[UnitAppended, ...]] = field(default_factory=dict)


class Ended(msgspec.Struct, frozen=True):
    """How the last transaction of an id ended, for who did not hear of it.

    producer_id, producer_epoch: of that transaction; reason: as in TransactionMoved.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    reason: str


class Transaction(msgspec.Struct):
    """A transactional id and, while it is Ongoing, its transaction. A structure of its own because it is stored whole.

    status: Prepare states last no longer than a step; part_count: publishes that were accepted, and groups whose
    offsets were; offsets: by group, with the topics' ids; error: why it can only be aborted; batch_id: of the last
    micro-batch committed, -1 before the first.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    seen_at_ms: int
    started_at_ms: int | None = None
    partitions: set[tuple[int, int]] = msgspec.field(default_factory=set)
    offsets: dict[str, list[tuple[int, OffsetCommit]]] = msgspec.field(default_factory=dict)
    part_count: int = 0
    error: str | None = None
    ended: Ended | None = None
    batch_id: int = -1


@dataclass(frozen=True)
class CommittedOffset:
    """How far a group has come in a partition."""

    offset: int
    metadata: str | None
    committed_at_ms: int


@dataclass
class Client:
    """A client process: its last letter and what was answered, kept for a repeat after a crash."""

    number: int
    results: list[AnyResult]
    seen_at_ms: int


@dataclass
class Application:
    """Last txn_version published by an application to a target."""

    version: int
    seen_at_ms: int


@dataclass
class State:
    """`now_ms` is the time of the last decision; `step` the last step folded in.

    topics: those that are there; a deleted one is gone, and its id is never used again. ongoing: transactional ids with
    an open transaction; offsets: group -> (topic_id, partition) -> how far it has come; lent: topics that a snapshot
    has as well, to be replaced (`own`) instead of changed.
    """

    step: int = 0
    now_ms: int = 0
    leader: str = ""
    leader_epoch: int = 0
    lease_ms: int = 0
    next_topic_id: int = 1
    next_producer_id: int = 0
    subscriptions_step: int = 0
    topics: dict[int, Topic] = field(default_factory=dict)
    topic_ids: dict[str, int] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    applications: dict[tuple[str, str], Application] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    ongoing: set[str] = field(default_factory=set)
    offsets: dict[str, dict[tuple[int, int], CommittedOffset]] = field(default_factory=dict)
    lent: set[int] = field(default_factory=set)

    def topic(self, name: str) -> Topic:
        """The topic of this name; raises UnknownTopicOrPartition."""
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition("There is no such topic.", found=shown(name))
        return self.topics[topic_id]

    def own(self, topic_id: int) -> Topic:
        """The topic, to be changed: a copy takes its place first where a snapshot has it as well."""
        if topic_id in self.lent:
            self.lent.discard(topic_id)
            self.topics[topic_id] = self.topics[topic_id].copy()
        return self.topics[topic_id]

    def snapshot(self) -> State:
        """The same, with topics that stay as they are while this one goes on; the rest is shared."""
        self.lent = set(self.topics)
        return replace(self, topics=dict(self.topics), topic_ids=dict(self.topic_ids), lent=set(self.topics))

    def subscriptions(self) -> dict[str, list[str]]:
        """Topic name -> subscriptions, for every topic."""
        return {topic.topic: topic.subscriptions for topic in self.topics.values()}
