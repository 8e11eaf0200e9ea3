"""How far groups have come, for who watches them: what each has committed, and how much is left."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...protocol.errors import GroupIdNotFound
from ...protocol.hashing import shard
from ...protocol.names import shown
from ...protocol.parameters import GROUP
from ...protocol.values.assignments import PARTITION_TRANSITIONS, Group, GroupStatus
from ...protocol.values.deliveries import DELIVERY_TRANSITIONS
from ...protocol.values.groups import ConfigureGroup, DeleteGroup, LeaveGroup
from ...protocol.values.offsets import DeleteOffsets, OffsetsChanged, ResetOffsets
from ...protocol.values.state import State
from ..arguments import flag, group_name, listed, mapped, one_of, texts, topics_and_partitions
from ..requester import Requester
from .resets import Resets

__all__ = [
    "DELIVERY_TRANSITIONS",
    "GROUP",
    "PARTITION_TRANSITIONS",
    "AssignmentInfo",
    "GroupInfo",
    "Groups",
    "MemberInfo",
    "OffsetChange",
    "PartitionLag",
]


@dataclass(frozen=True)
class PartitionLag:
    """A group in a partition. lag: offsets between what it has committed and the last stable offset; deleted: that were
    deleted before it was done with them; expired: messages that did before anybody in a queue group had looked at them.

    committed_offset, committed_at_ms, metadata, lag: None before it has committed there, though a transaction that is
    still open may (pending: its transactional id).
    """

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    last_stable_offset: int
    high_watermark: int
    lag: int | None
    deleted: int
    expired: int
    committed_at_ms: int | None
    metadata: str | None
    pending: str | None


@dataclass(frozen=True)
class GroupInfo:
    """A group. partitions: those for which it has offsets; lag: over all of them; deleted, expired: as of a
    partition, over all of them.

    shard: as Kafka's coordinators divide the groups; coordinator: the sequencer that leads, empty where none does;
    protocol: None where it has never had members; problem: why the assignor is not the one that was asked for;
    waits_for: members that are to give up partitions, and have not yet;
    idle_since_ms: when it had members, or committed, last, None: it has members; expires_at_ms: when what it has
    committed is forgotten, None: it is kept.
    """

    group: str
    shard: int
    coordinator: str
    protocol: str | None
    state: str
    generation: int
    leader: str | None
    members: int
    assignor: str
    problem: str | None
    waits_for: list[str]
    partitions: int
    lag: int
    deleted: int
    expired: int
    idle_since_ms: int | None
    expires_at_ms: int | None


@dataclass(frozen=True)
class MemberInfo:
    """A member. partitions: what it has, as topic-partition."""

    group: str
    member_id: str
    instance_id: str | None
    topics: list[str]
    partitions: list[str]
    session_timeout_ms: int
    max_poll_interval_ms: int
    joined_at_ms: int


@dataclass(frozen=True)
class AssignmentInfo:
    """A partition of a group. target: who is to have it; since_ms, reason: since when, and why, it is in this state."""

    group: str
    topic: str
    partition: int
    state: str
    owner: str | None
    target: str | None
    since_ms: int
    reason: str


@dataclass(frozen=True)
class OffsetChange:
    """A group in a partition. before, after: the offset that it has committed; None: none."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int | None


