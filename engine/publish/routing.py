"""Where a publish goes: the topics a destination reaches, and how their keys are placed."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.errors import UnknownTopicOrPartition
from ..protocol.hashing import Partitioner
from ..protocol.names import check_destination, reached
from ..protocol.requests import TopicRef
from ..protocol.state import State, Topic
from .arrange import Copy


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
    names = reached(destination, state.subscriptions())
    if not names:
        raise UnknownTopicOrPartition("No topic has this name or subscribes to it.", found=destination)
    topics = [state.topic(name) for name in names]
    by_placement: dict[tuple[int, Partitioner, int], list[int]] = {}
    for i, topic in enumerate(topics):
        by_placement.setdefault(_placement(topic), []).append(i)
    return Route(
        destination,
        tuple(TopicRef(t.topic, t.topic_id, t.partition_count) for t in topics),
        tuple(Copy(*placement, tuple(indexes)) for placement, indexes in by_placement.items()),
        state.step,
    )


def _placement(topic: Topic) -> tuple[int, Partitioner, int]:
    return topic.partition_count, topic.setting("partitioner"), topic.setting("max.message.bytes")
