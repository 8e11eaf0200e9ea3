"""What a consumer is made with: its options, its topics, where it begins, and what it tells its user of rebalances.

The table of options has defaults, ranges, and where each applies. `docs/settings.md` is made from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.errors import InvalidRegularExpression
from ...protocol.parameters import GROUP, MEMBER, Value
from ...protocol.values.groups import MAX_PATTERN
from ...protocol.values.state import State
from ..arguments import describe_value, parse_text
from ..fetch.plan import Isolation
from ..offsets import TopicPartition

log = logging.getLogger("lakemq.consumer")


Protocol = Literal["queue", "cooperative", "classic"]
Names = list[str] | tuple[str, ...] | Set[str]
"""Several names. A plain text is a sequence of texts for type checkers, too, so `Sequence[str]` would take it."""


class ReaderKeywords(TypedDict, total=False):
    """The keywords that all consumers take, for type checkers."""

    auto_offset_reset: Literal["earliest", "latest", "none"] | None
    isolation: Isolation | None


class MemberKeywords(ReaderKeywords, total=False):
    """The keywords of a member of a group, but `topics` and `protocol`."""

    pattern: str | None
    instance_id: str | None
    client_id: str | None
    session_timeout_ms: int | None
    heartbeat_interval_ms: int | None
    max_poll_interval_ms: int | None
    assignor: str | Sequence[str] | None
    ack_mode: Literal["explicit", "auto"] | None
    listener: RebalanceListener | None


PROTOCOLS = ("queue", "cooperative", "classic")

MAX_CLIENT_ID = 100
"""Characters: the member's id has room for it, a host and a process id."""

_ASSIGN = "assign"


@dataclass(frozen=True)
class ConsumerOption:
    """A keyword of `mq.consumer`.

    Attributes:
        default: the value if the keyword is left out; None: no value, or as `meaning` says.
        expected: the values that it takes, in words.
        applies: the protocols of members that take it, and `assign` for a consumer of assigned partitions.
    """

    name: str
    default: Value | None
    expected: str
    meaning: str
    applies: tuple[str, ...] = PROTOCOLS


def _setting(name: str, *more: str) -> ConsumerOption:
    """Return the option with the default, the range and the meaning of the setting."""
    setting = MEMBER[name.replace("_", ".")]
    expected = _list_choices(setting.choices) or f"{setting.low} to {setting.high}"
    return ConsumerOption(name, setting.default, expected, setting.meaning, (*PROTOCOLS, *more))


def _list_choices(choices: Iterable[str]) -> str:
    return ", ".join(f"`{choice}`" for choice in choices)


_DECLARED = (
    ConsumerOption("topics", None, "names of topics", "Topics whose partitions the group shares among its members."),
    ConsumerOption(
        "pattern",
        None,
        f"RE2, at most {MAX_PATTERN} characters",
        "Instead of `topics`: all topics whose whole names match, also those that are created later.",
    ),
    ConsumerOption(
        "assign",
        None,
        "topics and (topic, partition) pairs",
        "Instead of `topics`: partitions that this consumer reads by itself, without being a member.",
        (_ASSIGN,),
    ),
    ConsumerOption(
        "protocol",
        None,
        _list_choices(PROTOCOLS),
        "How the group moves partitions between members. Left out, as the group is; a new group is a `queue`.",
    ),
    _setting("auto_offset_reset", _ASSIGN),
    ConsumerOption(
        "isolation",
        None,
        _list_choices(GROUP["isolation.level"].choices),
        "Whether messages of open and aborted transactions are shown. Left out, `read_committed`; in a queue group, "
        "the group's `isolation.level`.",
        (*PROTOCOLS, _ASSIGN),
    ),
    ConsumerOption(
        "instance_id",
        None,
        "1 to 249 characters",
        "Makes the member static: a process that comes back under the id has the same partitions, without a rebalance.",
    ),
    ConsumerOption(
        "client_id",
        None,
        f"1 to {MAX_CLIENT_ID} characters",
        "Name of the application. The member's id begins with it, the host and the process id.",
    ),
    _setting("session_timeout_ms"),
    _setting("heartbeat_interval_ms"),
    _setting("max_poll_interval_ms"),
    ConsumerOption(
        "assignor",
        None,
        "`range`, `roundrobin`, `sticky`, `cooperative-sticky`, or a plug-in's name; or a list of them",
        "The assignors that the member supports, the best first. The group takes one that all its members support. "
        "Left out, the member supports all.",
    ),
    ConsumerOption(
        "ack_mode",
        None,
        _list_choices(GROUP["ack.mode"].choices),
        "The group's `ack.mode`: sets it in a new group, and must equal it in any other.",
        ("queue",),
    ),
    ConsumerOption("listener", None, "a `RebalanceListener`", "Is called by `poll` when partitions come and go."),
)

CONSUMER = {option.name: option for option in _DECLARED}
"""By name, in the order in which they are documented."""

_SOURCES = ("topics", "assign", "protocol")
"""Keywords that say what a consumer reads, and how. `mq.consumer` handles them before the other options."""
ASSIGN_OPTIONS = [name for name, option in CONSUMER.items() if _ASSIGN in option.applies and name not in _SOURCES]
MEMBER_OPTIONS = [name for name, option in CONSUMER.items() if option.applies != (_ASSIGN,) and name not in _SOURCES]


