"""What the parts of a consumer share: its lock, its clock, and what fetches evenly from its partitions."""

import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...namespace.clock import Clock
from ...namespace.process import OwnLock
from ...protocol.errors import IllegalState, OffsetOutOfRange, UnknownTopicOrPartition
from ..arguments import parse_partition, parse_topic_name
from ..fetch.fetch_result import FetchResult
from ..fetch.fetcher import StepWaiter
from ..fetch.plan import Isolation
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


K = TypeVar("K")


class RangeFetcher:
    """Fetches for one consumer.

    Attributes:
        fetch: fetches ranges of a topic.
        isolation: which messages are visible. A queue group has its own setting, which may change.
    """

    def __init__(self, fetch: Callable[..., FetchResult], isolation: Isolation) -> None:
        self.fetch, self.isolation = fetch, isolation

    def fetch_topics(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, int],
        all_partitions: Collection[TopicPartition],
    ) -> list[FetchResult] | None:
        """Fetch the offsets from `starts` to `ends`, topic by topic; return None if any of them were deleted meanwhile.

        Args:
            starts: (topic, partition) -> first offset, at least for the partitions in `ends`.
            ends: (topic, partition) -> end offset (exclusive).
            topic_ids: of these topics.
            all_partitions: partitions of the consumer. If there is nothing to fetch, one of their topics is fetched
                without offsets, so that a batch without messages is a table and a DataFrame as well.
        """
        parts = []
        for topic in sorted({topic for topic, _ in ends} or {topic for topic, _ in list(all_partitions)[:1]}):
            topic_ends = {partition: end for (name, partition), end in ends.items() if name == topic}
            topic_starts = {partition: starts[topic, partition] for partition in topic_ends}
            part = self.try_to_fetch(topic, topic_ids[topic], topic_starts, topic_ends)
            if part is None:
                return None
            parts.append(part)
        return parts

    def try_to_fetch(
        self, topic: str, topic_id: int, start: Mapping[int, int], end: Mapping[int, int]
    ) -> FetchResult | None:
        """Fetch ranges of a topic; None: some of them, or all of the topic, were deleted meanwhile."""
        try:
            return self.fetch(topic, topic_id, self.isolation, start, end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None


def divide_room(available: Mapping[K, int], room: int) -> dict[K, int]:
    """Divide the room of a poll evenly among partitions, so that none starves and no room is wasted.

    Room that a partition cannot use goes to the others. A remainder that does not divide goes to those named first.

    Args:
        available: partition -> offsets that it could use.
        room: offsets to divide.

    Returns:
        Partition -> offsets, also for those that get none.
    """
    sizes = dict.fromkeys(available, 0)
    unsatisfied = [partition for partition, count in available.items() if count > 0]
    while room >= len(unsatisfied) > 0:
        share = room // len(unsatisfied)
        for partition in unsatisfied:
            more = min(share, available[partition] - sizes[partition])
            sizes[partition] += more
            room -= more
        unsatisfied = [partition for partition in unsatisfied if sizes[partition] < available[partition]]
    for partition in unsatisfied[:room]:
        sizes[partition] += 1
    return sizes


def cut_to_messages(
    ends: Mapping[TopicPartition, int], parts: Iterable[FetchResult], max_records: int
) -> dict[TopicPartition, int]:
    """Return smaller `ends`, so that the parts have at most `max_records` messages, evenly from all partitions.

    A partition that is cut ends at the first message that is left out.
    """
    offsets = {(part.plan.topic, partition): at for part in parts for partition, at in part.offsets().items()}
    sizes = divide_room({tp: len(at) for tp, at in offsets.items()}, max_records)
    return {**ends, **{tp: int(at[sizes[tp]]) for tp, at in offsets.items() if sizes[tp] < len(at)}}


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
        iteration_timeout_ms: `for message in consumer` ends when no message has come for so long; None: never.
        lock: is held for every call of the parts, unless they say otherwise.
    """

    group: str
    requester: Requester
    fetcher: RangeFetcher
    clock: Clock
    waiter: StepWaiter
    explain_transactions: ExplainTransactions
    iteration_timeout_ms: int | None = None
    lock: ConsumerLock = field(default_factory=ConsumerLock)
