"""The data of a namespace in the model: lists and dicts, row by row. No numpy, no Arrow, no shortcuts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lakemq.engine.protocol.values.producers import TransactionRef

TopicIdPartition = tuple[int, int]
"""topic_id and partition."""


class Refused(Exception):
    """A refusal, by the error's name."""


@dataclass(eq=False)
class Transaction:
    """outcome: "open", "committed" or "aborted"; ended_by: "producer", "operator", "fenced" or "timeout".

    parts: publishes that were accepted, and groups with offsets; failed: a part was refused; offsets: by group.
    """

    ref: TransactionRef | None = None
    started_at_ms: int = 0
    outcome: str = "open"
    ended_by: str = ""
    parts: int = 0
    failed: bool = False
    offsets: dict[str, dict[TopicIdPartition, int]] = field(default_factory=dict)


class Log(list["str | None"]):
    """A partition's messages by offset; a marker is None. Readers look at every one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.transactions: dict[int, Transaction] = {}
        """Offset -> the transaction of the message or marker, if it has one."""

    def add(self, values: Sequence[str | None], transaction: Transaction | None = None) -> int:
        """Append the messages and return the offset of the first."""
        first = len(self)
        self += values
        if transaction is not None:
            self.transactions.update(dict.fromkeys(range(first, len(self)), transaction))
        return first

    def holds(self, transaction: Transaction) -> bool:
        return any(other is transaction for other in self.transactions.values())

    @property
    def stable(self) -> int:
        open_offsets = [offset for offset, transaction in self.transactions.items() if transaction.outcome == "open"]
        return max(min(open_offsets, default=len(self)), self.start)

    def visible_messages(self, isolation: str) -> list[tuple[int, str]]:
        """Return offset and message of all that this isolation shows."""
        committed = isolation == "read_committed"
        return [
            (offset, value)
            for offset, value in enumerate(self[: self.stable if committed else None])
            if offset >= self.start and value is not None and not (committed and self._is_aborted(offset))
        ]

    def _is_aborted(self, offset: int) -> bool:
        transaction = self.transactions.get(offset)
        return transaction is not None and transaction.outcome == "aborted"


@dataclass
class Topic:
    """partitions: how many take publishes. They are the first ones of all partitions that ever existed."""

    topic_id: int
    topic: str
    subscriptions: list[str]
    logs: list[Log]
    partitions: int
    active: bool = True


@dataclass
class Producer:
    """transactional_id: the id to which the producer belongs."""

    epoch: int
    seen_at_ms: int
    transactional_id: str | None = None
    appended: dict[TopicIdPartition, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Place -> (sequence, count, offset) of its last five batches."""


@dataclass
class TransactionalId:
    """batch_id: the last micro-batch that was committed."""

    producer_id: int
    epoch: int
    timeout_ms: int = 0
    seen_at_ms: int = 0
    open: Transaction | None = None
    last: Transaction | None = None
    batch_id: int = -1


@dataclass
class Client:
    number: int
    results: list[Any]
    seen_at_ms: int


@dataclass
class Namespace:
    """last_epoch: the last epoch that a producer id gets; routing_step: the step that last changed subscriptions."""

    last_epoch: int = 2**15 - 2
    step: int = 0
    now_ms: int = 0
    routing_step: int = 0
    topics: dict[int, Topic] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    next_producer_id: int = 0
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    lost_files: set[int] = field(default_factory=set)
    ids: dict[str, TransactionalId] = field(default_factory=dict)
    offsets: dict[str, dict[TopicIdPartition, int]] = field(default_factory=dict)
    """Group -> its committed offsets."""

    def find_topic(self, name: str) -> Topic:
        for topic in self.topics.values():
            if topic.topic == name and topic.active:
                return topic
        raise Refused("UNKNOWN_TOPIC_OR_PARTITION")

    def active(self) -> list[Topic]:
        return [topic for topic in self.topics.values() if topic.active]

    def find_partition(self, topic: Topic, partition: int) -> TopicIdPartition:
        if not 0 <= partition < len(topic.logs):
            raise Refused("UNKNOWN_TOPIC_OR_PARTITION")
        return topic.topic_id, partition

    def log(self, tp: TopicIdPartition) -> Log:
        return self.topics[tp[0]].logs[tp[1]]

    def logs(self) -> dict[TopicIdPartition, Log]:
        """Return the logs of all topics that exist."""
        return {(t.topic_id, p): log for t in self.active() for p, log in enumerate(t.logs)}
