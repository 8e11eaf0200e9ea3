"""Views of the group's state for one member: the partitions it has, how its group works, what it subscribes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.errors import InvalidRegularExpression
from ...protocol.values.assignments import Group, GroupStatus, PartitionStatus, TopicIdPartition
from ...protocol.values.deliveries import Deliveries, DeliveryPolicy
from ...protocol.values.groups import MAX_PATTERN
from ...protocol.values.offsets import CommittedOffset
from ...protocol.values.state import State
from ..arguments import describe_value, parse_text
from ..fetch.plan import Bounds, Isolation, read_bounds
from ..offsets import TopicPartition


@dataclass(frozen=True)
class OwnedPartition:
    """A partition that the member has.

    Attributes:
        epoch: of its assignment.
        start_offset: where the member begins to read; None: as its `auto_offset_reset` says.
        is_paused: the member is to give the partition up.
        committed: what the group has committed.
        deliveries: in a queue group, what became of the messages after the committed offset.
        since_ms: when the partition came into its status.
    """

    bounds: Bounds
    epoch: int
    start_offset: int | None
    is_paused: bool
    committed: CommittedOffset | None
    deliveries: Deliveries | None = None
    since_ms: int = 0

    @property
    def left_count(self) -> int:
        """Offsets that a queue group is not done with, also those that it cannot see yet."""
        bounds = self.bounds
        return 0 if self.deliveries is None else self.deliveries.count_remaining(bounds.high_watermark, bounds.first)

    @cached_property
    def is_done(self) -> bool:
        """Whether a queue group is done with all offsets, so that there is nothing to deliver or to wait for."""
        return (
            self.deliveries is not None
            and not self.deliveries.stretches
            and self.deliveries.start >= self.bounds.high_watermark
        )


@dataclass(frozen=True)
class QueueSettings:
    """How a queue group delivers.

    Attributes:
        policy: how often and in which order messages are delivered again.
        max_unacknowledged: messages that a user may have without an outcome.
        is_auto_ack: a poll acknowledges what the poll before it brought.
        handoff_ms: how long a partition that is to move waits for its messages. While it is above 0, messages that
            were acquired are still shown.
        isolation: which messages are visible.
    """

    policy: DeliveryPolicy
    max_unacknowledged: int
    is_auto_ack: bool
    handoff_ms: int
    isolation: Isolation

    @classmethod
    def of(cls, group: Group) -> QueueSettings | None:
        """Return the settings of a queue group; None for other groups."""
        if not group.is_queue:
            return None
        return cls(
            DeliveryPolicy.from_group(group),
            group.setting("max.delivered.unacked.msgs.per.flow"),
            group.setting("ack.mode") == "auto",
            group.setting("max.handoff.ms"),
            group.setting("isolation.level"),
        )


@dataclass(frozen=True)
class MembershipView:
    """The group's view of a member, as of one step.

    Attributes:
        is_replaced: another process has taken over the member's instance id.
        topics: the topics that the member asks for, as the group knows them.
        owned: the partitions that the member has.
        now_ms: the time of the step.
        queue_settings: None unless the group is a queue group.
        generation: None unless the group is a classic group.
        is_stable: no partition is moving, so a member without partitions will not get any.
        partition_count: partitions of the topics that the member asks for.
    """

    is_member: bool = False
    is_replaced: bool = False
    topics: Sequence[str] = ()
    owned: Mapping[TopicPartition, OwnedPartition] = field(default_factory=dict)
    step: int = 0
    now_ms: int = 0
    queue_settings: QueueSettings | None = None
    generation: int | None = None
    is_stable: bool = False
    partition_count: int = 0


def build_view(
    state: State, group_name: str, member_id: str, instance_id: str | None, isolation: Isolation
) -> MembershipView:
    """Return the view of a member as of this state.

    instance_id: of a static member. isolation: of the member; a queue group has its own.
    """
    group = state.groups.get(group_name)
    if group is None or member_id not in group.members:
        is_replaced = group is not None and instance_id is not None and instance_id in group.instances
        return MembershipView(is_replaced=is_replaced)
    queue, topics = QueueSettings.of(group), group.members[member_id].topics
    partitions = group.list_partitions_of(member_id)
    return MembershipView(
        is_member=True,
        topics=topics,
        owned=_read_partitions(state, group, partitions, queue.isolation if queue else isolation, queue is not None),
        step=state.step,
        now_ms=state.now_ms,
        queue_settings=queue,
        generation=group.generation if group.is_classic else None,
        is_stable=group.status is GroupStatus.STABLE,
        partition_count=sum(group.partition_counts.get(state.topic_ids.get(topic, -1), 0) for topic in topics),
    )


def _read_partitions(
    state: State, group: Group, owned_partitions: Iterable[TopicIdPartition], isolation: Isolation, is_queue: bool
) -> dict[TopicPartition, OwnedPartition]:
    committed = state.offsets.get(group.group, {})
    owned = {}
    for topic_id, topic_partitions in groupby(owned_partitions, key=itemgetter(0)):
        topic, partitions = state.topics.get(topic_id), [partition for _, partition in topic_partitions]
        if topic is None:
            continue
        # Only the member's own partitions: a topic may have thousands, and each member does this with each poll.
        for partition, bounds in zip(partitions, read_bounds(topic, isolation, partitions), strict=True):
            assignment = group.assignments[topic_id, partition]
            owned[topic.topic, partition] = OwnedPartition(
                bounds,
                assignment.epoch,
                assignment.start_offset,
                assignment.status is PartitionStatus.PAUSED,
                committed.get((topic_id, partition)),
                _copy_deliveries(state, group, (topic_id, partition)) if is_queue else None,
                assignment.since_ms,
            )
    return owned


def _copy_deliveries(state: State, group: Group, tp: TopicIdPartition) -> Deliveries:
    """Return a copy of the deliveries of a queue group's partition, because later steps change the state."""
    deliveries, committed = state.find_deliveries(group.group, tp), state.offsets.get(group.group, {}).get(tp)
    if deliveries is not None:
        return deliveries.copy()
    start = group.assignments[tp].start_offset if committed is None else committed.offset
    return Deliveries(start or 0)


# The subscription of a member: topics that the user named, or all whose names match a pattern.


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
