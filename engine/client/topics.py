"""The API for topics: `mq.topics`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..namespace.process import ProcessBound
from ..protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    RequestTimedOut,
    StaleTopicMetadata,
    StorageError,
    TopicAlreadyExists,
)
from ..protocol.parameters import SCHEMA, TOPIC, SchemaVersion
from ..protocol.values.state import State
from ..protocol.values.topics import (
    MAX_PARTITIONS,
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Topic,
    TopicDone,
)
from .arguments import parse_flag, parse_mapping, parse_offsets, parse_texts, parse_topic_name, parse_whole_number
from .html_table import build_field_table, build_html_table
from .requests.requester import Requester
from .schemas.compatibility import check_changed_schema, check_new_schema
from .schemas.topic_schema import TopicSchema, open_topic_schema

__all__ = ["MAX_PARTITIONS", "TopicDescription", "Topics", "parse_config"]

T = TypeVar("T")

_ATTEMPTS = 5
"""Attempts at a change while other clients change the schema of the topic."""


@dataclass(frozen=True)
class TopicDescription:
    """A topic: its settings and its partitions.

    Attributes:
        partitions: number of partitions that take new messages. In the lists below, partitions that drain and that
            have ended come after them.
        config: the settings that were set.
        settings: all settings, with defaults.
        last_stable_offsets: up to which committed messages are readable; at most the end offset.
        partition_states: state of each partition.
        schemas: all versions of the schema, with type, text and the step that decided each. The last one is in force,
            unless the setting `schema` is empty.
    """

    topic: str
    topic_id: int
    partitions: int
    config: dict[str, Any]
    settings: dict[str, Any]
    subscriptions: list[str]
    beginning_offsets: list[int]
    last_stable_offsets: list[int]
    end_offsets: list[int]
    partition_states: list[str]
    schemas: list[SchemaVersion] = field(default_factory=list)

    @property
    def offset_count(self) -> int:
        """Number of offsets in the log: messages, records of open and aborted transactions, and markers."""
        return sum(self.end_offsets) - sum(self.beginning_offsets)

    def _repr_html_(self) -> str:
        return build_field_table(self, f"topic {self.topic}")


class QueryNewestState(Protocol):
    """A function that calls `query` with topics and partitions as of the newest step.

    `query` must not keep the state or parts of it: they change afterwards.
    """

    def __call__(self, query: Callable[[State], T], /) -> T: ...


class Topics(ProcessBound):
    """Create, list, describe, alter and delete topics."""

    def __init__(self, requester: Requester, look: QueryNewestState, on_change: Callable[[], None]) -> None:
        """on_change: called after each change made through this object."""
        self._requester, self._look, self._on_change = requester, look, on_change

    def create(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        subscriptions: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> TopicDescription:
        """Create a topic.

        Args:
            topic: its name.
            partitions: its number of partitions.
            config: settings of the topic. The others have their defaults. A `schema` of JSON Schema or Avro may be a
                dictionary.
            subscriptions: patterns of destinations whose messages the topic receives, too.
            exist_ok: accept a topic that exists with the same number of partitions, settings and subscriptions.

        Raises:
            InvalidTopic, InvalidPartitions, InvalidConfig: an argument is not valid.
            MissingExtra: the topic gets a schema, and the extra `schemas` is not installed.
            TopicAlreadyExists: the topic exists; with `exist_ok`, the error names what differs.
        """
        request = CreateTopic(
            parse_topic_name("topic", topic),
            parse_whole_number("partitions", partitions, error=InvalidPartitions),
            parse_settings(config),
            parse_texts("subscriptions", subscriptions, InvalidTopic),
        )
        check_new_schema(request.config)
        may_exist = parse_flag("exist_ok", exist_ok)
        if may_exist and (existing := self._find_existing(request)):
            return existing
        try:
            self._ask(request)
        except TopicAlreadyExists:
            if may_exist and (existing := self._find_existing(request)):
                return existing  # another client has created it meanwhile
            raise
        return self._describe_changed(request.topic)

    def _describe_changed(self, name: str) -> TopicDescription:
        """Return a topic that was created or changed just now. Raises RequestTimedOut if it cannot be read."""
        try:
            return self.describe(name)
        except StorageError as error:
            raise RequestTimedOut(
                f"The request was decided, but topic {name} cannot be read to return it. Describe it later.",
                found=str(error),
            ) from error

    def _find_existing(self, request: CreateTopic) -> TopicDescription | None:
        """Return the topic if it exists. Raises TopicAlreadyExists if it differs from the request."""
        name = request.topic
        existing = self._look(lambda state: _describe_topic(state.topic(name)) if name in state.topic_ids else None)
        if existing is not None:
            _check_same_topic(existing, request)
        return existing

    def list(self) -> list[TopicDescription]:
        """Return all topics, sorted by name."""
        return self._look(lambda state: [_describe_topic(state.topic(name)) for name in sorted(state.topic_ids)])

    def _repr_html_(self) -> str:
        topics = self.list()
        rows = ((topic.topic, topic.partitions, topic.offset_count, topic.config) for topic in topics)
        return build_html_table(f"{len(topics)} topics", ("topic", "partitions", "offsets", "config"), rows)

    def describe(self, topic: str) -> TopicDescription:
        """Return a topic. Raises UnknownTopicOrPartition, InvalidTopic."""
        name = parse_topic_name("topic", topic)
        return self._look(lambda state: _describe_topic(state.topic(name)))

    def alter(
        self,
        topic: str,
        config: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        subscriptions: Sequence[str] | None = None,
        force: bool = False,
    ) -> TopicDescription:
        """Change a topic, and return it.

        Args:
            topic: its name.
            config: settings to set; None as a value resets a setting to its default.
            partitions: the new number of partitions.
            subscriptions: the new subscriptions, which replace the old ones.
            force: allow fewer partitions. New messages go to the remaining ones; the others drain.

        Raises:
            UnknownTopicOrPartition, InvalidTopic, InvalidConfig: an argument is not valid.
            InvalidPartitions: the topic has more partitions, and `force` is not set.
            IncompatibleSchema: the setting schema.compatibility does not admit the new schema.
            MissingExtra: the schema changes, and the extra `schemas` is not installed.
        """
        new_subscriptions = None if subscriptions is None else parse_texts("subscriptions", subscriptions, InvalidTopic)
        number = None if partitions is None else parse_whole_number("partitions", partitions, error=InvalidPartitions)
        name, changes, forced = parse_topic_name("topic", topic), parse_settings(config), parse_flag("force", force)
        for attempt in range(_ATTEMPTS):
            checked = self._check_schema(name, changes)
            try:
                self._ask(AlterTopic(name, changes, number, new_subscriptions, forced, checked))
                break
            except StaleTopicMetadata:  # another client has changed the schema since we compared ours
                if attempt == _ATTEMPTS - 1:
                    raise
        return self._describe_changed(name)

    def _check_schema(self, name: str, changes: Mapping[str, Any]) -> int | None:
        """Return the version with which a changed schema was compared; None if the schema does not change."""
        if not any(key.startswith(SCHEMA) for key in changes):
            return None
        config, versions = self._look(lambda state: (dict(state.topic(name).config), state.topic(name).schemas))
        return check_changed_schema(name, config, versions, changes)

    def schema(self, topic: str, version: int | None = None) -> TopicSchema:
        """Return a topic's schema, which encodes, checks and parses values.

        Args:
            topic: name of the topic.
            version: number of a version. Default: the newest one.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            InvalidRequest: the topic has no schema, or no such version.
            MissingExtra: the extra `schemas` is not installed.
        """
        name = parse_topic_name("topic", topic)
        number = None if version is None else parse_whole_number("version", version)
        return open_topic_schema(name, lambda: self._look(lambda state: state.topic(name).schemas), number)

    def delete(self, topic: str) -> None:
        """Delete a topic with all its messages. Raises UnknownTopicOrPartition, InvalidTopic."""
        self._ask(DeleteTopic(parse_topic_name("topic", topic)))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset per partition. Offset -1 deletes all records of the partition."""
        self._ask(DeleteRecords(parse_topic_name("topic", topic), parse_offsets("before", before)))

    def _ask(self, request: CreateTopic | AlterTopic | DeleteTopic | DeleteRecords) -> TopicDone | None:
        result = self._requester.ask(request)
        self._on_change()
        return result if isinstance(result, TopicDone) else None


