"""Groups as an operator sees and changes them: `mq.groups`."""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ...namespace.process import ProcessBound
from ...protocol.errors import GroupIdNotFound
from ...protocol.names import shorten
from ...protocol.values.assignments import GroupStatus
from ...protocol.values.groups import ConfigureGroup, DeleteGroup, LeaveGroup
from ...protocol.values.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetCommit,
    OffsetsChanged,
    OffsetsFetched,
    ResetOffsets,
    ResetPartition,
)
from ...protocol.values.state import State
from ..arguments import (
    invalid_argument,
    parse_choice,
    parse_flag,
    parse_group_name,
    parse_list,
    parse_mapping,
    parse_partition_offsets,
    parse_texts,
    parse_timestamp,
    parse_topics_and_partitions,
    parse_whole_number,
)
from ..html_table import build_html_table
from ..requests.requester import Requester
from .group_info import (
    AssignmentInfo,
    GroupInfo,
    MemberInfo,
    describe_assignments,
    describe_group,
    describe_members,
    find_group,
    list_group_names,
)
from .lag import Consumption, PartitionLag, list_partition_lags
from .stalls import MemberNotes, Stall, find_stalls

OffsetsForTimes = Callable[[str, Mapping[int, datetime]], Mapping[int, tuple[int, int] | None]]
"""Topic, partition -> time; returns partition -> (offset, timestamp) of its first message not before that time."""

_LONGEST_AGO = timedelta(days=100_000)

NamedPartitions = list[tuple[str, int | None]] | None
"""Topics and partitions; a partition of None stands for the whole topic, a list of None for all that the group has."""


def _expand(state: State, name: str, partition: int | None) -> list[tuple[int, int]]:
    """Return one partition of a topic, or all of them."""
    topic = state.topic(name)
    partitions = range(topic.consumed_count) if partition is None else (partition,)
    return [topic.find_partition(number) for number in partitions]


