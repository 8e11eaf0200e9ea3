"""Where a publish goes: the topics a destination reaches, and how their keys are placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...protocol.errors import UnknownTopicOrPartition
from ...protocol.hashing import Partitioner
from ...protocol.names import check_destination, reached
from ...protocol.values.state import State
from ...protocol.values.topics import Topic, TopicRef
from .delaying import DelayRule
from .placing import Copy

_Placement: TypeAlias = tuple[int, Partitioner, int, DelayRule]


@dataclass(frozen=True)
class Route:
    """A destination, resolved against the topics as of `metadata_step`."""

    destination: str
    topics: tuple[TopicRef, ...]
    copies: tuple[Copy, ...]
    metadata_step: int


def find_route(state: State, destination: str) -> Route:
    """The route of a destination. Raises InvalidTopic (not a name), UnknownTopicOrPartition (nobody receives it)."""
    check_destination(destination)
    names = reached(destination, state.topic_ids, state.subscribers)
    if not names:
        raise UnknownTopicOrPartition("No topic has this name or subscribes to it.", found=destination)
    topics = [state.topic(name) for name in names]
    by_placement: dict[_Placement, list[int]] = {}
    for i, topic in enumerate(topics):
        by_placement.setdefault(_placement(topic), []).append(i)
    return Route(
        destination,
        tuple(TopicRef(t.topic, t.topic_id, t.partition_count) for t in topics),
        tuple(Copy(*placement[:3], tuple(indexes), placement[3]) for placement, indexes in by_placement.items()),
        state.step,
    )


class RouteCache:
    """Routes as they were looked up last; shared by all publishers of a connection, hence thread-safe.

    What has become wrong about one the sequencer tells (StaleTopicMetadata), so that they may be of any age.
    """

    def __init__(self, look: Callable[[Callable[[State], Route]], Route]) -> None:
        """look: at topics as of now."""
        self._look = look
        self._known: dict[str, Route] = {}

    def find(self, destination: str) -> tuple[Route, bool]:
        """The route, and whether it was looked up just now. Raises InvalidTopic, UnknownTopicOrPartition."""
        known = self._known
        if destination in known:
            return known[destination], False
        # kept where it was looked up: who says meanwhile that topics have changed has begun another
        route = known[destination] = self._look(lambda state: find_route(state, destination))
        return route, True

    def forget(self) -> None:
        """Topics have changed: look at them again."""
        self._known = {}


def _placement(topic: Topic) -> _Placement:
    most_bytes = topic.setting("max.message.bytes")
    return topic.partition_count, topic.setting("partitioner"), most_bytes, delay_rule_of(topic)


def delay_rule_of(topic: Topic) -> DelayRule:
    """How it delays, by its settings."""
    levels_ms = sorted(topic.setting("delay.levels")) if topic.setting("delay.mode") == "levels" else ()
    return DelayRule(
        topic.setting("delay.slot.ms"),
        tuple(levels_ms),
        topic.setting("delay.levels.overflow") == "clamp",
        topic.setting("message.timestamp.type") == "LogAppendTime",
    )