def _check_same_topic(existing: TopicDescription, request: CreateTopic) -> None:
    requested = {"partitions": request.partitions, **request.config}
    actual: dict[str, Any] = {"partitions": existing.partitions, **existing.settings}
    if request.subscriptions:
        requested["subscriptions"] = sorted(request.subscriptions)
        actual["subscriptions"] = sorted(existing.subscriptions)
    different = [key for key, value in requested.items() if _tuple_to_list(actual[key]) != _tuple_to_list(value)]
    if different:
        raise TopicAlreadyExists(
            f"The topic {existing.topic} exists with another value of {', '.join(different)}.",
            found={key: actual[key] for key in different},
            expected=f"{ {key: requested[key] for key in different} }. Change the topic with topics.alter",
        )


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def parse_settings(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings with checked values as in JSON; None resets a setting. Raises InvalidConfig."""
    settings = {} if config is None else parse_mapping("config", config, InvalidConfig)
    return {
        TOPIC[key].name: None if value is None else _tuple_to_list(TOPIC[key].parse(_dict_to_json(key, value)))
        for key, value in settings.items()
    }


def _dict_to_json(key: str, value: Any) -> Any:
    return json.dumps(value) if key == SCHEMA and isinstance(value, Mapping) else value


def parse_config(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` settings of a command line. Raises InvalidConfig for another form, or a repeated key."""
    config: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig("A setting must be written key=value.", found=pair)
        if key in config:
            raise InvalidConfig(
                "A setting is given twice.", found=pair, expected=f"either {key}={config[key]} or this one"
            )
        config[key] = value
    return config


def _describe_topic(topic: Topic) -> TopicDescription:
    return TopicDescription(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=topic.partition_count,
        config=dict(topic.config),
        settings={**TOPIC.defaults(), **topic.config},
        subscriptions=list(topic.subscriptions),
        beginning_offsets=topic.log_starts.tolist(),
        last_stable_offsets=topic.last_stable_offsets.tolist(),
        end_offsets=topic.high_watermarks.tolist(),
        partition_states=[topic.status(partition).value for partition in range(topic.log_count)],
        schemas=list(topic.schemas),
    )
