"""Groups, whatever their members do: the core alone, with assignors that answer late, silence, restarts and time.

What must hold is said of the journal, not of the state: who was given a partition when, and who had let it go by then.
In both protocols that share partitions by such words; in the classic one all are let go before any is given.
"""

from __future__ import annotations

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
from lakemq.engine.protocol.values.assignments import Group, GroupStatus, PartitionStatus, Place
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
# all of them share evenly
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
        self.bound = patch.object(reconciling, "MAX_MOVES", 1)
        self.bound.start()
        self.mq = Harness()
        self.mq.create("t", 3)
        self.mq.create("u", 2)
        self.late: list[TargetComputed] = []
        self.believed: dict[tuple[str, Place], int] = {}
        """Member and partition -> the epoch of an assignment that it was told of once."""
        self.seen_steps = 0
        self.owners: dict[Place, str] = {}
        self.had: dict[Place, tuple[str, int]] = {}
        """Who has let it go last, and the epoch under which it had it."""
        self.generation, self.generations = 0, dict[int, int]()
        """And epoch -> generation."""
        self.living: set[str] = set()
        self.committed: dict[Place, int] = {}
        self.begins: dict[Place, int] = {}
        """Where the group begins in what it has, but where somebody has made it forget that."""
        self.delay_ms = 0

    # -- what happens -----------------------------------------------------------------------------------

    @rule(member=members, wanted=topics, instance=instances, assignors=assignor_lists)
    def join(self, member: str, wanted: list[str], instance: str | None, assignors: Sequence[str] = ()) -> None:
        join = JoinGroup(GROUP, member, wanted, None, instance, 6_000, MAX_POLL_MS, "earliest", self.config)
        can_agree = self.can_agree(member, instance, assignors)
        result = self.mq.one(msgspec.structs.replace(join, assignors=list(assignors)))
        refusal = result.error if isinstance(result, Refusal) else None
        # a living member that names another instance id is refused for that
        assert refusal in (
            {None, "INVALID_REQUEST"} if can_agree else {"INCONSISTENT_GROUP_PROTOCOL", "INVALID_REQUEST"}
        )

    def can_agree(self, member: str, instance: str | None, assignors: Sequence[str]) -> bool:
        """Whether some assignor is in the lists of all members, once this one has joined with its own."""
        group = self.mq.state.groups.get(GROUP)
        if not assignors:
            return True
        if required := (group.config if group else self.config).get("group.assignor"):
            return required in assignors
        replaced = {member, group.instances.get(instance or "")} if group else set()
        others = [one.assignors for name, one in group.members.items() if name not in replaced] if group else []
        return any(all(name in known for known in others if known) for name in assignors)

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
    def join_and_be_given(self, member: str) -> None:
        self.join(member, ["t"], None)
        self.mq.assign()

    @rule(member=members)
    def do_as_one_is_told(self, member: str) -> None:
        if group := self.mq.state.groups.get(GROUP):
            paused = [place for place in group.list_places_of(member) if place in group.paused]
            told = [Assigned(*place, group.assignments[place].epoch) for place in paused]
            self.mq.one(ReleasePartitions(GROUP, member, told))
            self.mq.assign()

    @rule()
    def assignors_are_asked(self) -> None:
        self.late += self.mq.targets()

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def hear_an_assignor(self, data: st.DataObject) -> None:
        """In any order, and maybe of a group as it was long ago."""
        which = data.draw(st.integers(0, len(self.late) - 1))
        self.mq.see(self.late.pop(which))

    @rule(member=members, data=st.data())
    def give_up_what_one_once_had(self, member: str, data: st.DataObject) -> None:
        """Under the assignment of that time, or another member's: only what is its own, and is to be given up, goes."""
        if not self.believed or (group := self.mq.state.groups.get(GROUP)) is None:
            return
        known = sorted(self.believed.items())
        paused = [one for one in known if one[0][1] in group.paused]
        (_, place), epoch = data.draw(st.sampled_from(paused or known))
        goes = place in group.paused and self.owners.get(place) == member and group.assignments[place].epoch == epoch
        self.mq.one(ReleasePartitions(GROUP, member, [Assigned(*place, epoch)]))
        moved = [
            move
            for entry in self.mq.steps[-1].entries
            if isinstance(entry.record, PartitionsMoved) and entry.record.reason == "released"
            for move in entry.record.moves
        ]
        assert [(move.topic_id, move.partition) for move in moved] == [place] * goes

    @rule(member=members, wait_ms=st.sampled_from([1, MAX_POLL_MS + 1]))
    def pass_time(self, member: str, wait_ms: int) -> None:
        self.mq.now_ms += wait_ms
        self.mq.expire()

    @rule(living=st.booleans())
    def pass_so_much_time_that_it_is_forgotten(self, living: bool) -> None:
        """But not while it lives."""
        self.all_leave() if not living else None
        is_manned, before = bool(self.mq.state.groups_with_members), dict(self.mq.state.offsets.get(GROUP, {}))
        self.mq.now_ms += RETENTION_MS + 1
        self.mq.expire()
        if is_manned:
            assert self.mq.state.offsets.get(GROUP, {}) == before
        else:
            self.late.clear()
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
        """Under an assignment that somebody was told of once: it counts if that is still the one, and the member's."""
        told = [(who, place, epoch) for (who, place), epoch in sorted(self.believed.items())]
        there = [one for one in told if one[1][0] in self.mq.state.topics]
        if not there:
            return
        mine = [one for one in there if one[0] == member] or there
        drawn = data.draw(st.lists(st.sampled_from(mine) | st.sampled_from(there), min_size=1, max_size=3, unique=True))
        chosen = [(place, epoch) for _, place, epoch in drawn]
        known = self.mq.state.groups.get(GROUP, Group(GROUP))
        fenced = [i for i, (place, epoch) in enumerate(chosen) if not self.may_commit(member, place, epoch)]
        generation = self.generations[chosen[0][1]]
        before = dict(self.mq.state.offsets.get(GROUP, {}))
        asked = [
            OffsetCommit(self.mq.state.topics[t].topic, p, self._further(data, (t, p)), f"by {member}", t, epoch)
            for (t, p), epoch in chosen
        ]
        result = self.mq.one(CommitOffsets(GROUP, asked, None, member, generation))
        after = self.mq.state.offsets.get(GROUP, {})
        changed = {place for place, one in after.items() if before.get(place) != one}
        if member not in known.members:
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
            assert changed <= {place for i, (place, _) in enumerate(chosen) if i not in fenced}

    def may_commit(self, member: str, place: Place, epoch: int) -> bool:
        return self.owners.get(place) == member and self.mq.state.groups[GROUP].assignments[place].epoch == epoch

    def refusal(self, generation: int) -> str | None:
        """Of all that a member commits which has read in this generation."""
        return None

    @rule(member=members, topic=st.sampled_from(TOPICS))
    def work_off_what_comes(self, member: str, topic: str) -> None:
        self.publish(topic)
        self.join_and_be_given(member)
        group, topics = self.mq.state.groups[GROUP], self.mq.state.topics
        done = [
            OffsetCommit(topics[t].topic, p, int(topics[t].high_watermarks[p]), None, t, group.assignments[t, p].epoch)
            for t, p in group.list_places_of(member)
        ]
        self.mq.one(CommitOffsets(GROUP, done, None, member, group.generation))

    @rule(member=members, topic=st.sampled_from(TOPICS), more=st.booleans())
    def shrink_what_one_has_worked_off(self, member: str, topic: str, more: bool) -> None:
        """more: of which something is left."""
        self.work_off_what_comes(member, topic)
        self.publish(topic) if more else None
        self.shrink(topic, 1)
        self.pass_time(member, 1)

    def _further(self, data: st.DataObject, place: Place) -> int:
        """As consumers do that never seek."""
        end = int(self.mq.state.topics[place[0]].high_watermarks[place[1]])
        return data.draw(st.integers(self.committed.get(place, 0), end))

    @rule(living=st.booleans())
    def delete_the_group(self, living: bool) -> None:
        """While it lives that is refused."""
        self.all_leave() if not living else None
        group = self.mq.state.groups.get(GROUP)
        is_known, has_members = group is not None or bool(self.committed), group is not None and bool(group.members)
        result = self.mq.one(DeleteGroup(GROUP))
        assert isinstance(result, Refusal) == (has_members or not is_known)
        if not isinstance(result, Refusal):
            # what an assignor says of it names its members, whose ids are never given twice but here
            self.late.clear()
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
        of_topic = {place: at for place, at in before.items() if place[0] == topic_id}
        assert {(topic_id, change.partition): change.before for change in result.changes} == of_topic
        assert all(place[0] != topic_id for place in self.owners)
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
        told = {(self.mq.state.topic_ids[change.topic], change.partition): change for change in result.changes}
        assert {place: one.before for place, one in told.items() if one.before is not None} == before
        after = before if dry_run else {place: one.after for place, one in told.items()}
        assert {place: one.offset for place, one in self.mq.state.offsets.get(GROUP, {}).items()} == after

    @rule()
    def another_leads(self) -> None:
        """What the tables say makes the same groups."""
        tables: dict[str, Any] = {}
        add_pass(tables, self.mq.state, self.mq.steps)
        again = restored(mark_of(self.mq.state), tables)
        for what in ("groups", "groups_with_members", "waiting_groups"):
            assert plain(again)[what] == plain(self.mq.state)[what]
        self.mq.state.groups, self.mq.state.touched_groups = again.groups, again.touched_groups

    # -- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def the_journal_gives_nothing_that_is_not_free(self) -> None:
        for step in self.mq.steps[self.seen_steps :]:
            replaced: dict[str, str] = {}
            for entry in step.entries:
                record = entry.record
                if isinstance(record, MemberJoined):
                    self.living.add(record.member_id)
                    if record.replaces is not None:
                        self.living.discard(record.replaces)
                        replaced[record.member_id] = record.replaces
                        for place, (who, epoch) in self.had.items():
                            self.had[place] = (record.member_id if who == record.replaces else who), epoch
                elif isinstance(record, MemberLeft):
                    self.living.discard(record.member_id)
                    self.had = self.had if self.living else {}
                elif isinstance(record, RebalanceCompleted):
                    assert record.generation == self.generation + 1
                    self.generation = record.generation
                elif isinstance(record, PartitionsAdded):
                    for partition, at in enumerate(record.start_offsets, record.first):
                        self.begins[record.topic_id, partition] = at or 0
                elif isinstance(record, PartitionsEnded):
                    self._check_passed(record)
                elif isinstance(record, PartitionsGone):
                    gone = {(record.topic_id, partition) for partition in range(record.first, record.partitions)}
                    self.had = {place: assignment for place, assignment in self.had.items() if place not in gone}
                    self.owners = {place: who for place, who in self.owners.items() if place not in gone}
                    self.begins = {place: at for place, at in self.begins.items() if place not in gone}
                elif isinstance(record, GroupForgotten):
                    assert not self.living
                    assert not self.owners
                    self.generation = 0
                elif isinstance(record, OffsetsCommitted | OffsetsRemoved):
                    self._note_offsets(record)
                elif isinstance(record, PartitionsMoved):
                    for move in record.moves:
                        self._move((move.topic_id, move.partition), move.status, move.owner, replaced, step.step)
            self.generations[step.step] = self.generation
        self.seen_steps = len(self.mq.steps)

    def _check_passed(self, record: PartitionsEnded) -> None:
        """Nothing is left of it for a group that has been there. It takes no publish any more, so the ends are its."""
        topic = self.mq.state.topics[record.topic_id]
        for partition in range(record.first, topic.log_count):
            place, end = (record.topic_id, partition), int(topic.high_watermarks[partition])
            assert self.committed.get(place, self.begins.get(place, end)) >= end

    def _note_offsets(self, record: OffsetsCommitted | OffsetsRemoved) -> None:
        """I7: they move back only where an operator has said so, which the journal has."""
        if isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                del self.committed[record.topic_id, partition]
                self.begins.pop((record.topic_id, partition), None)
            return
        for topic_id, one in zip(record.topic_ids, record.offsets, strict=True):
            place = topic_id, one.partition
            assert record.reason == "reset" or one.offset >= self.committed.get(place, 0)
            self.committed[place] = one.offset

    def _move(
        self, place: Place, status: PartitionStatus, owner: str | None, replaced: dict[str, str], step: int
    ) -> None:
        before = self.owners.pop(place, None)
        if before is not None and self.living:  # to an empty group nobody comes back
            self.had[place] = before, self.believed[before, place]
        if status is PartitionStatus.READY:
            assert owner in self.living
            assert before is None or before == replaced.get(owner or "")
            self.believed[owner or "", place] = step
        if status is PartitionStatus.PAUSED:
            assert before == owner
        if owner is not None:
            self.owners[place] = owner

    @invariant()
    def the_state_is_what_the_journal_says(self) -> None:
        state = self.mq.state
        assert {place: one.offset for place, one in state.offsets.get(GROUP, {}).items()} == self.committed
        for (topic_id, partition), at in self.committed.items():
            assert 0 <= at <= state.topics[topic_id].high_watermarks[partition]
        group = state.groups.get(GROUP)
        if group is None:
            return
        assert group.members.keys() == self.living
        assert {place: one.owner for place, one in group.assignments.items() if one.owner} == self.owners
        assert group.instances == {one.instance_id: name for name, one in group.members.items() if one.instance_id}
        assert group.paused == {
            place for place, one in group.assignments.items() if one.status is PartitionStatus.PAUSED
        }

    @invariant()
    def who_is_looked_for_is_found(self) -> None:
        state = self.mq.state
        assert state.groups_with_members == {name for name, one in state.groups.items() if one.members}
        assert state.waiting_groups == {name for name, one in state.groups.items() if one.is_waiting}
        assert state.list_moving_groups() == {name for name, one in state.groups.items() if one.is_moving_on}

    @invariant()
    def a_stable_group_is_whole_and_even(self) -> None:
        group = self.mq.state.groups.get(GROUP)
        if group is None or group.status is not GroupStatus.STABLE:
            return
        wanted = {name for member in group.members.values() for name in member.topics}
        counts = {name: one.consumed_count for name, one in self._topics_of(group).items()}
        assert {
            name: sum(assignment.topic == name for assignment in group.assignments.values()) for name in counts
        } == counts
        for place, one in group.assignments.items():
            assert (one.owner is not None) == (self.mq.state.topics[place[0]].topic in wanted)
            if one.owner is not None:
                assert self.mq.state.topics[place[0]].topic in group.members[one.owner].topics
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
        """Left alone, with members that do as they are told, every group comes to rest."""
        try:
            self.come_to_rest()
        finally:
            self.bound.stop()

    def come_to_rest(self) -> None:
        group = self.mq.state.groups.get(GROUP)
        self.mq.now_ms += DELAY_MS
        self.mq.expire()
        for _ in range(4):
            self.mq.assign()
            for member in sorted(group.members if group else ()):
                paused = [place for place in group.list_places_of(member) if place in group.paused]
                if paused:
                    told = [Assigned(*place, group.assignments[place].epoch) for place in paused]
                    self.mq.one(ReleasePartitions(GROUP, member, told))
        if group is not None:
            self.the_journal_gives_nothing_that_is_not_free()
            group = self.mq.state.groups[GROUP]
            assert group.status in (GroupStatus.STABLE, GroupStatus.EMPTY)
            self.a_stable_group_is_whole_and_even()


