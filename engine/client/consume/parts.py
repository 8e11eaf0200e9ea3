"""What the parts of a consumer share: its lock, its clock, and what fetches and waits for it."""

import threading
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from ...namespace.clock import Clock
from ...namespace.process import OwnLock
from ...protocol.errors import IllegalState
from ..arguments import parse_partition, parse_topic_name
from ..fetch.fetcher import RangeFetcher, StepWaiter
from ..offsets import TopicPartition
from ..requests.requester import Requester
from .batch import ExplainTransactions

Moves = dict[TopicPartition, Any]
"""(topic, partition) -> how a poll has moved on in it, for `undo_moves`. Each reader has its own kind of values."""


def check_assignment(tp: TopicPartition, topic_partitions: Container[TopicPartition]) -> None:
    """Raise IllegalState unless the partition is one of `topic_partitions`."""
    parse_topic_name("topic", tp[0])
    parse_partition(tp[1])
    if tp not in topic_partitions:
        raise IllegalState("The partition is not assigned to this consumer.", found=f"{tp[0]}-{tp[1]}")


class ConsumerLock(OwnLock):
    """The lock that a consumer holds for every call of its parts. A callback of the consumer may take it again."""

    def __init__(self) -> None:
        super().__init__("This consumer", threading.RLock())
        self.is_closed = False

    def check_open(self) -> None:
        """Raise IllegalState if the consumer is closed."""
        if self.is_closed:
            raise IllegalState("The consumer is closed.")


@dataclass(frozen=True)
class ConsumerParts:
    """What the parts of one consumer share. Nothing here refers to the consumer, which would then never be garbage.

    Attributes:
        group: the group that the consumer reads for.
        requester: sends requests to the sequencer.
        fetcher: fetches the messages.
        clock: the consumer's clock.
        waiter: waits until messages may have come.
        explain_transactions: names the open transactions that hold partitions back.
        lock: is held for every call of the parts, unless they say otherwise.
    """

    group: str
    requester: Requester
    fetcher: RangeFetcher
    clock: Clock
    waiter: StepWaiter
    explain_transactions: ExplainTransactions
    lock: ConsumerLock = field(default_factory=ConsumerLock)
