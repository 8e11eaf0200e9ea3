"""Parameters: one declaration gives name, type, default, range and meaning; validation and docs follow from it."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lakemq.tables.specs.messages import MAX_TTL_MS

from .errors import InvalidConfig
from .names import is_name
from .not_ours import NOT_OURS

Value = int | str | bool | tuple[int, ...]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class Parameter:
    """One setting; its default says of what kind it is.

    True or False; a whole number from `low` to `high` (both included); a tuple: a list of such numbers, in text divided
    by commas; text: one of `choices`, or without them a name that a topic may have, empty where the default is.
    """

    name: str
    default: Value
    meaning: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()

    def parse(self, raw: object) -> Value:
        """`raw` as this parameter's value; raises InvalidConfig naming the key."""
        value: Value | None
        if isinstance(self.default, bool):
            value = _FLAGS.get(str(raw).strip().lower()) if isinstance(raw, bool | str) else None
        elif isinstance(self.default, int):
            value = self._whole_number(raw)
        elif isinstance(self.default, tuple):
            value = self._whole_numbers(raw)
        else:
            value = raw if isinstance(raw, str) and self._is_text(raw) else None
        if value is None:
            raise InvalidConfig(f"{self.name} is not valid.", found=raw, expected=self.expected)
        return value

    def _is_text(self, raw: str) -> bool:
        if self.choices:
            return raw in self.choices
        return is_name(raw) or (raw == "" and self.default == "")

    def _whole_numbers(self, raw: object) -> tuple[int, ...] | None:
        listed = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(listed, list | tuple) or not listed:
            return None
        numbers = [self._whole_number(one) for one in listed]
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
        if isinstance(self.default, str):
            return " or ".join(self.choices) or "a name of letters, digits, '.', '_' and '-'"
        unit = {"ms": "milliseconds", "bytes": "bytes"}.get(self.name.rsplit(".", 1)[-1], "")
        what = "whole numbers, divided by commas, each" if isinstance(self.default, tuple) else "a whole number"
        return f"{what} of {unit}".rstrip(" of") + f" from {self.low} to {self.high}"


class Parameters:
    """A set of parameters, and values checked against them."""

    def __init__(self, declared: Iterable[Parameter]) -> None:
        self.declared: dict[str, Parameter] = {p.name: p for p in declared}

    def defaults(self) -> dict[str, Value]:
        return {name: p.default for name, p in self.declared.items()}

    def parse(self, raw: Mapping[str, object]) -> dict[str, Value]:
        """The values given, each checked; raises InvalidConfig for an unknown key or a bad value."""
        return {key: self[key].parse(value) for key, value in raw.items()}

    def __getitem__(self, key: str) -> Parameter:
        if key not in self.declared:
            if key in NOT_OURS:
                raise InvalidConfig(f"{key} is no setting of LakeMQ: {NOT_OURS[key]}.")
            near = difflib.get_close_matches(str(key), self.declared, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(sorted(self.declared))
            raise InvalidConfig("Unknown parameter.", found=key, expected=hint)
        return self.declared[key]


_MAX_MS = 2**63 - 1
_YEAR_MS = 365 * 86_400_000
"""Added to a time, it still is one."""

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
            "Whether neither age nor size deletes what a group with committed offsets has not come to.",
        ),
        Parameter("cleanup.policy", "delete", "What happens to old messages.", choices=("delete",)),
        Parameter(
            "ttl.ms",
            -1,
            "How long a message is delivered that has no time to live of its own; -1: for ever.",
            -1,
            MAX_TTL_MS,
        ),
        Parameter("max.message.bytes", 1_048_588, "Largest message: key, value and headers together.", 1, 2**31 - 1),
        Parameter(
            "message.timestamp.type",
            "CreateTime",
            "Whose time a message bears: the producer's or the sequencer's.",
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
            "Delays that there are with delay.mode levels, in milliseconds.",
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
            "delay.max.pending", -1, "Messages that may wait at once; above it publishes are refused.", -1, _MAX_MS
        ),
        Parameter(
            "dead.letter.topic",
            "",
            "Where messages go that a queue group gives up; empty: to the topic's name with .dlq, made when needed.",
        ),
        Parameter(
            "dead.letter.expired",
            True,
            "Whether messages that expire before a queue group has them become dead letters.",
        ),
        Parameter("partitioner", "xxhash64", "Hash of the key; murmur2 is Kafka's.", choices=("xxhash64", "murmur2")),
    ]
)

GROUP = Parameters(
    [
        Parameter(
            "group.protocol",
            "queue",
            "When a partition changes hands: cooperative, when its owner says that it is done with it; queue, when "
            "what it has of it is acknowledged; classic, when all members have given up all that they had.",
            choices=("queue", "cooperative", "classic"),
        ),
        Parameter(
            "group.assignor",
            "cooperative-sticky",
            "Who is to have which partition: range (the default in classic groups), roundrobin, sticky, "
            "cooperative-sticky, or a plug-in's name.",
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
            "In cooperative groups: how long partitions of a member that was lost wait for it before others get them.",
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
            "In queue groups: how long a partition that is to move waits for what its owner has of it.",
            0,
            _YEAR_MS,
        ),
        Parameter(
            "max.delivered.unacked.msgs.per.flow",
            10_000,
            "In queue groups: messages that a member may have been given and not have acknowledged.",
            1,
            10_000_000,
        ),
        Parameter(
            "max.redelivery.count",
            5,
            "In queue groups: how often a message is delivered again before it is given up; -1: without end.",
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
            "In queue groups: how long a message that is given back waits; twice as long each time.",
            0,
            _YEAR_MS,
        ),
        Parameter("nack.backoff.max.ms", 60_000, "In queue groups: how long it waits at most.", 0, _YEAR_MS),
        Parameter(
            "ack.mode",
            "explicit",
            "In queue groups: whether a poll acknowledges what the poll before it brought (auto).",
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
            "As the engine's setting of this name, which counts where the group has none; -1 keeps offsets.",
            -1,
            _MAX_MS,
        ),
    ]
)
