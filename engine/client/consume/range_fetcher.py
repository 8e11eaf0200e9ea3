"""Fetch ranges of a topic for a consumer, as long as it is the same topic and they are not deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ..fetch.fetch_result import FetchResult
from ..fetch.planning.plan import Isolation


class RangeFetcher:
    """Fetches for one consumer.

    Attributes:
        fetch: fetches ranges of a topic.
        isolation: which messages are visible. A queue group has its own setting, which may change.
    """

    def __init__(self, fetch: Callable[..., FetchResult], isolation: Isolation) -> None:
        self.fetch, self.isolation = fetch, isolation

    def try_to_fetch(
        self, topic: str, topic_id: int, start: Mapping[int, int], end: Mapping[int, int]
    ) -> FetchResult | None:
        """Fetch ranges of a topic; None: some of them, or all of the topic, were deleted meanwhile."""
        try:
            fetched = self.fetch(topic, isolation=self.isolation, start=start, end=end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None
        return fetched if fetched.plan.topic_id == topic_id else None
