"""The fetches of one poll: one per topic, over the offsets that the poll moves past."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ..fetch.fetch_result import FetchResult
from ..offsets import TopicPartition
from .poll_sizes import poll_sizes

TryToFetch = Callable[[str, int, Mapping[int, int], Mapping[int, int]], FetchResult | None]
"""Topic, topic id, partition -> start, partition -> end; returns None if any of it was deleted meanwhile."""


def fetch_parts(
    fetch: TryToFetch,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, int],
    all_places: Collection[TopicPartition],
) -> list[FetchResult] | None:
    """Fetch the offsets from `starts` to `ends`, topic by topic; return None if any of them were deleted meanwhile.

    Args:
        fetch: fetches ranges of one topic.
        starts: (topic, partition) -> first offset, at least for the partitions in `ends`.
        ends: (topic, partition) -> end offset (exclusive).
        topic_ids: of these topics.
        all_places: partitions of the consumer. If there is nothing to fetch, one of their topics is fetched without
            offsets, so that a batch without messages is a table and a DataFrame as well.
    """
    parts = []
    for topic in sorted({topic for topic, _ in ends} or {topic for topic, _ in list(all_places)[:1]}):
        topic_ends = {partition: end for (name, partition), end in ends.items() if name == topic}
        topic_starts = {partition: starts[topic, partition] for partition in topic_ends}
        part = fetch(topic, topic_ids[topic], topic_starts, topic_ends)
        if part is None:
            return None
        parts.append(part)
    return parts


def cut_to_messages(
    ends: Mapping[TopicPartition, int], parts: Iterable[FetchResult], max_records: int
) -> dict[TopicPartition, int]:
    """Return smaller `ends`, so that the parts have at most `max_records` messages, evenly from all partitions.

    A partition that is cut ends at the first message that is left out.
    """
    offsets = {(part.plan.topic, partition): at for part in parts for partition, at in part.offsets().items()}
    sizes = poll_sizes({place: len(at) for place, at in offsets.items()}, max_records)
    return {**ends, **{place: int(at[sizes[place]]) for place, at in offsets.items() if sizes[place] < len(at)}}
