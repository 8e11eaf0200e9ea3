"""Queue groups against a plain model that knows every message by itself: who has it, how often it was delivered.

What the model does not foresee is who gets which partition when: that it takes from the journal, and holds against it
that nobody is given a message that is not free, that nothing is lost, and that nothing which is done comes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from protocol_harness import Harness, plain
from protocol_tables import add_pass, mark_of, restored
from stateful.runs import runs

from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rules import reconciling
from lakemq.engine.protocol.values.assignments import PartitionStatus, Place
from lakemq.engine.protocol.values.dead_letters import REDRIVE, SettleDeadLetters
from lakemq.engine.protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Acquire,
    MessagesAcquired,
    WantedMessages,
)
from lakemq.engine.protocol.values.groups import Assigned, JoinGroup, LeaveGroup, MemberSilent, PartitionsMoved
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.stretches import DELIVERY_TRANSITIONS, DeliveryStatus
from lakemq.engine.protocol.values.topics import AlterTopic
from lakemq.engine.protocol.values.transactions import EndTransaction

GROUP = "g"
MAX_REDELIVERIES = 2
CONFIG = {
    "group.protocol": "queue",
    "rebalance.delay.ms": 1_000,
    "max.handoff.ms": 500,
    "max.redelivery.count": MAX_REDELIVERIES,
    "max.delivered.unacked.msgs.per.flow": 4,
}

members = st.sampled_from(["C1", "C2", "C3"])


@dataclass
class Message:
    """owner, epoch: who has it, and under which assignment; None: nobody."""

    deliveries: int = 0
    owner: str | None = None
    epoch: int = 0
    is_done: bool = False
    is_dying: bool = False
    pending: bool = False
    not_before_ms: int = 0


class Queues(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bound = patch.object(reconciling, "MAX_MOVES", 1)
        self.bound.start()
        self.mq = Harness()
        self.mq.create("t", 2)
        self.mq.ask(InitProducer("tx", 900_000))
        self.messages: dict[tuple[Place, int], Message] = {}
        self.statuses: dict[tuple[Place, int], DeliveryStatus] = {}
        self.seen_steps = len(self.mq.steps)
        self.dead: dict[Place, list[int]] = {}
        self.expired: dict[Place, int] = {}
        self.keeps_expired = True
        """As dead letters."""
        self.redriven: dict[tuple[int, int], str] = {}
        """Partition and offset of dead letters: what was said of them."""
        self.known: dict[str, list[Assigned]] = {}
        """What members that were lost know that they had."""

    # -- what happens -----------------------------------------------------------------------------------

    @rule(member=members, instance=st.sampled_from([None, None, "i"]))
    def join(self, member: str, instance: str | None) -> None:
        self.ask(JoinGroup(GROUP, member, ["t"], None, instance, 6_000, 10_000, "earliest", CONFIG))

    @rule(member=members)
    def come_back(self, member: str) -> None:
        bound = self.known.pop(member, [])
        self.ask(JoinGroup(GROUP, member, ["t"], None, None, 6_000, 10_000, "earliest", CONFIG, bound))

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.known.pop(member, None)
        self.ask(LeaveGroup(GROUP, [member]))

    @rule(member=members)
    def be_lost(self, member: str) -> None:
        if (group := self.mq.state.groups.get(GROUP)) and member in group.members:
            self.known[member] = [Assigned(*p, group.assignments[p].epoch) for p in group.list_places_of(member)]
        self.mq.see(MemberSilent(GROUP, member, "session"))
        self.follow()

    @rule(count=st.integers(1, 6), partition=st.integers(0, 1))
    def publish(self, count: int, partition: int) -> None:
        topic = self.mq.state.topic("t")
        first = int(topic.high_watermarks[partition])
        self.ask(self.mq.produce({partition: count}, "t"))
        for offset in range(first, first + count):
            self.messages[(topic.topic_id, partition), offset] = Message()

    @rule(keeps=st.booleans())
    def keep_expired(self, keeps: bool) -> None:
        self.keeps_expired = keeps
        self.ask(AlterTopic("t", {"dead.letter.expired": keeps}))

    @invariant()
    def each_message_that_expired_is_counted_once(self) -> None:
        counts = {place: one.expired_count for place, one in self.mq.state.offsets.get(GROUP, {}).items()}
        assert {place: n for place, n in counts.items() if n} == {place: n for place, n in self.expired.items() if n}

    @rule()
    def grow(self) -> None:
        if self.mq.state.topic("t").partition_count < 3:
            self.ask(AlterTopic("t", partitions=3))

    @rule(ms=st.sampled_from([1, 200, 500, 1_000]))
    def pass_time(self, ms: int) -> None:
        self.mq.now_ms += ms
        self.mq.expire()
        self.follow()

    @rule(data=st.data(), count=st.integers(1, 5))
    def acquire(self, data: st.DataObject, count: int) -> None:
        group = self.mq.state.groups.get(GROUP)
        if group is None or not group.members:
            return
        member = data.draw(st.sampled_from(sorted(group.members)))
        wanted = [WantedMessages(*p, group.assignments[p].epoch, count) for p in group.list_places_of(member)]
        assert not isinstance(self.ask(Acquire(GROUP, member, wanted)), Refusal)

    @rule(
        data=st.data(), outcome=st.sampled_from(AckOutcome), delay_ms=st.sampled_from([0, 0, 300]), inside=st.booleans()
    )
    def acknowledge(self, data: st.DataObject, outcome: AckOutcome, delay_ms: int, inside: bool) -> None:
        """A range that begins with a message which somebody has, said by its owner or by another one."""
        owned = [(key, one) for key, one in self.messages.items() if one.owner]
        if not owned:
            return
        (place, first), told = data.draw(st.sampled_from(owned))
        count = data.draw(st.integers(1, 3))
        member = data.draw(st.sampled_from([told.owner, told.owner, told.owner, "C1"]))
        which = data.draw(st.sampled_from([None, told.deliveries, told.deliveries, max(0, told.deliveries - 1)]))
        part = Acknowledgement(*place, told.epoch, outcome, [(first, count)], delay_ms, which)
        ref = self.mq.current("tx") if inside and outcome is AckOutcome.ACCEPT else None
        mine = [self.messages.get((place, offset)) for offset in range(first, first + count)]
        group = self.mq.state.groups[GROUP]
        is_owner = (group.assignments[place].owner, group.assignments[place].epoch) == (member, told.epoch)
        held = [
            one is not None and one.owner == member and not one.pending and which in (None, one.deliveries)
            for one in mine
        ]
        refused = [
            first + at
            for at, one in enumerate(mine)
            if not held[at] and not (one is not None and one.is_done and outcome is AckOutcome.ACCEPT)
        ]
        result = self.ask(Acknowledge(GROUP, str(member), [part], ref))
        if ref is None and member in group.members:
            assert isinstance(result, AcknowledgementsJudged)
            assert (result.fenced, bool(result.invalid)) == ([] if is_owner else [0], is_owner and bool(refused))
            found = [at for ranges in result.refused for start, length in ranges for at in range(start, start + length)]
            assert found == (refused if is_owner else [])
        if isinstance(result, Refusal) or result.fenced:  # type: ignore[union-attr]
            return
        for one, is_held in zip(mine, held, strict=True):
            if one is not None and is_held:
                self.expired[place] = self.expired.get(place, 0) + (outcome is AckOutcome.EXPIRE)
                self._settle(one, outcome, delay_ms, pending=ref is not None)

    def _settle(self, one: Message, outcome: AckOutcome, delay_ms: int, pending: bool) -> None:
        if pending:
            one.pending = True
            return
        one.owner = None
        if outcome is AckOutcome.ACCEPT or (outcome is AckOutcome.EXPIRE and not self.keeps_expired):
            one.is_done = True
        elif outcome in (AckOutcome.REJECT, AckOutcome.EXPIRE):
            one.is_dying = True
        elif outcome is AckOutcome.UNSEEN:
            one.deliveries -= 1
        else:
            self._give_back(one)
            one.not_before_ms = self.mq.now_ms + delay_ms

    def _give_back(self, one: Message) -> None:
        one.owner, one.pending = None, False
        one.is_dying = one.deliveries > MAX_REDELIVERIES

    @rule(partition=st.integers(0, 2), most=st.integers(1, 9))
    def find_dying(self, partition: int, most: int) -> None:
        """The leader has found where some of the dying messages are, if not all are found yet."""
        place = self.mq.state.topic_ids["t"], partition
        found = self.mq.dying(GROUP, place)
        self.mq.see(replace(found, rows=found.rows[:most]))
        dead = [at for row in found.rows[:most] for at in range(row.first, row.first + row.length)]
        for offset in dead:
            told = self.messages[place, offset]
            assert told.is_dying
            told.is_dying, told.is_done = False, True
        self.dead[place] = self.dead.get(place, []) + dead

    @rule(partition=st.integers(0, 2), first=st.integers(0, 6), count=st.integers(1, 4), purge=st.booleans())
    def settle_dead_letters(self, partition: int, first: int, count: int, purge: bool) -> None:
        """Some are asked back, or purged: whatever was said of them before stands, but for what has not gone yet."""
        if "t.dlq" not in self.mq.state.topic_ids:
            return
        topic = self.mq.state.topic("t.dlq")
        if partition >= topic.partition_count or first + count > topic.high_watermarks[partition]:
            return
        asked = range(first, first + count)
        fresh = [at for at in asked if self.redriven.get((partition, at)) in ((None, "asked") if purge else (None,))]
        result = self.ask(SettleDeadLetters("t.dlq", topic.topic_id, {partition: [(first, count)]}, purge))
        assert result.count == len(fresh)
        self.redriven |= {(partition, at): "purged" if purge else "asked" for at in fresh}

    @rule(partition=st.integers(0, 2), most=st.integers(1, 9))
    def find_dead_letters(self, partition: int, most: int) -> None:
        """The leader has found where some of those are that are to go back."""
        if "t.dlq" not in self.mq.state.topic_ids:
            return
        found = self.mq.dying(REDRIVE, (self.mq.state.topic_ids["t.dlq"], partition))
        before = self._redriven_messages()
        self.mq.see(replace(found, rows=found.rows[:most]))
        for row in found.rows[:most]:
            for at in range(row.first, row.first + row.length):
                assert self.redriven[partition, at] == "asked"
                self.redriven[partition, at] = "gone"
        place = self.mq.state.topic_ids["t"], partition
        for offset in self._redriven_messages()[len(before) :]:
            self.messages[place, offset] = Message()

    def _redriven_messages(self) -> list[int]:
        """Their offsets in the topic that they come from."""
        return [
            at
            for segment in self.mq.segments()
            if segment["origin"] == "redrive"
            for at in range(segment["base_offset"], segment["last_offset"] + 1)
        ]

    @invariant()
    def each_dead_letter_goes_back_once(self) -> None:
        assert len(self._redriven_messages()) == list(self.redriven.values()).count("gone")

    @invariant()
    def each_message_that_died_is_one_dead_letter(self) -> None:
        found: dict[Place, list[int]] = {}
        for segment in self.mq.segments():
            if segment["origin"] == "dead_letter":
                place = self.mq.state.topic_ids["t"], msgspec.json.decode(segment["dead_letter"])["partition"]
                first = segment["source_offset"]
                found.setdefault(place, []).extend(range(first, first + segment["record_count"]))
        assert {place: sorted(at) for place, at in found.items()} == {
            p: sorted(at) for p, at in self.dead.items() if at
        }

    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        known = self.mq.state.transactions["tx"]
        commit = commit and known.error is None
        result = self.ask(EndTransaction(self.mq.current("tx"), commit, known.part_count))
        assert not isinstance(result, Refusal)
        for message in self.messages.values():
            if message.pending and commit:
                message.owner, message.pending, message.is_done = None, False, True
            elif message.pending:
                self._give_back(message)

    @precondition(lambda self: self.mq.state.groups)
    @rule()
    def another_leads(self) -> None:
        """What the tables say makes the same queues."""
        tables: dict[str, Any] = {}
        add_pass(tables, self.mq.state, self.mq.steps)
        again = restored(mark_of(self.mq.state), tables)
        for what in ("groups", "offsets", "deliveries", "dying", "topics", "transactions"):
            assert plain(again)[what] == plain(self.mq.state)[what]
            setattr(self.mq.state, what, getattr(again, what))
        self.mq.state.touched_groups = again.touched_groups

    def teardown(self) -> None:
        self.bound.stop()

    def ask(self, request: Any) -> Any:
        result = self.mq.one(request)
        self.follow()
        self.mq.assign()
        self.follow()
        return result

    # -- what the journal says --------------------------------------------------------------------------

    def follow(self) -> None:
        for step in self.mq.steps[self.seen_steps :]:
            for entry in step.entries:
                if isinstance(entry.record, PartitionsMoved):
                    for move in entry.record.moves:
                        self._move((move.topic_id, move.partition), move.status, move.owner, entry.record.reason)
                elif isinstance(entry.record, MessagesAcquired):
                    self._acquired(entry.record)
        self.seen_steps = len(self.mq.steps)

    def _move(self, place: Place, status: PartitionStatus, owner: str | None, reason: str) -> None:
        """With an assignment what was had under it is given back, unless its owner may be, or is, back."""
        if status is PartitionStatus.PAUSED or (status is PartitionStatus.UNBOUND and reason != "left"):
            return
        for (of, _), one in self.messages.items():
            if of == place and one.owner and not one.pending and (owner is None or one.owner != owner):
                self._give_back(one)

    def _acquired(self, record: MessagesAcquired) -> None:
        group = self.mq.state.groups[GROUP]
        has = [message for message in self.messages.values() if message.owner == record.member_id]
        for taken in record.taken:
            epoch = group.assignments[taken.place].epoch
            offsets = [at for first, count in taken.ranges for at in range(first, first + count)]
            assert offsets == sorted(set(offsets))
            got = [self.messages[taken.place, at] for at in offsets]
            for one in got:
                assert one.owner is None
                assert (one.is_done, one.is_dying, one.pending) == (False, False, False)
                assert one.not_before_ms <= self.mq.now_ms
                assert one.deliveries <= MAX_REDELIVERIES
                one.deliveries, one.owner, one.epoch = one.deliveries + 1, record.member_id, epoch
            if any(one.deliveries == MAX_REDELIVERIES + 1 for one in got):
                assert (len(got), len(record.taken), len(has)) == (1, 1, 0)
            # lowest offset first: nothing that is free is passed over
            free = [
                at
                for (of, at), one in self.messages.items()
                if of == taken.place and at < max(offsets) and not (one.owner or one.is_done or one.is_dying)
            ]
            assert not free

    # -- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def the_state_says_of_each_message_what_the_model_says(self) -> None:
        for place, known in self.mq.state.deliveries.get(GROUP, {}).items():
            at = known.start
            for stretch in known.stretches:
                assert stretch.first == at, "a gap"
                at = stretch.end
                for offset in range(stretch.first, stretch.end):
                    told = self.messages[place, offset]
                    before = self.statuses.get((place, offset), stretch.status)
                    assert before is stretch.status or DELIVERY_TRANSITIONS.allows(before, stretch.status)
                    self.statuses[place, offset] = stretch.status
                    status = (
                        ("acknowledged" if told.is_done else "dying" if told.is_dying else None)
                        or ("pending" if told.pending else "acquired" if told.owner else None)
                        or ("waiting" if stretch.not_before_ms else "available")
                    )
                    deliveries = 1 if told.is_done else told.deliveries
                    assert (stretch.status.value, stretch.deliveries) == (status, deliveries), (place, offset)
            assert known.held_count == sum(
                1 for (of, at), one in self.messages.items() if of == place and (one.owner or one.pending)
            )
            for (of, offset), told in self.messages.items():
                if of == place and offset < known.start:
                    assert told.is_done
                if of == place and offset >= at:
                    assert not told.deliveries
            assert self.mq.state.offsets[GROUP][place].offset == known.start

    @invariant()
    def who_has_messages_has_their_partition_or_may_be_back(self) -> None:
        for (place, _), one in self.messages.items():
            if one.owner and not one.pending:
                known = self.mq.state.groups[GROUP].assignments[place]
                assert (known.owner or known.lost_by, known.epoch) == (one.owner, one.epoch)

    @invariant()
    def nobody_has_more_than_twice_its_bound(self) -> None:
        for member in ("C1", "C2", "C3"):
            assert sum(1 for message in self.messages.values() if message.owner == member and not message.pending) <= 8


TestQueues = Queues.TestCase
TestQueues.settings = runs(60, 40)