class ClassicGroups(Groups):
    config = {  # noqa: RUF012
        "group.protocol": "classic",
        "group.initial.rebalance.delay.ms": DELAY_MS,
        "group.assignor": "sticky",
    }

    def may_commit(self, member: str, place: Place, epoch: int) -> bool:
        """Also what it has let go, and nobody has had since."""
        return super().may_commit(member, place, epoch) or (
            place not in self.owners and self.had.get(place) == (member, epoch)
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
    def all_do_as_they_are_told(self) -> None:
        for member in sorted(self.living):
            self.do_as_one_is_told(member)

    @rule(member=members, late=members, data=st.data())
    def share_anew_and_commit(self, member: str, late: str, data: st.DataObject) -> None:
        """At any moment of it one commits what it may have read before."""
        self.join_and_be_given(member)
        self.the_first_waits_for_others(DELAY_MS)
        moment = data.draw(st.integers(0, 6))
        for number, one in enumerate([*sorted(self.living), None]):
            self.the_journal_gives_nothing_that_is_not_free()
            self.commit(late, data) if number == moment else None
            self.do_as_one_is_told(one) if one else None

    def _move(
        self, place: Place, status: PartitionStatus, owner: str | None, replaced: dict[str, str], step: int
    ) -> None:
        """Nothing is given while anybody has anything of before; a process that takes another one's place has that."""
        if status is PartitionStatus.READY and owner not in replaced:
            assert {self.believed[who, of] for of, who in self.owners.items()} <= {step}
        super()._move(place, status, owner, replaced, step)

    @invariant()
    def who_owns_is_of_one_generation(self) -> None:
        """So nobody who reads on what is its own reads what is of a generation before; and all have it, or none."""
        group = self.mq.state.groups.get(GROUP)
        if group is None:
            return
        owned = [assignment for assignment in group.assignments.values() if assignment.owner is not None]
        assert {self.generations[one.epoch] for one in owned} <= {group.generation}
        assert {one.status is PartitionStatus.PAUSED for one in owned} <= {group.status is GroupStatus.PREPARING}
        assert not (owned and group.not_before_ms)
        if group.status is GroupStatus.COMPLETING:
            assert not owned


TestGroups = Groups.TestCase
TestGroups.settings = runs(60, 40)
TestClassicGroups = ClassicGroups.TestCase
TestClassicGroups.settings = runs(60, 40)