@dataclass
class Beginning:
    """The beginning of a group in a topic, summed over the partitions in which it has committed nothing.

    Attributes:
        skipped: number of offsets before its start.
        waiting: number of offsets from its start to the end.
    """

    skipped: int = 0
    waiting: int = 0

    def add(self, first: int, start: int, end: int) -> None:
        """Count one partition, whose log holds the offsets from `first` to `end`."""
        self.skipped += max(0, start - first)
        self.waiting += max(0, end - start)


def find_new_topics(state: State, group: str, topics: Iterable[str]) -> list[str]:
    """Return the existing topics that the group has no partitions of yet."""
    known_topic_ids = state.groups[group].partition_counts if group in state.groups else {}
    return [name for name in topics if (topic_id := state.topic_ids.get(name)) and topic_id not in known_topic_ids]


def find_beginnings(state: State, group: str, topics: Iterable[str]) -> dict[str, Beginning]:
    """Return where the group begins in each of these topics; partitions with a committed offset are left out."""
    beginnings: dict[str, Beginning] = {}
    committed, group_state = state.offsets.get(group, {}), state.groups.get(group)
    topic_ids = {state.topic_ids[name] for name in topics if name in state.topic_ids}
    for tp, assignment in group_state.assignments.items() if group_state else ():
        if tp[0] in topic_ids and tp not in committed and assignment.start_offset is not None:
            topic, partition = state.topics[tp[0]], tp[1]
            first, end = int(topic.log_starts[partition]), int(topic.last_stable_offsets[partition])
            beginnings.setdefault(topic.topic, Beginning()).add(first, assignment.start_offset, end)
    return beginnings


def log_beginnings(group: str, beginnings: Mapping[str, Beginning]) -> None:
    """Log one line per topic in which there are messages already. A group that skips some is worth a warning."""
    for topic, beginning in sorted(beginnings.items()):
        if beginning.skipped:
            log.warning(
                "Group %s is new to %s and begins behind %d offsets that are already there: it skips them. "
                'To read them, begin with auto_offset_reset="earliest", or reset the offsets of the group.',
                group,
                topic,
                beginning.skipped,
            )
        elif beginning.waiting:
            log.info(
                "Group %s is new to %s and begins at its start: it reads the %d offsets that are already there.",
                group,
                topic,
                beginning.waiting,
            )


class RebalanceListener:
    """Is called by `poll` when partitions come and go. Inherit from it, and override the methods you need.

    Each method gets a list of (topic, partition) pairs. `poll` raises the errors of a method.

    Example:
        >>> class Report(lakemq.RebalanceListener):  # doctest: +SKIP
        ...     def on_assigned(self, partitions):
        ...         print("got", partitions)
    """

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when the consumer has got these partitions. You may `seek` here.

        Args:
            partitions: those that are new.
        """

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called before the consumer gives up these partitions. Commit here what was read of them.

        Args:
            partitions: those that leave.
        """

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions belong to other members already. They cannot be committed any more.

        Args:
            partitions: those that are gone.
        """


class Pattern:
    """A regular expression that must match a whole name.

    It is written in RE2's syntax, and pyarrow's RE2 runs it. RE2 takes time in proportion to the length of the name for
    every pattern, so no pattern can hold up a poll. That is why it has no look-around and no back-references.
    """

    def __init__(self, pattern: object) -> None:
        """Compile the pattern. Raises InvalidRegularExpression."""
        self.text = parse_text("pattern", pattern, InvalidRegularExpression)
        if not 1 <= len(self.text) <= MAX_PATTERN:
            expected = f"1 to {MAX_PATTERN} characters"
            raise InvalidRegularExpression(found=f"{len(self.text)} characters", expected=expected)
        self._anchored = rf"\A(?:{self.text})\z"
        # The pattern must be valid by itself, too: `a)|(b` is so only within parentheses. pyarrow compiles a pattern
        # only if there is a name to match.
        try:
            for expression in (self.text, self._anchored):
                pc.match_substring_regex(pa.array(["t"]), expression)
        except pa.ArrowInvalid as error:
            raise InvalidRegularExpression(
                str(error), found=describe_value(self.text), expected="RE2's syntax"
            ) from None

    def find_matches(self, names: Sequence[str]) -> list[str]:
        """Return the names that match, sorted."""
        candidates = pa.array(sorted(names), pa.string())
        matches: list[str] = candidates.filter(pc.match_substring_regex(candidates, self._anchored)).to_pylist()
        return matches


class Subscription:
    """The topics of one member. Not thread-safe: the consumer of the membership holds its lock."""

    def __init__(self, topics: Sequence[str], pattern: Pattern | None) -> None:
        """topics: sorted names; pattern: instead of topics."""
        self.topics, self._pattern = sorted(set(topics)), pattern
        self._matched_mark: tuple[int, int] | None = None

    @property
    def pattern(self) -> str | None:
        """The text of the pattern, if there is one."""
        return None if self._pattern is None else self._pattern.text

    def follow(self, state: State) -> None:
        """Match the pattern against the topics of this state, if these have changed since the last call."""
        # No topic id is used twice, so a topic that came changes the first number, and one that went the second.
        mark = state.next_topic_id, len(state.topic_ids)
        if self._pattern is not None and mark != self._matched_mark:
            self.topics, self._matched_mark = self._pattern.find_matches([*state.topic_ids]), mark


@dataclass(frozen=True)
class MemberOptions:
    """The options with which a member joins.

    Attributes:
        config: settings that the group must have; a new group gets them.
        assignors: those that the member supports, the best first; empty if it supports all.
    """

    topics: Sequence[str]
    pattern: Pattern | None = None
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: str = "earliest"
    client_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    assignors: Sequence[str] = ()
