"""Routes: the topics that a destination reaches, and how each places keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...protocol.errors import UnknownTopicOrPartition
from ...protocol.names import check_destination, find_reached_topics
from ...protocol.values.state import State
from ...protocol.values.topics import Topic, TopicRef
from ..schemas.topic_schema import build_schema_rule
from .delay_rule import DelayRule
from .placing import Copy


@dataclass(frozen=True)
class Route:
    """A destination, resolved against the topics as of `metadata_step`.

    retention_ms: topic_id -> retention.ms, for topics that delete messages by the publisher's timestamps.
    """

    destination: str
    topics: tuple[TopicRef, ...]
    copies: tuple[Copy, ...]
    metadata_step: int
    retention_ms: Mapping[int, int] = field(default_factory=dict)


def find_route(state: State, destination: str) -> Route:
    """Return the route of a destination. Raises InvalidTopic, UnknownTopicOrPartition (no topic receives it)."""
    check_destination(destination)
    names = find_reached_topics(destination, state.topic_ids, state.subscribers)
    if not names:
        raise UnknownTopicOrPartition("No topic has this name or subscribes to it.", found=destination)
    topics = [state.topic(name) for name in names]
    copies: dict[Copy, list[int]] = {}
    for i, topic in enumerate(topics):
        copies.setdefault(_build_copy(topic), []).append(i)
    return Route(
        destination,
        tuple(TopicRef(t.topic, t.topic_id, t.partition_count) for t in topics),
        tuple(copy._replace(topics=tuple(indexes)) for copy, indexes in copies.items()),
        state.step,
        {topic.topic_id: retention_ms for topic in topics if (retention_ms := _find_retention_ms(topic)) >= 0},
    )


def _find_retention_ms(topic: Topic) -> int:
    is_stamped_by_publisher = topic.setting("message.timestamp.type") == "CreateTime"
    deletes = "delete" in topic.setting("cleanup.policy")
    return int(topic.setting("retention.ms")) if is_stamped_by_publisher and deletes else -1


MAX_ROUTES = 10_000
"""Most routes that a connection keeps."""


class RouteCache:
    """Routes from the last look-up. All publishers of a connection share them; thread-safe.

    A route may be old: the sequencer refuses a stale one (StaleTopicMetadata), and the publisher looks it up again.
    """

    def __init__(self, query_state: Callable[[Callable[[State], Route]], Route]) -> None:
        """query_state: calls a function with the newest state."""
        self._query_state = query_state
        self._routes: dict[str, Route] = {}

    def find(self, destination: str) -> tuple[Route, bool]:
        """Return the route, and whether it was looked up just now. Raises InvalidTopic, UnknownTopicOrPartition."""
        routes = self._routes
        if destination in routes:
            return routes[destination], False
        return self.renew(destination), True

    def renew(self, destination: str) -> Route:
        """Look the route up, and keep it. Raises InvalidTopic, UnknownTopicOrPartition."""
        if len(self._routes) >= MAX_ROUTES:  # such as of a program that sends to a name per order
            self._routes = {}
        # stored in the dict of the look-up: if `forget` runs meanwhile, it has replaced the dict, and drops the route
        routes = self._routes
        route = routes[destination] = self._query_state(lambda state: find_route(state, destination))
        return route

    def forget(self) -> None:
        """Drop all routes, because topics have changed."""
        self._routes = {}


def _build_copy(topic: Topic) -> Copy:
    """Return the copy for a topic, without topics."""
    most_bytes = topic.setting("max.message.bytes")
    schema = None if topic.schema is None else build_schema_rule(topic.schemas)
    needs_key = "compact" in topic.setting("cleanup.policy")
    partitioner, delays = topic.setting("partitioner"), build_delay_rule(topic)
    return Copy(topic.partition_count, partitioner, most_bytes, (), delays, schema, needs_key)


def build_delay_rule(topic: Topic) -> DelayRule:
    """Return the delay rule of a topic, from its settings."""
    levels_ms = sorted(topic.setting("delay.levels")) if topic.setting("delay.mode") == "levels" else ()
    return DelayRule(
        topic.setting("delay.slot.ms"),
        tuple(levels_ms),
        topic.setting("delay.levels.overflow") == "clamp",
    )
