"""Fetch what one poll of a consumer reads: evenly from its partitions, one range of offsets in each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ...protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ..fetch.fetch_result import FetchResult
from ..fetch.planning.plan import Isolation
from ..offsets import TopicPartition

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
            all_places: partitions of the consumer. If there is nothing to fetch, one of their topics is fetched
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
            fetched = self.fetch(topic, isolation=self.isolation, start=start, end=end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None
        return fetched if fetched.plan.topic_id == topic_id else None


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
