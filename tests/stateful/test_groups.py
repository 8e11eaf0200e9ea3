"""Groups under random actions: the core alone, with late answers of assignors, silent members, restarts and time.

The rules are checked against the journal, not the state: which member got a partition when, and who had released it by
then. In both protocols partitions move by such records. In the classic protocol all partitions are released before any
is assigned.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from protocol_harness import Harness, plain
from protocol_tables import add_pass, mark_of, restored
from stateful.runs import runs

from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rules import reconciling
from lakemq.engine.protocol.values.assignments import Group, GroupStatus, PartitionStatus, TopicIdPartition
from lakemq.engine.protocol.values.groups import (
    Assigned,
    DeleteGroup,
    GroupForgotten,
    JoinGroup,
    LeaveGroup,
    MemberJoined,
    MemberLeft,
    MemberSilent,
    PartitionsAdded,
    PartitionsGone,
    PartitionsMoved,
    RebalanceCompleted,
    ReleasePartitions,
    TargetComputed,
)
from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.offsets import (
    CommitOffsets,
    DeleteOffsets,
    OffsetCommit,
    OffsetsChanged,
    OffsetsCommitted,
    OffsetsJudged,
    OffsetsRemoved,
    ResetOffsets,
)
from lakemq.engine.protocol.values.topics import AlterTopic, DeleteTopic, PartitionsEnded, Topic

GROUP = "g"
MAX_POLL_MS = 10_000
DELAY_MS = 1_000
RETENTION_MS = 604_800_000
TOPICS = ["t", "u"]

members = st.sampled_from([f"C{n}" for n in range(1, 6)])
instances = st.sampled_from([None, None, None, "i", "j"])
topics = st.sampled_from([["t"], ["u"], ["t", "u"]])
# each of these assignors shares evenly
assignor_lists = st.sampled_from(
    [
        [],
        [],
        ["sticky"],
        ["sticky", "roundrobin"],
        ["cooperative-sticky", "sticky"],
        ["roundrobin", "cooperative-sticky"],
    ]
)


class Groups(RuleBasedStateMachine):
    config: dict[str, Any] = {"group.protocol": "cooperative"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.move_limit = patch.object(reconciling, "MAX_MOVES", 1)
        self.move_limit.start()
        self.mq = Harness()
        self.mq.create("t", 3)
        self.mq.create("u", 2)
        self.late_targets: list[TargetComputed] = []
        self.assigned_epochs: dict[tuple[str, TopicIdPartition], int] = {}
        """Member and partition -> the epoch under which the member last got the partition."""
        self.checked_steps = 0
        self.owners: dict[TopicIdPartition, str] = {}
        self.last_releases: dict[TopicIdPartition, tuple[str, int]] = {}
        """Partition -> the member that released it last, and the epoch under which it had it."""
        self.generation, self.generations = 0, dict[int, int]()
        """Epoch -> generation, for all epochs so far."""
        self.current_members: set[str] = set()
        self.committed: dict[TopicIdPartition, int] = {}
        self.group_starts: dict[TopicIdPartition, int] = {}
        """Partition -> where the group starts, unless that was removed together with its committed offset."""
        self.delay_ms = 0

    # -- actions ----------------------------------------------------------------------------------------

    @rule(member=members, subscription=topics, instance=instances, assignors=assignor_lists)
    def join(self, member: str, subscription: list[str], instance: str | None, assignors: Sequence[str] = ()) -> None:
        join = JoinGroup(GROUP, member, subscription, None, instance, 6_000, MAX_POLL_MS, "earliest", self.config)
        can_agree = self.can_agree(member, instance, assignors)
        result = self.mq.one(msgspec.structs.replace(join, assignors=list(assignors)))
        refusal = result.error if isinstance(result, Refusal) else None
        # a living member that names another instance id is refused for that
        assert refusal in (
            {None, "INVALID_REQUEST"} if can_agree else {"INCONSISTENT_GROUP_PROTOCOL", "INVALID_REQUEST"}
        )

    def can_agree(self, member: str, instance: str | None, assignors: Sequence[str]) -> bool:
        """Return whether all members, including this one with its new list, have an assignor in common."""
        group = self.mq.state.groups.get(GROUP)
        if not assignors:
            return True
        if required := (group.config if group else self.config).get("group.assignor"):
            return required in assignors
        replaced = {member, group.instances.get(instance or "")} if group else set()
        member_lists = (
            [other.assignors for name, other in group.members.items() if name not in replaced] if group else []
        )
        return any(all(name in supported for supported in member_lists if supported) for name in assignors)

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.mq.one(LeaveGroup(GROUP, [member]))

    @rule(member=members, reason=st.sampled_from(["session", "poll"]))
    def fall_silent(self, member: str, reason: str) -> None:
        self.mq.see(MemberSilent(GROUP, member, reason))

    @rule()
    def assignors_answer(self) -> None:
        self.mq.assign()

    @rule(member=members)
    def join_and_assign(self, member: str) -> None:
        self.join(member, ["t"], None)
        self.mq.assign()

    @rule(member=members)
    def give_up_paused_partitions(self, member: str) -> None:
        if group := self.mq.state.groups.get(GROUP):
            paused = [tp for tp in group.list_partitions_of(member) if tp in group.paused]
            to_release = [Assigned(*tp, group.assignments[tp].epoch) for tp in paused]
            self.mq.one(ReleasePartitions(GROUP, member, to_release))
            self.mq.assign()

    @rule()
    def assignors_compute_targets(self) -> None:
        self.late_targets += self.mq.targets()

    @precondition(lambda self: self.late_targets)
    @rule(data=st.data())
    def hear_a_late_target(self, data: st.DataObject) -> None:
        """Targets arrive in any order, and may come from an old state of the group."""
        index = data.draw(st.integers(0, len(self.late_targets) - 1))
        self.mq.see(self.late_targets.pop(index))

    @rule(member=members, data=st.data())
    def give_up_old_assignment(self, member: str, data: st.DataObject) -> None:
        """Release a partition under an old assignment. It goes only if it is paused, and the assignment is the member's
        and current.
        """
        if not self.assigned_epochs or (group := self.mq.state.groups.get(GROUP)) is None:
            return
        assignments = sorted(self.assigned_epochs.items())
        paused = [assignment for assignment in assignments if assignment[0][1] in group.paused]
        (_, tp), epoch = data.draw(st.sampled_from(paused or assignments))
        is_released = tp in group.paused and self.owners.get(tp) == member and group.assignments[tp].epoch == epoch
        self.mq.one(ReleasePartitions(GROUP, member, [Assigned(*tp, epoch)]))
        moved = [
            move
            for entry in self.mq.steps[-1].entries
            if isinstance(entry.record, PartitionsMoved) and entry.record.reason == "released"
            for move in entry.record.moves
        ]
        assert [(move.topic_id, move.partition) for move in moved] == [tp] * is_released

    @rule(member=members, wait_ms=st.sampled_from([1, MAX_POLL_MS + 1]))
    def pass_time(self, member: str, wait_ms: int) -> None:
        self.mq.now_ms += wait_ms
        self.mq.expire()

    @rule(living=st.booleans())
    def pass_retention_time(self, living: bool) -> None:
        """The group is forgotten then, unless it has members."""
        self.all_leave() if not living else None
        is_manned, before = bool(self.mq.state.groups_with_members), dict(self.mq.state.offsets.get(GROUP, {}))
        self.mq.now_ms += RETENTION_MS + 1
        self.mq.expire()
        if is_manned:
            assert self.mq.state.offsets.get(GROUP, {}) == before
        else:
            self.late_targets.clear()
            assert (self.mq.state.groups, self.mq.state.offsets) == ({}, {})

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(0, 2))
    def grow(self, topic: str, more: int) -> None:
        if topic in self.mq.state.topic_ids:
            self.mq.one(AlterTopic(topic, partitions=self.mq.state.topic(topic).partition_count + more))

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 2))
    def shrink(self, topic: str, partitions: int) -> None:
        if topic in self.mq.state.topic_ids:
            self.mq.one(AlterTopic(topic, partitions=partitions, force=True))

    @rule(topic=st.sampled_from(TOPICS))
    def delete_or_make(self, topic: str) -> None:
        if topic in self.mq.state.topic_ids:
            self.mq.one(DeleteTopic(topic))
        else:
            self.mq.create(topic, 2)

    @rule(topic=st.sampled_from(TOPICS))
    def publish(self, topic: str) -> None:
        if topic in self.mq.state.topic_ids:
            request: Produce = self.mq.produce(
                dict.fromkeys(range(self.mq.state.topic(topic).partition_count), 2), topic
            )
            self.mq.one(request)

    @rule(member=members, data=st.data())
    def commit(self, member: str, data: st.DataObject) -> None:
        """Commit under assignments that members got. Each one counts if it is still current and the member's own."""
        assignments = [(owner, tp, epoch) for (owner, tp), epoch in sorted(self.assigned_epochs.items())]
        existing = [assignment for assignment in assignments if assignment[1][0] in self.mq.state.topics]
        if not existing:
            return
        own = [assignment for assignment in existing if assignment[0] == member] or existing
        drawn = data.draw(
            st.lists(st.sampled_from(own) | st.sampled_from(existing), min_size=1, max_size=3, unique=True)
        )
        chosen = [(tp, epoch) for _, tp, epoch in drawn]
        group = self.mq.state.groups.get(GROUP, Group(GROUP))
        fenced = [i for i, (tp, epoch) in enumerate(chosen) if not self.may_commit(member, tp, epoch)]
        generation = self.generations[chosen[0][1]]
        before = dict(self.mq.state.offsets.get(GROUP, {}))
        commits = [
            OffsetCommit(
                self.mq.state.topics[t].topic, p, self._draw_next_offset(data, (t, p)), f"by {member}", t, epoch
            )
            for (t, p), epoch in chosen
        ]
        result = self.mq.one(CommitOffsets(GROUP, commits, None, member, generation))
        after = self.mq.state.offsets.get(GROUP, {})
        changed = {tp for tp, offset in after.items() if before.get(tp) != offset}
        if member not in group.members:
            assert isinstance(result, Refusal)
            assert result.error == "UNKNOWN_MEMBER_ID"
            assert not changed
        elif error := self.refusal(generation):
            assert isinstance(result, Refusal)
            assert result.error == error
            assert not changed
        else:
            assert isinstance(result, OffsetsJudged)
            assert result.fenced == fenced
            assert changed <= {tp for i, (tp, _) in enumerate(chosen) if i not in fenced}

    def may_commit(self, member: str, tp: TopicIdPartition, epoch: int) -> bool:
        return self.owners.get(tp) == member and self.mq.state.groups[GROUP].assignments[tp].epoch == epoch

    def refusal(self, generation: int) -> str | None:
        """Return the error of every commit by a member that has read in this generation, if there is one."""
        return None

    @rule(member=members, topic=st.sampled_from(TOPICS))
    def work_off_new_messages(self, member: str, topic: str) -> None:
        self.publish(topic)
        self.join_and_assign(member)
        group, topics = self.mq.state.groups[GROUP], self.mq.state.topics
        commits = [
            OffsetCommit(topics[t].topic, p, int(topics[t].high_watermarks[p]), None, t, group.assignments[t, p].epoch)
            for t, p in group.list_partitions_of(member)
        ]
        self.mq.one(CommitOffsets(GROUP, commits, None, member, group.generation))

    @rule(member=members, topic=st.sampled_from(TOPICS), more=st.booleans())
    def shrink_consumed_topic(self, member: str, topic: str, more: bool) -> None:
        """Shrink a topic that the member has consumed. more: some messages are left in it."""
        self.work_off_new_messages(member, topic)
        self.publish(topic) if more else None
        self.shrink(topic, 1)
        self.pass_time(member, 1)

    def _draw_next_offset(self, data: st.DataObject, tp: TopicIdPartition) -> int:
        """Draw an offset that is not below the committed one, as consumers commit that never seek."""
        end = int(self.mq.state.topics[tp[0]].high_watermarks[tp[1]])
        return data.draw(st.integers(self.committed.get(tp, 0), end))

    @rule(living=st.booleans())
    def delete_the_group(self, living: bool) -> None:
        """The request is refused while the group has members."""
        self.all_leave() if not living else None
        group = self.mq.state.groups.get(GROUP)
        is_known, has_members = group is not None or bool(self.committed), group is not None and bool(group.members)
        result = self.mq.one(DeleteGroup(GROUP))
        assert isinstance(result, Refusal) == (has_members or not is_known)
        if not isinstance(result, Refusal):
            # a target on its way names members, and only this test uses the id of a member again
            self.late_targets.clear()
            assert (self.mq.state.groups, self.mq.state.offsets) == ({}, {})

    @rule(topic=st.sampled_from(TOPICS))
    def delete_offsets(self, topic: str) -> None:
        group, before = self.mq.state.groups.get(GROUP), dict(self.committed)
        result = self.mq.one(DeleteOffsets(GROUP, [(topic, None)]))
        if isinstance(result, Refusal):
            assert result.error in ("GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PARTITION", "GROUP_SUBSCRIBED_TO_TOPIC")
            return
        assert isinstance(result, OffsetsChanged)
        topic_id = self.mq.state.topic_ids[topic]
        of_topic = {tp: offset for tp, offset in before.items() if tp[0] == topic_id}
        assert {(topic_id, change.partition): change.before for change in result.changes} == of_topic
        assert all(tp[0] != topic_id for tp in self.owners)
        assert group is None or all(topic not in member.topics for member in group.members.values())

    def all_leave(self) -> None:
        if group := self.mq.state.groups.get(GROUP):
            self.mq.one(LeaveGroup(GROUP, sorted(group.members)))

    @rule(
        to=st.sampled_from(["earliest", "latest", "offset", "shift"]),
        by=st.integers(-3, 3),
        dry_run=st.booleans(),
        living=st.booleans(),
    )
    def reset(self, to: Any, by: int, dry_run: bool, living: bool) -> None:
        self.all_leave() if not living else None
        before = dict(self.committed)
        result = self.mq.one(ResetOffsets(GROUP, to, by, None, dry_run))
        if isinstance(result, Refusal):
            assert result.error in ("NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND", "NO_OFFSET_FOR_PARTITION")
            return
        assert isinstance(result, OffsetsChanged)
        assert not self.mq.state.groups_with_members
        changes = {(self.mq.state.topic_ids[change.topic], change.partition): change for change in result.changes}
        assert {tp: change.before for tp, change in changes.items() if change.before is not None} == before
        after = before if dry_run else {tp: change.after for tp, change in changes.items()}
        assert {tp: committed.offset for tp, committed in self.mq.state.offsets.get(GROUP, {}).items()} == after

    @rule()
    def another_leads(self) -> None:
        """The state that is restored from the tables has the same groups."""
        tables: dict[str, Any] = {}
        add_pass(tables, self.mq.state, self.mq.steps)
        reloaded = restored(mark_of(self.mq.state), tables)
        for part in ("groups", "groups_with_members", "waiting_groups"):
            assert plain(reloaded)[part] == plain(self.mq.state)[part]
        self.mq.state.groups, self.mq.state.touched_groups = reloaded.groups, reloaded.touched_groups

    # -- invariants -------------------------------------------------------------------------------------

    # Invariants run in the order of their names. Those after this one need what it notes.
    @invariant()
    def the_journal_assigns_only_free_partitions(self) -> None:
        for step in self.mq.steps[self.checked_steps :]:
            replaced: dict[str, str] = {}
            for entry in step.entries:
                record = entry.record
                if isinstance(record, MemberJoined):
                    self.current_members.add(record.member_id)
                    if record.replaces is not None:
                        self.current_members.discard(record.replaces)
                        replaced[record.member_id] = record.replaces
                        for tp, (member, epoch) in self.last_releases.items():
                            self.last_releases[tp] = (
                                (record.member_id if member == record.replaces else member),
                                epoch,
                            )
                elif isinstance(record, MemberLeft):
                    self.current_members.discard(record.member_id)
                    self.last_releases = self.last_releases if self.current_members else {}
                elif isinstance(record, RebalanceCompleted):
                    assert record.generation == self.generation + 1
                    self.generation = record.generation
                elif isinstance(record, PartitionsAdded):
                    for partition, offset in enumerate(record.start_offsets, record.first):
                        self.group_starts[record.topic_id, partition] = offset or 0
                elif isinstance(record, PartitionsEnded):
                    self._check_ended_partitions(record)
                elif isinstance(record, PartitionsGone):
                    gone = {(record.topic_id, partition) for partition in range(record.first, record.partitions)}
                    self.last_releases = {
                        tp: assignment for tp, assignment in self.last_releases.items() if tp not in gone
                    }
                    self.owners = {tp: owner for tp, owner in self.owners.items() if tp not in gone}
                    self.group_starts = {tp: offset for tp, offset in self.group_starts.items() if tp not in gone}
                elif isinstance(record, GroupForgotten):
                    assert not self.current_members
                    assert not self.owners
                    self.generation = 0
                elif isinstance(record, OffsetsCommitted | OffsetsRemoved):
                    self._note_offsets(record)
                elif isinstance(record, PartitionsMoved):
                    for move in record.moves:
                        self._move((move.topic_id, move.partition), move.status, move.owner, replaced, step.step)
            self.generations[step.step] = self.generation
        self.checked_steps = len(self.mq.steps)

    def _check_ended_partitions(self, record: PartitionsEnded) -> None:
        """A partition that ends has no messages left for a group that has read it. It takes no publish any
        more, so its end is final.
        """
        topic = self.mq.state.topics[record.topic_id]
        for partition in range(record.first, topic.log_count):
            tp, end = (record.topic_id, partition), int(topic.high_watermarks[partition])
            assert self.committed.get(tp, self.group_starts.get(tp, end)) >= end

    def _note_offsets(self, record: OffsetsCommitted | OffsetsRemoved) -> None:
        """I7: committed offsets move back only where the journal has an operator's request."""
        if isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                del self.committed[record.topic_id, partition]
                self.group_starts.pop((record.topic_id, partition), None)
            return
        for topic_id, committed in zip(record.topic_ids, record.offsets, strict=True):
            tp = topic_id, committed.partition
            assert record.reason == "reset" or committed.offset >= self.committed.get(tp, 0)
            self.committed[tp] = committed.offset

    def _move(
        self, tp: TopicIdPartition, status: PartitionStatus, owner: str | None, replaced: dict[str, str], step: int
    ) -> None:
        before = self.owners.pop(tp, None)
        if before is not None and self.current_members:  # no member comes back to an empty group
            self.last_releases[tp] = before, self.assigned_epochs[before, tp]
        if status is PartitionStatus.READY:
            assert owner in self.current_members
            assert before is None or before == replaced.get(owner or "")
            self.assigned_epochs[owner or "", tp] = step
        if status is PartitionStatus.PAUSED:
            assert before == owner
        if owner is not None:
            self.owners[tp] = owner

    @invariant()
    def the_state_is_what_the_journal_says(self) -> None:
        state = self.mq.state
        assert {tp: committed.offset for tp, committed in state.offsets.get(GROUP, {}).items()} == self.committed
        for (topic_id, partition), offset in self.committed.items():
            assert 0 <= offset <= state.topics[topic_id].high_watermarks[partition]
        group = state.groups.get(GROUP)
        if group is None:
            return
        assert group.members.keys() == self.current_members
        assert {tp: assignment.owner for tp, assignment in group.assignments.items() if assignment.owner} == self.owners
        assert group.instances == {
            member.instance_id: name for name, member in group.members.items() if member.instance_id
        }
        assert group.paused == {
            tp for tp, assignment in group.assignments.items() if assignment.status is PartitionStatus.PAUSED
        }

    @invariant()
    def the_state_lists_the_right_groups(self) -> None:
        state = self.mq.state
        assert state.groups_with_members == {name for name, group in state.groups.items() if group.members}
        assert state.waiting_groups == {name for name, group in state.groups.items() if group.is_waiting}
        assert state.list_moving_groups() == {name for name, group in state.groups.items() if group.is_moving_on}

    @invariant()
    def a_stable_group_is_whole_and_even(self) -> None:
        group = self.mq.state.groups.get(GROUP)
        if group is None or group.status is not GroupStatus.STABLE:
            return
        subscribed = {name for member in group.members.values() for name in member.topics}
        counts = {name: topic.consumed_count for name, topic in self._topics_of(group).items()}
        assert {
            name: sum(assignment.topic == name for assignment in group.assignments.values()) for name in counts
        } == counts
        for tp, assignment in group.assignments.items():
            assert (assignment.owner is not None) == (self.mq.state.topics[tp[0]].topic in subscribed)
            if assignment.owner is not None:
                assert self.mq.state.topics[tp[0]].topic in group.members[assignment.owner].topics
        if len({member.topics for member in group.members.values()}) == 1:
            counts = Counter(assignment.owner for assignment in group.assignments.values())
            shares = [counts[name] for name in group.members]
            assert max(shares) - min(shares) <= 1

    @invariant()
    def all_members_support_the_assignor_of_the_target(self) -> None:
        group = self.mq.state.groups.get(GROUP)
        if group is not None and group.target_epoch == group.group_epoch:
            for member in group.members.values():
                assert not member.assignors or group.assignor in member.assignors

    def _topics_of(self, group: Group) -> dict[str, Topic]:
        return {self.mq.state.topics[t].topic: self.mq.state.topics[t] for t, _ in group.assignments}

    def teardown(self) -> None:
        """Check that the group comes to rest when its members release what they have to."""
        try:
            self.come_to_rest()
        finally:
            self.move_limit.stop()

    def come_to_rest(self) -> None:
        group = self.mq.state.groups.get(GROUP)
        self.mq.now_ms += DELAY_MS
        self.mq.expire()
        for _ in range(4):
            self.mq.assign()
            for member in sorted(group.members if group else ()):
                self.give_up_paused_partitions(member)
        if group is not None:
            self.the_journal_assigns_only_free_partitions()
            group = self.mq.state.groups[GROUP]
            assert group.status in (GroupStatus.STABLE, GroupStatus.EMPTY)
            self.a_stable_group_is_whole_and_even()