@dataclass(frozen=True)
class GroupOffsetChange:
    """A change of a group's committed offset in a partition, `before` and `after`; None: no committed offset."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int | None


class Groups(ProcessBound):
    """Create, list, describe, alter, reset and delete groups. Thread-safe."""

    def __init__(
        self,
        state: Callable[[], State],
        requester: Requester,
        offsets_for_times: OffsetsForTimes,
        offsets_retention_ms: int,
        time_ms: Callable[[], int],
        consumption: Callable[[], Consumption | None],
        read_notes: Callable[[State], MemberNotes],
    ) -> None:
        """Groups of one connection.

        Args:
            state: returns the state as of the newest step, with groups and transactions.
            requester: sends requests to the sequencer.
            offsets_for_times: finds the first message from a time on.
            offsets_retention_ms: the namespace's retention of committed offsets.
            time_ms: returns the time of the store.
            consumption: returns what all groups have done lately; None if that cannot be read.
            read_notes: returns what processes have noted of members.
        """
        self._state, self._requester, self._offsets_for_times = state, requester, offsets_for_times
        self._retention_ms, self._time_ms = offsets_retention_ms, time_ms
        self._consumption, self._read_notes = consumption, read_notes

    def create(self, group: str, config: Mapping[str, Any] | None = None) -> None:
        """Create a group before its first member joins.

        Args:
            group: its name.
            config: its settings, as in docs/settings.md.

        Raises:
            InvalidGroupId, InvalidConfig: an argument is not valid.
            InvalidRequest: the group exists.
        """
        self._requester.ask(
            ConfigureGroup(
                parse_group_name(group), parse_mapping("config", {} if config is None else config), create=True
            )
        )

    def alter(self, group: str, config: Mapping[str, Any]) -> None:
        """Change settings of a group.

        Args:
            group: its name.
            config: setting -> value; None resets a setting to its default.

        Raises:
            GroupIdNotFound: the group does not exist.
            InvalidConfig: a setting is not valid.
            InconsistentGroupProtocol: the group has members of another protocol, or members that do not support the
                assignor.
        """
        self._requester.ask(ConfigureGroup(parse_group_name(group), parse_mapping("config", config)))

    def remove_members(self, group: str, members: Sequence[str] = (), instances: Sequence[str] = ()) -> None:
        """Remove members, as if they had left. A member that lives joins again with its next poll.

        Args:
            group: its name.
            members: ids of members.
            instances: instance ids of static members.

        Raises:
            GroupIdNotFound: the group does not exist.
            UnknownMemberId: one of them is not a member. None is removed.
        """
        request = LeaveGroup(
            parse_group_name(group), parse_texts("members", members), parse_texts("instances", instances), True
        )
        self._requester.ask(request)

    def delete(self, group: str) -> None:
        """Delete a group: its settings, and its committed offsets.

        Raises:
            InvalidGroupId: the name is not valid.
            GroupIdNotFound: the group does not exist.
            NonEmptyGroup: it has members.
            UnstableOffsetCommit: an open transaction holds offsets of it.
        """
        self._requester.ask(DeleteGroup(parse_group_name(group)))

    def delete_offsets(
        self, group: str, topics: str | Iterable[str | tuple[str, int]]
    ) -> builtins.list[GroupOffsetChange]:
        """Delete committed offsets of a group. Its next reader begins as its `auto_offset_reset` says.

        Args:
            group: its name.
            topics: a topic, or topics and (topic, partition) pairs.

        Returns:
            The offsets that were deleted, by topic and partition.

        Raises:
            InvalidGroupId, InvalidTopic, InvalidRequest: an argument is not valid.
            GroupIdNotFound, UnknownTopicOrPartition: it does not exist.
            GroupSubscribedToTopic: a member reads one of the topics.
            UnstableOffsetCommit: an open transaction holds offsets of it.
        """
        group = parse_group_name(group)
        return self._change_offsets(group, DeleteOffsets(group, parse_topics_and_partitions("topics", topics)))

    def reset_offsets(
        self,
        group: str,
        topics: str | Iterable[str | tuple[str, int]] | None = None,
        to: str | int | datetime | timedelta | Mapping[tuple[str, int], int] | None = None,
        *,
        shift_by: int | None = None,
        dry_run: bool = False,
    ) -> builtins.list[GroupOffsetChange]:
        """Let a group without members go on from other offsets, in all partitions at once.

        An offset that a log does not hold becomes the nearest one that it holds.

        Args:
            group: its name.
            topics: a topic, or topics and (topic, partition) pairs; left out, all that the group has committed or has
                had.
            to: `earliest`, `latest`, an offset, a time (the first message not before it), how long ago, or (topic,
                partition) -> offset.
            shift_by: instead of `to`, how many offsets further, or back if negative.
            dry_run: only return what would change.

        Returns:
            The changes, by topic and partition.

        Raises:
            InvalidGroupId, InvalidTopic, InvalidRequest: an argument is not valid.
            NonEmptyGroup: the group has members.
            GroupIdNotFound, UnknownTopicOrPartition: it does not exist.
            UnknownTopicId: a topic was deleted and created again meanwhile.
            NoOffsetForPartition: there is no offset to shift.
            UnstableOffsetCommit: an open transaction holds offsets of the group.
        """
        group = parse_group_name(group)
        request = self._build_reset(group, topics, to, shift_by, parse_flag("dry_run", dry_run))
        return self._change_offsets(group, request)

    def _change_offsets(self, group: str, request: DeleteOffsets | ResetOffsets) -> builtins.list[GroupOffsetChange]:
        answer = self._requester.ask(request)
        assert isinstance(answer, OffsetsChanged)
        changes = (
            GroupOffsetChange(group, change.topic, change.partition, change.before, change.after)
            for change in answer.changes
        )
        return sorted(changes, key=lambda change: (change.topic, change.partition))

    def _build_reset(self, group: str, topics: Any, to: Any, shift_by: Any, dry_run: bool) -> ResetOffsets:
        """Return the request for the arguments of `reset_offsets`.

        Raises:
            InvalidRequest, InvalidTopic: an argument is not valid.
            UnknownTopicOrPartition, GroupIdNotFound: only if `to` is a time.
        """
        if (to is None) == (shift_by is None):
            raise invalid_argument("to", to, "either to, or shift_by")
        if isinstance(to, Mapping):
            if topics is not None:
                raise invalid_argument("topics", topics, "None, as `to` names the partitions")
            offsets = parse_partition_offsets("to", to).items()
            return ResetOffsets(group, "offset", 0, [ResetPartition(*tp, offset) for tp, offset in offsets], dry_run)
        named: NamedPartitions = None if topics is None else parse_topics_and_partitions("topics", topics)
        if isinstance(to, timedelta):
            if not timedelta() <= to <= _LONGEST_AGO:
                raise invalid_argument("to", to, f"a duration of 0 to {_LONGEST_AGO.days} days")
            to = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._time_ms()) - to
        if isinstance(to, datetime):
            time = parse_timestamp("to", to)
            assert isinstance(time, datetime)
            return ResetOffsets(group, "offset", 0, self._find_offsets_at(group, named, time), dry_run)
        how: Literal["earliest", "latest", "offset", "shift"]
        offset = 0
        if shift_by is not None:
            how, offset = "shift", parse_whole_number("shift_by", shift_by)
        elif isinstance(to, str):
            how = "earliest" if parse_choice("to", to, ("earliest", "latest")) == "earliest" else "latest"
        else:
            how, offset = "offset", parse_whole_number("to", to, 0)
        topic_partitions = None if named is None else [ResetPartition(*tp) for tp in named]
        return ResetOffsets(group, how, offset, topic_partitions, dry_run)

    def _find_offsets_at(self, group: str, named: NamedPartitions, time: datetime) -> builtins.list[ResetPartition]:
        """Return the first message not before the time per partition, else the end of the log.

        The end is taken from the state before the search, so messages that come meanwhile are not skipped.
        """
        state = self._state()
        if named is None:
            if group not in state.groups and group not in state.offsets:
                raise GroupIdNotFound(found=shorten(group))
            topic_partitions = dict.fromkeys(state.list_group_partitions(group))
        else:
            topic_partitions = {tp: None for topic, partition in named for tp in _expand(state, topic, partition)}
        partitions_by_topic: dict[int, list[int]] = {}
        for topic_id, partition in topic_partitions:
            partitions_by_topic.setdefault(topic_id, []).append(partition)
        resets = []
        for topic_id, partitions in partitions_by_topic.items():
            topic = state.topics[topic_id]
            first_messages = self._offsets_for_times(topic.topic, dict.fromkeys(partitions, time))
            for partition in partitions:
                first_message = first_messages[partition]
                offset = int(topic.high_watermarks[partition]) if first_message is None else first_message[0]
                resets.append(ResetPartition(topic.topic, partition, offset, topic_id))
        return resets

    def list(self) -> builtins.list[str]:
        """Return the names of groups that were created, have members, or have committed offsets."""
        return list_group_names(self._state())

    def all(self, states: Iterable[str] = (), *, rates: bool = True) -> builtins.list[GroupInfo]:
        """Return all groups by name.

        Args:
            states: only groups in one of these states; left out, all.
            rates: whether to measure how fast groups consume, for which a table is read twice. Else the rates are None.

        Raises:
            InvalidRequest: an argument is not valid.
        """
        chosen_states = {parse_choice("states", state, [*GroupStatus]) for state in parse_list("states", states)}
        state, now_ms = self._state(), self._time_ms()
        consumption = self._consumption() if parse_flag("rates", rates) else None
        notes = self._read_notes(state)
        groups = (
            describe_group(state, name, self._retention_ms, now_ms, consumption, notes)
            for name in list_group_names(state)
        )
        return [group for group in groups if not chosen_states or group.state in chosen_states]

    def _repr_html_(self) -> str:
        groups = self.all(rates=False)
        rows = ((group.group, group.protocol, group.state, group.members, group.lag) for group in groups)
        return build_html_table(f"{len(groups)} groups", ("group", "protocol", "state", "members", "lag"), rows)

    def describe(self, group: str) -> GroupInfo:
        """Return one group. Raises GroupIdNotFound, InvalidGroupId."""
        name, state, now_ms = parse_group_name(group), self._state(), self._time_ms()
        notes = self._read_notes(state)
        return describe_group(state, name, self._retention_ms, now_ms, self._consumption(), notes)

    def members(self, group: str) -> builtins.list[MemberInfo]:
        """Return the members in the order in which they joined. Raises GroupIdNotFound, InvalidGroupId."""
        state = self._state()
        return describe_members(find_group(state, parse_group_name(group)), self._read_notes(state))

    def stalls(self, group: str) -> builtins.list[Stall]:
        """Return what holds up a group, and what to do about it.

        Raises:
            GroupIdNotFound, InvalidGroupId: the group does not exist.
        """
        name, state = parse_group_name(group), self._state()
        return find_stalls(state, name, list_partition_lags(state, name), self._read_notes(state), self._time_ms())

    def assignments(self, group: str) -> builtins.list[AssignmentInfo]:
        """Return the partitions by topic and partition. Raises GroupIdNotFound, InvalidGroupId."""
        return describe_assignments(find_group(self._state(), parse_group_name(group)), self._time_ms())

    def lag(self, group: str) -> builtins.list[PartitionLag]:
        """Return how far the group has come, by topic and partition.

        It has a row for every partition that the group shares among its members, also before its first commit, and
        for every partition in which it has committed offsets.

        Raises:
            GroupIdNotFound, InvalidGroupId: the group does not exist.
        """
        return list_partition_lags(self._state(), parse_group_name(group))


def read_commit_metadata(requester: Requester, group: str) -> dict[tuple[str, int], str]:
    """Return (topic, partition) -> metadata of the committed offsets of a group, "" if a commit has none."""
    answer = requester.ask(FetchOffsets(group))
    assert isinstance(answer, OffsetsFetched)
    return {(commit.topic, commit.partition): commit.metadata or "" for commit in answer.offsets}


def commit_for_group(requester: Requester, group: str, commits: Mapping[tuple[str, int], tuple[int, str]]) -> None:
    """Commit offsets for a group without members. commits: (topic, partition) -> offset and metadata.

    Raises:
        UnknownMemberId: the group has members.
        LakeMQError: the group cannot be changed for another reason.
    """
    if commits:
        offsets = [OffsetCommit(*tp, offset, metadata) for tp, (offset, metadata) in commits.items()]
        requester.ask(CommitOffsets(group, offsets))
