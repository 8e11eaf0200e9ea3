"""Topics as a user handles them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..protocol.errors import InvalidConfig, InvalidPartitions, InvalidTopic
from ..protocol.parameters import TOPIC
from ..protocol.values.state import State
from ..protocol.values.topics import (
    LOG_TRANSITIONS,
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Topic,
    TopicDone,
)
from .arguments import flag, mapped, offsets, texts, topic_name, whole_number
from .requester import Requester

__all__ = ["LOG_TRANSITIONS", "TopicDescription", "Topics", "parse_config"]

T = TypeVar("T")


@dataclass(frozen=True)
class TopicDescription:
    """A topic: its settings (those set, and all with defaults) and how far its partitions reach.

    partitions: that take what is published. After them come, in the lists, those that drain, and those that have ended:
    partition_states says of each what it is.
    """

    topic: str
    topic_id: int
    partitions: int
    config: dict[str, Any]
    settings: dict[str, Any]
    subscriptions: list[str]
    beginning_offsets: list[int]
    end_offsets: list[int]
    partition_states: list[str]

    @property
    def message_count(self) -> int:
        return sum(self.end_offsets) - sum(self.beginning_offsets)


class Look(Protocol):
    """At topics and partitions as of the newest step, none of which is kept: they change."""

    def __call__(self, what: Callable[[State], T]) -> T: ...


class Topics:
    """Create, list, describe, alter and delete topics."""

    def __init__(self, requester: Requester, look: Look, changed: Callable[[], None]) -> None:
        """changed: to be told of every change this one makes."""
        self._requester, self._look, self._changed = requester, look, changed

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
        request = CreateTopic(
            topic_name("topic", topic),
            whole_number("partitions", partitions, error=InvalidPartitions),
            _checked_config(config),
            texts("subscriptions", subscriptions, InvalidTopic),
        )
        if flag("exist_ok", exist_ok):
            existing = self._look(lambda state: _description(state.topic(topic)) if topic in state.topic_ids else None)
            if existing is not None and existing.partitions == partitions:
                return existing
        self._ask(request)
        return self.describe(topic)

    def list(self) -> list[TopicDescription]:
        """All topics, by name."""
        return self._look(lambda state: [_description(state.topic(name)) for name in sorted(state.topic_ids)])

    def describe(self, topic: str) -> TopicDescription:
        """One topic. Raises UnknownTopicOrPartition, InvalidTopic."""
        name = topic_name("topic", topic)
        return self._look(lambda state: _description(state.topic(name)))

    def alter(
        self,
        topic: str,
        config: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        subscriptions: Sequence[str] | None = None,
        force: bool = False,
    ) -> TopicDescription:
        """Set or (with None) reset settings, change the number of partitions, replace subscriptions.

        force: also to fewer partitions: what is published goes to those that are left, the last ones drain. Raises
        UnknownTopicOrPartition, InvalidTopic, InvalidConfig; InvalidPartitions: there are more.
        """
        wanted = None if subscriptions is None else texts("subscriptions", subscriptions, InvalidTopic)
        number = None if partitions is None else whole_number("partitions", partitions, error=InvalidPartitions)
        self._ask(AlterTopic(topic_name("topic", topic), _checked_config(config), number, wanted, flag("force", force)))
        return self.describe(topic)

    def delete(self, topic: str) -> None:
        """The topic and all it holds are gone. Raises UnknownTopicOrPartition, InvalidTopic."""
        self._ask(DeleteTopic(topic_name("topic", topic)))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset per partition; -1 deletes all there are."""
        self._ask(DeleteRecords(topic_name("topic", topic), offsets("before", before)))

    def _ask(self, request: CreateTopic | AlterTopic | DeleteTopic | DeleteRecords) -> TopicDone | None:
        result = self._requester.ask(request)
        self._changed()
        return result if isinstance(result, TopicDone) else None


def _checked_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings with checked values, None where one is reset. Raises InvalidConfig."""
    given = {} if config is None else mapped("config", config, InvalidConfig)
    return {TOPIC[key].name: None if value is None else TOPIC[key].parse(value) for key, value in given.items()}


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
        partition_states=[topic.status(partition).value for partition in range(topic.log_count)],
    )
