"""Topics as a user handles them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .protocol.errors import InvalidConfig
from .protocol.parameters import TOPIC
from .protocol.requests import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, TopicDone
from .protocol.state import State, Topic
from .requester import Requester


@dataclass(frozen=True)
class TopicDescription:
    """A topic: its settings (those set, and all with defaults) and how far its partitions reach."""

    topic: str
    topic_id: int
    partitions: int
    config: dict[str, Any]
    settings: dict[str, Any]
    subscriptions: list[str]
    beginning_offsets: list[int]
    end_offsets: list[int]

    @property
    def message_count(self) -> int:
        return sum(self.end_offsets) - sum(self.beginning_offsets)


class Topics:
    """Create, list, describe, alter and delete topics."""

    def __init__(self, requester: Requester, state: Callable[[], State], changed: Callable[[], None]) -> None:
        """changed: to be told of every change this one makes."""
        self._requester, self._state, self._changed = requester, state, changed

    def create(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        subscriptions: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> TopicDescription:
        """A new topic. Raises InvalidTopic, InvalidPartitions, InvalidConfig, TopicAlreadyExists.

        exist_ok: a topic of this name and number of partitions may be there already.
        """
        known = self._state()
        if exist_ok and topic in known.topic_ids:
            existing = _description(known.topic(topic))
            if existing.partitions == partitions:
                return existing
        self._ask(CreateTopic(topic, partitions, _dict(config or {}), _list(subscriptions)))
        return self.describe(topic)

    def list(self) -> list[TopicDescription]:
        """All topics, by name."""
        return [_description(t) for t in sorted(self._state().topics.values(), key=lambda t: t.topic)]

    def describe(self, topic: str) -> TopicDescription:
        """One topic. Raises UnknownTopicOrPartition."""
        return _description(self._state().topic(topic))

    def alter(
        self,
        topic: str,
        config: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        subscriptions: Sequence[str] | None = None,
    ) -> TopicDescription:
        """Set or (with None) reset settings, add partitions, replace subscriptions."""
        listed = None if subscriptions is None else _list(subscriptions)
        self._ask(AlterTopic(topic, _dict(config or {}), partitions, listed))
        return self.describe(topic)

    def delete(self, topic: str) -> None:
        """The topic and all it holds are gone. Raises UnknownTopicOrPartition."""
        self._ask(DeleteTopic(topic))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset per partition; -1 deletes all there are."""
        self._ask(DeleteRecords(topic, _dict(before)))

    def _ask(self, request: CreateTopic | AlterTopic | DeleteTopic | DeleteRecords) -> TopicDone | None:
        result = self._requester.ask(request)
        self._changed()
        return result if isinstance(result, TopicDone) else None


def parse_config(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` settings of a command line. Raises InvalidConfig for another form, or a key that stands twice."""
    config: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig("A setting is written key=value.", found=pair)
        if key in config:
            raise InvalidConfig(
                "A setting stands twice.", found=pair, expected=f"{key}={config[key]} only, or this one"
            )
        config[key] = value
    return config


def _dict(given: Mapping[Any, Any]) -> dict[Any, Any]:
    """As a request has it; what is none is refused there, by name."""
    return dict(given) if isinstance(given, Mapping) else given


def _list(given: Sequence[str]) -> list[str]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given  # type: ignore[return-value]


def _description(topic: Topic) -> TopicDescription:
    return TopicDescription(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=topic.partition_count,
        config=dict(topic.config),
        settings={**TOPIC.defaults(), **topic.config},
        subscriptions=list(topic.subscriptions),
        beginning_offsets=topic.log_starts.tolist(),
        end_offsets=topic.high_watermarks.tolist(),
    )