class ClassicGroups(Groups):
    config = {  # noqa: RUF012
        "group.protocol": "classic",
        "group.initial.rebalance.delay.ms": DELAY_MS,
        "group.assignor": "sticky",
    }

    def may_commit(self, member: str, tp: TopicIdPartition, epoch: int) -> bool:
        """A commit also counts for a partition that the member has released, if no other member has had it since."""
        return super().may_commit(member, tp, epoch) or (
            tp not in self.owners and self.last_releases.get(tp) == (member, epoch)
        )

    def refusal(self, generation: int) -> str | None:
        if generation != self.generation:
            return "ILLEGAL_GENERATION"
        is_completing = self.mq.state.groups[GROUP].status is GroupStatus.COMPLETING
        return "REBALANCE_IN_PROGRESS" if is_completing else None

    @rule(wait_ms=st.sampled_from([1, DELAY_MS]))
    def the_first_waits_for_others(self, wait_ms: int) -> None:
        self.mq.now_ms += wait_ms
        self.mq.expire()
        self.mq.assign()

    @rule()
    def all_give_up_paused_partitions(self) -> None:
        for member in sorted(self.current_members):
            self.give_up_paused_partitions(member)

    @rule(member=members, late=members, data=st.data())
    def rebalance_and_commit(self, member: str, late: str, data: st.DataObject) -> None:
        """At some moment of the rebalance a member commits what it may have read before."""
        self.join_and_assign(member)
        self.the_first_waits_for_others(DELAY_MS)
        moment = data.draw(st.integers(0, 6))
        for number, releasing_member in enumerate([*sorted(self.current_members), None]):
            self.the_journal_assigns_only_free_partitions()
            self.commit(late, data) if number == moment else None
            self.give_up_paused_partitions(releasing_member) if releasing_member else None

    def _move(
        self, tp: TopicIdPartition, status: PartitionStatus, owner: str | None, replaced: dict[str, str], step: int
    ) -> None:
        """Partitions are assigned when all of the last generation are released. Only a process that replaces a member
        has them at once.
        """
        if status is PartitionStatus.READY and owner not in replaced:
            assert {self.assigned_epochs[member, owned_place] for owned_place, member in self.owners.items()} <= {step}
        super()._move(tp, status, owner, replaced, step)

    @invariant()
    def the_whole_group_is_of_one_generation(self) -> None:
        """All owned partitions are of one generation, so no member goes on reading under an older one. All are paused,
        or none.
        """
        group = self.mq.state.groups.get(GROUP)
        if group is None:
            return
        owned = [assignment for assignment in group.assignments.values() if assignment.owner is not None]
        assert {self.generations[assignment.epoch] for assignment in owned} <= {group.generation}
        assert {assignment.status is PartitionStatus.PAUSED for assignment in owned} <= {
            group.status is GroupStatus.PREPARING
        }
        assert not (owned and group.not_before_ms)
        if group.status is GroupStatus.COMPLETING:
            assert not owned


TestGroups = Groups.TestCase
TestGroups.settings = runs(60, 40)
TestClassicGroups = ClassicGroups.TestCase
TestClassicGroups.settings = runs(60, 40)