class Groups:
    """Groups as an operator sees them."""

    def __init__(
        self, state: Callable[[], State], requester: Requester, resets: Resets, offsets_retention_ms: int
    ) -> None:
        """state: as of the newest step, with groups and transactions; offsets_retention_ms: the namespace's."""
        self._state, self._requester, self._resets = state, requester, resets
        self._retention_ms = offsets_retention_ms

    def create(self, group: str, config: Mapping[str, Any] | None = None) -> None:
        """A group with these settings, before its first member; docs/settings.md has them.

        Raises InvalidGroupId, InvalidConfig, InvalidRequest: there is one.
        """
        self._requester.ask(
            ConfigureGroup(group_name(group), mapped("config", {} if config is None else config), create=True)
        )

    def alter(self, group: str, config: Mapping[str, Any]) -> None:
        """Set these; None resets one to its default.

        Raises GroupIdNotFound, InvalidConfig, InconsistentGroupProtocol (it has members of another protocol).
        """
        self._requester.ask(ConfigureGroup(group_name(group), mapped("config", config)))

    def remove_members(self, group: str, members: Sequence[str] = (), instances: Sequence[str] = ()) -> None:
        """Members, by their ids or instance ids, go, as if they had left; one that lives joins anew when it polls.

        Raises GroupIdNotFound, UnknownMemberId: none of them has gone then.
        """
        gone = LeaveGroup(group_name(group), texts("members", members), texts("instances", instances))
        self._requester.ask(gone)

    def delete(self, group: str) -> None:
        """The group is forgotten: its settings, and what it has committed.

        Raises InvalidGroupId, GroupIdNotFound, NonEmptyGroup; UnstableOffsetCommit: an open transaction has offsets of
        it.
        """
        self._requester.ask(DeleteGroup(group_name(group)))

    def delete_offsets(self, group: str, topics: str | Iterable[str | tuple[str, int]]) -> builtins.list[OffsetChange]:
        """Forget what the group has committed in a topic, or in these topics and (topic, partition) pairs.

        Who reads them next begins as its auto_offset_reset says. Raises InvalidGroupId, InvalidTopic, InvalidRequest,
        GroupIdNotFound, UnknownTopicOrPartition; GroupSubscribedToTopic: a member reads one of the topics;
        UnstableOffsetCommit.
        """
        group = group_name(group)
        return self._changed(group, DeleteOffsets(group, topics_and_partitions("topics", topics)))

    def reset_offsets(
        self,
        group: str,
        topics: str | Iterable[str | tuple[str, int]] | None = None,
        to: str | int | datetime | timedelta | Mapping[tuple[str, int], int] | None = None,
        *,
        shift_by: int | None = None,
        dry_run: bool = False,
    ) -> builtins.list[OffsetChange]:
        """Let a group without members go on elsewhere: all partitions at once, each as near as the log has it.

        topics: a topic, or topics and (topic, partition) pairs; left out, all that the group has committed or has had.
        to: `earliest`, `latest`, an offset, a time (the first message not before it), how long ago, or (topic,
        partition) -> offset; or shift_by: so many offsets further, or back. dry_run: only say what would change.
        Raises InvalidGroupId, InvalidTopic, InvalidRequest, NonEmptyGroup, GroupIdNotFound, UnknownTopicOrPartition,
        UnknownTopicId (it was made anew meanwhile), NoOffsetForPartition (nothing to be shifted), UnstableOffsetCommit.
        """
        group = group_name(group)
        request = self._resets.request(group, topics, to, shift_by, flag("dry_run", dry_run))
        return self._changed(group, request)

    def _changed(self, group: str, request: DeleteOffsets | ResetOffsets) -> builtins.list[OffsetChange]:
        found = self._requester.ask(request)
        assert isinstance(found, OffsetsChanged)
        changes = (OffsetChange(group, one.topic, one.partition, one.before, one.after) for one in found.changes)
        return sorted(changes, key=lambda one: (one.topic, one.partition))

    def list(self) -> builtins.list[str]:
        """Groups that have committed offsets, have members, or were made, by name."""
        return _names(self._state())

    def all(self, states: Iterable[str] = ()) -> builtins.list[GroupInfo]:
        """All groups, by name. states: only those in one of these. Raises InvalidRequest."""
        wanted = {one_of("states", one, [*GroupStatus]) for one in listed("states", states)}
        state = self._state()
        found = (_described(state, name, self._retention_ms) for name in _names(state))
        return [one for one in found if not wanted or one.state in wanted]

    def describe(self, group: str) -> GroupInfo:
        """Raises GroupIdNotFound, InvalidGroupId."""
        return _described(self._state(), group_name(group), self._retention_ms)

    def members(self, group: str) -> builtins.list[MemberInfo]:
        """In the order in which they came. Raises GroupIdNotFound, InvalidGroupId."""
        state = self._state()
        known = _known(state, group_name(group))
        return [
            MemberInfo(
                known.group,
                one.member_id,
                one.instance_id,
                [*one.topics],
                [f"{known.assignments[place].topic}-{place[1]}" for place in known.owned(one.member_id)],
                one.session_timeout_ms,
                one.max_poll_interval_ms,
                one.joined_at_ms,
            )
            for one in sorted(known.members.values(), key=lambda one: one.number)
        ]

    def assignments(self, group: str) -> builtins.list[AssignmentInfo]:
        """By topic and partition. Raises GroupIdNotFound, InvalidGroupId."""
        known = _known(self._state(), group_name(group))
        rows = [
            AssignmentInfo(
                known.group, one.topic, partition, one.status.value, one.owner, one.target, one.since_ms, one.reason
            )
            for (_, partition), one in known.assignments.items()
        ]
        return sorted(rows, key=lambda row: (row.topic, row.partition))

    def lag(self, group: str) -> builtins.list[PartitionLag]:
        """By topic and partition, of every partition for which the group has offsets.

        Raises GroupIdNotFound, InvalidGroupId.
        """
        return _rows(self._state(), group_name(group))


