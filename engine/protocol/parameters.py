"""Parameters: one declaration gives name, type, default, range and meaning. Validation and docs follow from it."""

import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from lakemq.tables.specs.messages import MAX_TTL_MS

from .errors import InvalidConfig
from .names import is_name
from .unsupported_settings import to_dotted_name, unknown_name_error

# Schemas of topics: the versions that a topic has had, and which of them is in force.


SCHEMA, SCHEMA_TYPE, COMPATIBILITY = "schema", "schema.type", "schema.compatibility"
"""Settings of a topic."""

DDL, JSON, AVRO = "ddl", "json", "avro"
SCHEMA_TYPES = (DDL, JSON, AVRO)

MAX_SCHEMA_CHARACTERS = 65_536
"""Longest schema. It is in the state of every client and in each row of the topic, so it must stay small."""

MAX_SCHEMAS = 100
"""Most versions that a topic may have had. All of them are in each row of the topic."""


class SchemaVersion(msgspec.Struct, frozen=True, gc=False):
    """A schema that a topic has, or had. step: the step that decided it."""

    version: int
    type: str
    schema: str
    step: int


def schema_from_config(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return type and text of the schema in a topic's settings; None if there is none."""
    text = config.get(SCHEMA, "")
    return (str(config.get(SCHEMA_TYPE, DDL)), str(text)) if text else None


def append_schema(
    versions: tuple[SchemaVersion, ...], config: Mapping[str, Any], step: int
) -> tuple[SchemaVersion, ...]:
    """Return the versions of a topic once it has these settings.

    A schema that differs from the last version becomes the next version. A topic whose schema is removed keeps its
    versions: messages that were written under them are still there.
    """
    schema = schema_from_config(config)
    if schema is None or (versions and schema == (versions[-1].type, versions[-1].schema)):
        return versions
    return (*versions, SchemaVersion(last_version(versions) + 1, *schema, step))


def last_version(versions: tuple[SchemaVersion, ...]) -> int:
    """Return the number of the newest version; 0 if there is none."""
    return versions[-1].version if versions else 0


# Parameters, and those of topics and groups.


Value = int | str | bool | tuple[int, ...]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FLAGS = {"true": True, "false": False}


_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|min|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def to_milliseconds(raw: object) -> object:
    """Return a duration such as `5s` as its number of milliseconds, and any other value unchanged."""
    match = _DURATION.fullmatch(raw) if isinstance(raw, str) else None
    return int(match[1]) * _MILLISECONDS[match[2]] if match else raw


@dataclass(frozen=True)
class Parameter:
    """A setting. The type of its default is the type of its values.

    A bool: True or False. An int: a whole number from `low` to `high`, both included. A tuple: a list of such numbers,
    as text separated by commas or spaces, in milliseconds or as durations such as `5s`, `30m`, `2h`, `1d`. A str: one
    of `choices`, or a text of the form `pattern`, such as `example`, or a free text of at most `high` characters, or
    else a name that a topic may have; empty if the default is empty.
    """

    name: str
    default: Value
    meaning: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    example: str = ""
    is_free_text: bool = False

    def parse(self, raw: object) -> Value:
        """Return `raw` as a value of this parameter. Raises InvalidConfig, which names the key."""
        value: Value | None
        if isinstance(self.default, bool):
            value = _FLAGS.get(str(raw).strip().lower()) if isinstance(raw, bool | str) else None
        elif isinstance(self.default, int):
            value = self._whole_number(raw)
        elif isinstance(self.default, tuple):
            value = self._whole_numbers(raw)
        else:
            text = str(raw) if self.pattern and type(raw) in (int, float) else raw
            value = text if isinstance(text, str) and self._is_text(text) else None
        if value is None:
            raise InvalidConfig(
                f"{self.name} is not valid.", found="None" if raw is None else raw, expected=self.expected
            )
        return value

    def _is_text(self, raw: str) -> bool:
        if self.choices:
            return raw in self.choices
        if self.is_free_text:
            return self.high is None or len(raw) <= self.high
        is_valid = re.fullmatch(self.pattern, raw) is not None if self.pattern else is_name(raw)
        return is_valid or (raw == "" and self.default == "")

    def _whole_numbers(self, raw: object) -> tuple[int, ...] | None:
        listed = re.split(r"\s*,\s*|\s+", raw.strip()) if isinstance(raw, str) else raw
        if not isinstance(listed, list | tuple) or not listed:
            return None
        numbers = [self._whole_number(to_milliseconds(element)) for element in listed]
        return None if None in numbers else tuple(number for number in numbers if number is not None)

    def _whole_number(self, raw: object) -> int | None:
        number: int | None = None
        if isinstance(raw, str):
            number = int(raw) if _WHOLE_NUMBER.fullmatch(raw.strip()) else None
        elif not isinstance(raw, bool):
            with suppress(TypeError):  # numpy's integers are numbers, too
                number = operator.index(raw)  # type: ignore[arg-type]
        return number if number is not None and self._within(number) else None

    def _within(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    @property
    def expected(self) -> str:
        if isinstance(self.default, bool):
            return "true or false"
        if self.pattern:
            return f"a text such as {self.example}"
        if self.is_free_text:
            return f"a text of at most {self.high} characters"
        if isinstance(self.default, str):
            return " or ".join(self.choices) or "a name of letters, digits, '.', '_' and '-'"
        unit = {"ms": "milliseconds", "bytes": "bytes"}.get(self.name.rsplit(".", 1)[-1], "")
        if isinstance(self.default, tuple):
            numbers = "whole numbers of milliseconds, or durations such as 5s, 30m and 2h, divided by commas or spaces"
            return f"{numbers}, each from {self.low} to {self.high}"
        return f"a whole number of {unit}".rstrip(" of") + f" from {self.low} to {self.high}"


class Parameters:
    """A set of parameters, against which values are checked."""

    def __init__(self, declared: Iterable[Parameter]) -> None:
        self.declared: dict[str, Parameter] = {p.name: p for p in declared}

    def defaults(self) -> dict[str, Value]:
        return {name: p.default for name, p in self.declared.items()}

    def parse(self, raw: Mapping[str, object]) -> dict[str, Value]:
        """Return the checked values. Raises InvalidConfig for an unknown key or a bad value."""
        return {key: self[key].parse(value) for key, value in raw.items()}

    def __getitem__(self, key: str) -> Parameter:
        if key not in self.declared:
            raise unknown_name_error(key, self.declared, "parameter", describe_owner(key))
        return self.declared[key]


def with_defaults(changes: Mapping[str, object], defaults: Mapping[str, Value]) -> dict[str, object]:
    """Return the changes to store. None stands for the default, and is left out if there is no default."""
    changed = {key: defaults.get(key) if value is None else value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


_MAX_MS = 2**63 - 1
_YEAR_MS = 365 * 86_400_000
"""An upper bound for delays: a time plus a year is still a valid time."""

TOPIC = Parameters(
    [
        Parameter("retention.ms", 604_800_000, "Age at which messages are deleted; -1 keeps them.", -1, _MAX_MS),
        Parameter(
            "retention.bytes",
            -1,
            "Size of a partition above which its oldest messages are deleted; -1: no bound.",
            -1,
            _MAX_MS,
        ),
        Parameter(
            "retention.waits.for.groups",
            False,
            "Whether messages stay, whatever their age and size, until groups with committed offsets have read them.",
        ),
        Parameter(
            "cleanup.policy",
            "delete",
            "What happens to old messages: delete, by retention.ms and retention.bytes; compact, only the newest of "
            "each key stays; refused if final.interval.ms is 0.",
            choices=("delete", "compact", "compact,delete", "delete,compact"),
        ),
        Parameter(
            "min.compaction.lag.ms", 0, "How old messages are before compaction, by their timestamps.", 0, _MAX_MS
        ),
        Parameter(
            "max.compaction.lag.ms",
            _MAX_MS,
            "Age at which messages are compacted, by their timestamps, whatever min.cleanable.dirty.ratio is.",
            1,
            _MAX_MS,
        ),
        Parameter(
            "delete.retention.ms",
            86_400_000,
            "How long a tombstone stays after compaction has removed the older messages of its key.",
            0,
            _MAX_MS,
        ),
        Parameter(
            "min.cleanable.dirty.ratio",
            "0.5",
            "A compaction begins when more than this share of a topic's bytes, from 0 to 1, is new since the last one.",
            pattern=r"0|0\.[0-9]{1,6}|1|1\.0",
            example="0.5",
        ),
        Parameter(
            "ttl.ms",
            -1,
            "Time to live of messages that have none of their own; -1: unlimited.",
            -1,
            MAX_TTL_MS,
        ),
        Parameter("max.message.bytes", 1_048_588, "Largest message: key, value and headers together.", 1, 2**31 - 1),
        Parameter(
            "message.timestamp.type",
            "CreateTime",
            "Which timestamp a message has: the producer's or the sequencer's.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        Parameter(
            "delay.mode",
            "exact",
            "When a delayed message is due: at its time, or its delay rounded up to a level.",
            choices=("exact", "levels"),
        ),
        Parameter("delay.slot.ms", 1000, "Times of delivery are rounded up to a multiple of this.", 1, 3_600_000),
        Parameter(
            "delay.levels",
            (
                5_000,
                10_000,
                30_000,
                60_000,
                120_000,
                300_000,
                600_000,
                1_200_000,
                1_800_000,
                2_700_000,
                3_600_000,
                7_200_000,
            ),
            "The possible delays with delay.mode levels, as in `5s 10s 30s 1m 2h`; plain numbers are milliseconds.",
            1,
            _YEAR_MS,
        ),
        Parameter(
            "delay.levels.overflow",
            "refuse",
            "A delay above the last level is refused, or becomes the last level.",
            choices=("refuse", "clamp"),
        ),
        Parameter(
            "delay.max.pending", -1, "Largest number of waiting messages; beyond it publishes fail.", -1, _MAX_MS
        ),
        Parameter(
            "dead.letter.topic",
            "",
            "Topic for messages that a queue group gives up; empty: the topic's name with .dlq, created when needed.",
        ),
        Parameter(
            "dead.letter.expired",
            True,
            "Whether messages that expire before a queue group has them become dead letters.",
        ),
        Parameter(
            SCHEMA,
            "",
            "Schema of the values, as text; empty: values are not checked.",
            high=MAX_SCHEMA_CHARACTERS,
            is_free_text=True,
        ),
        Parameter(
            SCHEMA_TYPE,
            DDL,
            "Language of the schema: Spark's DDL of a struct, or JSON Schema, for JSON values; or Avro.",
            choices=SCHEMA_TYPES,
        ),
        Parameter(
            COMPATIBILITY,
            "backward",
            "What a new schema must allow: backward, that it reads values of the old one; forward, that the old one "
            "reads its values; full, both; none, nothing.",
            choices=("backward", "forward", "full", "none"),
        ),
        Parameter("partitioner", "xxhash64", "Hash of the key; murmur2 is Kafka's.", choices=("xxhash64", "murmur2")),
    ]
)

GROUP = Parameters(
    [
        Parameter(
            "group.protocol",
            "queue",
            "When a partition moves to another member: cooperative, when its owner releases it; queue, when its "
            "owner has acknowledged its messages; classic, when all members have given up all partitions.",
            choices=("queue", "cooperative", "classic"),
        ),
        Parameter(
            "group.assignor",
            "cooperative-sticky",
            "How partitions are assigned: range (the default in classic groups), roundrobin, sticky, "
            "cooperative-sticky, or a plug-in's name. If it is set, every member must support it; else members choose.",
        ),
        Parameter(
            "group.initial.rebalance.delay.ms",
            3_000,
            "In classic groups: how long the first member of an empty group waits for others.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "scheduled.rebalance.max.delay.ms",
            0,
            "In cooperative groups: how long partitions of a lost member wait for it before others get them.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "rebalance.delay.ms",
            5_000,
            "In queue groups: how long partitions of a member that left or was lost wait before others get them.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "max.handoff.ms",
            3_000,
            "In queue groups: how long a partition that must move waits until its owner has acknowledged its messages.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "max.delivered.unacked.msgs.per.flow",
            10_000,
            "In queue groups: unacknowledged messages that a member may have.",
            1,
            10_000_000,
        ),
        Parameter(
            "max.redelivery.count",
            5,
            "In queue groups: how often a message is delivered again before it is given up; -1: unlimited.",
            -1,
            1_000_000,
        ),
        Parameter(
            "nack.order",
            "partition",
            "In queue groups: whether a message that waits to be delivered again holds up those after it.",
            choices=("partition", "none"),
        ),
        Parameter(
            "nack.backoff.ms",
            0,
            "In queue groups: how long a message waits after it is given back; the wait doubles each time.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "nack.backoff.max.ms",
            60_000,
            "In queue groups: the longest wait of a message that is given back.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "ack.mode",
            "explicit",
            "In queue groups: with auto, a poll acknowledges the messages of the poll before it.",
            choices=("explicit", "auto"),
        ),
        Parameter(
            "isolation.level",
            "read_committed",
            "In queue groups: whether messages of open transactions are delivered.",
            choices=("read_committed", "read_uncommitted"),
        ),
        Parameter(
            "offsets.retention.ms",
            604_800_000,
            "How long a group without members keeps its offsets; the default is the engine's setting; -1 keeps them.",
            -1,
            _MAX_MS,
        ),
    ]
)

MEMBER = Parameters(
    [
        Parameter(
            "session.timeout.ms",
            45_000,
            "How long a member may send no heartbeat before it is lost. It must be longer than the heartbeat interval, "
            "and should be at least three times as long; with less, a warning is logged.",
            6_000,
            1_800_000,
        ),
        Parameter("heartbeat.interval.ms", 3_000, "How often a member's process sends a heartbeat.", 1, 3_600_000),
        Parameter(
            "max.poll.interval.ms",
            300_000,
            "How long a member may go without `poll` before it is lost; at least the heartbeat interval.",
            1,
            2**40,
        ),
        Parameter(
            "auto.offset.reset",
            "earliest",
            "Where a consumer begins if its group has committed nothing, or if the offset that it committed was "
            "deleted. `none` raises `NO_OFFSET_FOR_PARTITION` or `OFFSET_OUT_OF_RANGE`.",
            choices=("earliest", "latest", "none"),
        ),
    ]
)
"""Options of consumers whose defaults a settings file may change."""

_OWNERS = (
    (TOPIC, "it is a setting of topics: mq.topics.create(topic, config={...})"),
    (GROUP, "it is a setting of groups: mq.groups.create(group, config={...})"),
    (MEMBER, "it is an option of mq.consumer"),
)


def describe_owner(name: object) -> str | None:
    """Return what has a setting of this name, or None if neither topics, groups nor consumers have it."""
    plain = to_dotted_name(name) if isinstance(name, str) else None
    return next((text for parameters, text in _OWNERS if plain in parameters.declared), None)