def _names(state: State) -> list[str]:
    return sorted({*state.groups, *(group for group, committed in state.offsets.items() if committed)})


def _described(state: State, group: str, retention_ms: int) -> GroupInfo:
    rows = _rows(state, group)
    known = state.groups.get(group)
    leader = known.leader if known else None
    idle_ms = _idle_since_ms(state, group)
    retention_ms = state.offsets_retention_ms(group, retention_ms)
    return GroupInfo(
        group,
        shard(group),
        state.leader,
        known.setting("group.protocol") if known else None,
        (known.status if known else GroupStatus.EMPTY).value,
        known.generation if known else 0,
        leader.member_id if leader else None,
        len(known.members) if known else 0,
        known.assignor if known else "",
        known.problem if known else None,
        sorted({known.assignments[place].owner or "" for place in known.paused}) if known else [],
        len(rows),
        sum(row.lag or 0 for row in rows),
        sum(_deleted(state, group, place) for place in state.group_places(group)),
        sum(one.expired_count for one in state.offsets.get(group, {}).values()),
        idle_ms,
        None if idle_ms is None or retention_ms < 0 or not state.offsets.get(group) else idle_ms + retention_ms,
    )


def _idle_since_ms(state: State, group: str) -> int | None:
    if group in state.manned_groups:
        return None
    known = state.groups.get(group)
    commits = (one.committed_at_ms for one in state.offsets.get(group, {}).values())
    return max(known.empty_since_ms if known else 0, *commits, 0)


def _known(state: State, group: str) -> Group:
    known = state.groups.get(group)
    if known is None:
        raise GroupIdNotFound(found=shown(group), expected="a group that has had members")
    return known


def _rows(state: State, group: str) -> list[PartitionLag]:
    committed, pending = state.offsets.get(group, {}), state.pending_offsets(group)
    if not committed and not pending and group not in state.groups:
        raise GroupIdNotFound(found=shown(group), expected="a group that was made, or has committed offsets")
    rows = [_row(state, group, place, pending.get(place)) for place in {*committed, *pending}]
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def _lag(state: State, group: str, place: tuple[int, int], stable: int) -> int:
    """Who reads uncommitted may be beyond what is stable; of a queue, what is done with past its offset is not left."""
    deliveries = state.deliveries_of(group, place)
    return max(0, stable - state.offsets[group][place].offset) if deliveries is None else deliveries.left_count(stable)


def _deleted(state: State, name: str, place: tuple[int, int]) -> int:
    committed, group = state.offsets.get(name, {}).get(place), state.groups.get(name)
    own = group.assignments.get(place) if group else None
    return (committed.deleted_count if committed else 0) + (own.deleted_count if own else 0)


def _row(state: State, group: str, place: tuple[int, int], pending: str | None) -> PartitionLag:
    topic, partition = state.topics[place[0]], place[1]
    known = state.offsets.get(group, {}).get(place)
    stable = int(topic.last_stable_offsets[partition])
    return PartitionLag(
        group,
        topic.topic,
        partition,
        known.offset if known else None,
        stable,
        int(topic.high_watermarks[partition]),
        _lag(state, group, place, stable) if known else None,
        _deleted(state, group, place),
        known.expired_count if known else 0,
        known.committed_at_ms if known else None,
        known.metadata if known else None,
        pending,
    )
