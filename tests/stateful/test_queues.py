"""Queue groups against a plain model that tracks every message: its owner, and how often it was delivered.

The model does not predict which member gets which partition when. It takes that from the journal, and checks that only
free messages are acquired, that nothing is lost, and that no message is delivered again when it is done.
"""

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
from lakemq.engine.protocol.values.assignments import PartitionStatus, TopicIdPartition
from lakemq.engine.protocol.values.dead_letters import REDRIVE, SettleDeadLetters
from lakemq.engine.protocol.values.deliveries import (
    DELIVERY_TRANSITIONS,
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Acquire,
    DeliveryStatus,
    MessagesAcquired,
    WantedMessages,
)
from lakemq.engine.protocol.values.groups import Assigned, JoinGroup, LeaveGroup, MemberSilent, PartitionsMoved
from lakemq.engine.protocol.values.producers import InitProducer
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
class QueuedMessage:
    """A message of the model. owner, epoch: the member that has it, and the assignment under which it does."""

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
        self.move_limit = patch.object(reconciling, "MAX_MOVES", 1)
        self.move_limit.start()
        self.mq = Harness()
        self.mq.create("t", 2)
        self.mq.ask(InitProducer("tx", 900_000))
        self.messages: dict[tuple[TopicIdPartition, int], QueuedMessage] = {}
        self.statuses: dict[tuple[TopicIdPartition, int], DeliveryStatus] = {}
        self.followed_steps = len(self.mq.steps)
        self.dead_offsets: dict[TopicIdPartition, list[int]] = {}
        self.expired: dict[TopicIdPartition, int] = {}
        self.keeps_expired = True
        """Whether they become dead letters."""
        self.redriven: dict[tuple[int, int], str] = {}
        """Partition and offset of a dead letter -> what became of it: asked (back), purged or gone (back)."""
        self.lost_assignments: dict[str, list[Assigned]] = {}
        """Member that was lost -> the partitions that it had then."""

    # -- actions ----------------------------------------------------------------------------------------

    @rule(member=members, instance=st.sampled_from([None, None, "i"]))
    def join(self, member: str, instance: str | None) -> None:
        self.ask(JoinGroup(GROUP, member, ["t"], None, instance, 6_000, 10_000, "earliest", CONFIG))

    @rule(member=members)
    def come_back(self, member: str) -> None:
        bound = self.lost_assignments.pop(member, [])
        self.ask(JoinGroup(GROUP, member, ["t"], None, None, 6_000, 10_000, "earliest", CONFIG, bound))

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.lost_assignments.pop(member, None)
        self.ask(LeaveGroup(GROUP, [member]))

    @rule(member=members)
    def become_silent(self, member: str) -> None:
        if (group := self.mq.state.groups.get(GROUP)) and member in group.members:
            self.lost_assignments[member] = [
                Assigned(*p, group.assignments[p].epoch) for p in group.list_partitions_of(member)
            ]
        self.mq.see(MemberSilent(GROUP, member, "session"))
        self.follow()

    @rule(count=st.integers(1, 6), partition=st.integers(0, 1))
    def publish(self, count: int, partition: int) -> None:
        topic = self.mq.state.topic("t")
        first = int(topic.high_watermarks[partition])
        self.ask(self.mq.produce({partition: count}, "t"))
        for offset in range(first, first + count):
            self.messages[(topic.topic_id, partition), offset] = QueuedMessage()

    @rule(keeps=st.booleans())
    def keep_expired_messages(self, keeps: bool) -> None:
        self.keeps_expired = keeps
        self.ask(AlterTopic("t", {"dead.letter.expired": keeps}))

    @invariant()
    def each_message_that_expired_is_counted_once(self) -> None:
        counts = {tp: committed.expired_count for tp, committed in self.mq.state.offsets.get(GROUP, {}).items()}
        assert {tp: n for tp, n in counts.items() if n} == {tp: n for tp, n in self.expired.items() if n}

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
        wanted_messages = [
            WantedMessages(*p, group.assignments[p].epoch, count) for p in group.list_partitions_of(member)
        ]
        assert not isinstance(self.ask(Acquire(GROUP, member, wanted_messages)), Refusal)

    @rule(
        data=st.data(), outcome=st.sampled_from(AckOutcome), delay_ms=st.sampled_from([0, 0, 300]), inside=st.booleans()
    )
    def acknowledge(self, data: st.DataObject, outcome: AckOutcome, delay_ms: int, inside: bool) -> None:
        """Acknowledge a range that begins with an owned message, as its owner or as another member."""
        owned = [(key, message) for key, message in self.messages.items() if message.owner]
        if not owned:
            return
        (tp, first), first_message = data.draw(st.sampled_from(owned))
        count = data.draw(st.integers(1, 3))
        member = data.draw(st.sampled_from([first_message.owner, first_message.owner, first_message.owner, "C1"]))
        delivery = data.draw(
            st.sampled_from(
                [None, first_message.deliveries, first_message.deliveries, max(0, first_message.deliveries - 1)]
            )
        )
        part = Acknowledgement(*tp, first_message.epoch, outcome, [(first, count)], delay_ms, delivery)
        ref = self.mq.current("tx") if inside and outcome is AckOutcome.ACK else None
        messages = [self.messages.get((tp, offset)) for offset in range(first, first + count)]
        group = self.mq.state.groups[GROUP]
        is_owner = (group.assignments[tp].owner, group.assignments[tp].epoch) == (member, first_message.epoch)
        may_settle = [
            message is not None
            and message.owner == member
            and not message.pending
            and delivery in (None, message.deliveries)
            for message in messages
        ]
        refused = [
            first + index
            for index, message in enumerate(messages)
            if not may_settle[index] and not (message is not None and message.is_done and outcome is AckOutcome.ACK)
        ]
        result = self.ask(Acknowledge(GROUP, str(member), [part], ref))
        if ref is None and member in group.members:
            assert isinstance(result, AcknowledgementsJudged)
            assert (result.fenced, bool(result.invalid)) == ([] if is_owner else [0], is_owner and bool(refused))
            refused_offsets = [
                offset
                for ranges in result.refused
                for start, length in ranges
                for offset in range(start, start + length)
            ]
            assert refused_offsets == (refused if is_owner else [])
        if isinstance(result, Refusal) or result.fenced:  # type: ignore[union-attr]
            return
        for message, is_settled in zip(messages, may_settle, strict=True):
            if message is not None and is_settled:
                self.expired[tp] = self.expired.get(tp, 0) + (outcome is AckOutcome.EXPIRE)
                self._settle(message, outcome, delay_ms, pending=ref is not None)

    def _settle(self, message: QueuedMessage, outcome: AckOutcome, delay_ms: int, pending: bool) -> None:
        if pending:
            message.pending = True
            return
        message.owner = None
        if outcome is AckOutcome.ACK or (outcome is AckOutcome.EXPIRE and not self.keeps_expired):
            message.is_done = True
        elif outcome in (AckOutcome.REJECT, AckOutcome.EXPIRE):
            message.is_dying = True
        elif outcome is AckOutcome.UNSEEN:
            message.deliveries -= 1
        else:
            self._give_back(message)
            message.not_before_ms = self.mq.now_ms + delay_ms

    def _give_back(self, message: QueuedMessage) -> None:
        message.owner, message.pending = None, False
        message.is_dying = message.deliveries > MAX_REDELIVERIES

    @rule(partition=st.integers(0, 2), most=st.integers(1, 9))
    def find_dying(self, partition: int, most: int) -> None:
        """The leader finds the rows of some dying messages, unless it has found all of them already."""
        tp = self.mq.state.topic_ids["t"], partition
        located = self.mq.dying(GROUP, tp)
        self.mq.see(replace(located, rows=located.rows[:most]))
        dead = [offset for row in located.rows[:most] for offset in range(row.first, row.first + row.length)]
        for offset in dead:
            message = self.messages[tp, offset]
            assert message.is_dying
            message.is_dying, message.is_done = False, True
        self.dead_offsets[tp] = self.dead_offsets.get(tp, []) + dead

    @rule(partition=st.integers(0, 2), first=st.integers(0, 6), count=st.integers(1, 4), purge=st.booleans())
    def settle_dead_letters(self, partition: int, first: int, count: int, purge: bool) -> None:
        """Ask some dead letters back, or purge them. A purge also takes those that were asked back and have not gone
        yet.
        """
        if "t.dlq" not in self.mq.state.topic_ids:
            return
        topic = self.mq.state.topic("t.dlq")
        if partition >= topic.partition_count or first + count > topic.high_watermarks[partition]:
            return
        offsets = range(first, first + count)
        fresh = [
            offset
            for offset in offsets
            if self.redriven.get((partition, offset)) in ((None, "asked") if purge else (None,))
        ]
        result = self.ask(SettleDeadLetters("t.dlq", topic.topic_id, {partition: [(first, count)]}, purge))
        assert result.count == len(fresh)
        self.redriven |= {(partition, offset): "purged" if purge else "asked" for offset in fresh}

    @rule(partition=st.integers(0, 2), most=st.integers(1, 9))
    def find_dead_letters(self, partition: int, most: int) -> None:
        """The leader finds the rows of some dead letters that were asked back."""
        if "t.dlq" not in self.mq.state.topic_ids:
            return
        located = self.mq.dying(REDRIVE, (self.mq.state.topic_ids["t.dlq"], partition))
        before = self._redriven_messages()
        self.mq.see(replace(located, rows=located.rows[:most]))
        for row in located.rows[:most]:
            for dead_offset in range(row.first, row.first + row.length):
                assert self.redriven[partition, dead_offset] == "asked"
                self.redriven[partition, dead_offset] = "gone"
        tp = self.mq.state.topic_ids["t"], partition
        for offset in self._redriven_messages()[len(before) :]:
            self.messages[tp, offset] = QueuedMessage()

    def _redriven_messages(self) -> list[int]:
        """Return the offsets that redriven messages have in the topic from which they came."""
        return [
            offset
            for segment in self.mq.segments()
            if segment["origin"] == "redrive"
            for offset in range(segment["base_offset"], segment["last_offset"] + 1)
        ]

    @invariant()
    def each_dead_letter_goes_back_once(self) -> None:
        assert len(self._redriven_messages()) == list(self.redriven.values()).count("gone")

    @invariant()
    def each_message_that_died_is_one_dead_letter(self) -> None:
        dead_letters: dict[TopicIdPartition, list[int]] = {}
        for segment in self.mq.segments():
            if segment["origin"] == "dead_letter":
                tp = self.mq.state.topic_ids["t"], msgspec.json.decode(segment["dead_letter"])["partition"]
                first = segment["source_offset"]
                dead_letters.setdefault(tp, []).extend(range(first, first + segment["record_count"]))
        assert {tp: sorted(offsets) for tp, offsets in dead_letters.items()} == {
            p: sorted(offsets) for p, offsets in self.dead_offsets.items() if offsets
        }

    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        transaction = self.mq.state.transactions["tx"]
        commit = commit and transaction.error is None
        result = self.ask(EndTransaction(self.mq.current("tx"), commit, transaction.part_count))
        assert not isinstance(result, Refusal)
        for message in self.messages.values():
            if message.pending and commit:
                message.owner, message.pending, message.is_done = None, False, True
            elif message.pending:
                self._give_back(message)

    @precondition(lambda self: self.mq.state.groups)
    @rule()
    def another_leads(self) -> None:
        """The state that is restored from the tables has the same queues."""
        tables: dict[str, Any] = {}
        add_pass(tables, self.mq.state, self.mq.steps)
        reloaded = restored(mark_of(self.mq.state), tables)
        for part in ("groups", "offsets", "deliveries", "dying", "topics", "transactions"):
            assert plain(reloaded)[part] == plain(self.mq.state)[part]
            setattr(self.mq.state, part, getattr(reloaded, part))
        self.mq.state.touched_groups = reloaded.touched_groups

    def teardown(self) -> None:
        self.move_limit.stop()

    def ask(self, request: Any) -> Any:
        result = self.mq.one(request)
        self.follow()
        self.mq.assign()
        self.follow()
        return result

    # -- records of the journal -------------------------------------------------------------------------

    def follow(self) -> None:
        for step in self.mq.steps[self.followed_steps :]:
            for entry in step.entries:
                if isinstance(entry.record, PartitionsMoved):
                    for move in entry.record.moves:
                        self._move((move.topic_id, move.partition), move.status, move.owner, entry.record.reason)
                elif isinstance(entry.record, MessagesAcquired):
                    self._note_acquisition(entry.record)
        self.followed_steps = len(self.mq.steps)

    def _move(self, tp: TopicIdPartition, status: PartitionStatus, owner: str | None, reason: str) -> None:
        """A partition that changes hands gives back its owner's messages, unless the owner is back or may come back."""
        if status is PartitionStatus.PAUSED or (status is PartitionStatus.UNBOUND and reason != "left"):
            return
        for (message_tp, _), message in self.messages.items():
            if message_tp == tp and message.owner and not message.pending and (owner is None or message.owner != owner):
                self._give_back(message)

    def _note_acquisition(self, record: MessagesAcquired) -> None:
        group = self.mq.state.groups[GROUP]
        owned = [message for message in self.messages.values() if message.owner == record.member_id]
        for acquired in record.taken:
            epoch = group.assignments[acquired.topic_partition].epoch
            offsets = [offset for first, count in acquired.ranges for offset in range(first, first + count)]
            assert offsets == sorted(set(offsets))
            messages = [self.messages[acquired.topic_partition, offset] for offset in offsets]
            for message in messages:
                assert message.owner is None
                assert (message.is_done, message.is_dying, message.pending) == (False, False, False)
                assert message.not_before_ms <= self.mq.now_ms
                assert message.deliveries <= MAX_REDELIVERIES
                message.deliveries, message.owner, message.epoch = message.deliveries + 1, record.member_id, epoch
            if any(message.deliveries == MAX_REDELIVERIES + 1 for message in messages):
                assert (len(messages), len(record.taken), len(owned)) == (1, 1, 0)
            # the lowest offset comes first, so no free message is passed over
            free = [
                offset
                for (message_tp, offset), message in self.messages.items()
                if message_tp == acquired.topic_partition
                and offset < max(offsets)
                and not (message.owner or message.is_done or message.is_dying)
            ]
            assert not free

    # -- invariants -------------------------------------------------------------------------------------

    @invariant()
    def the_state_equals_the_model(self) -> None:
        for tp, stored in self.mq.state.deliveries.get(GROUP, {}).items():
            next_offset = stored.start
            for stretch in stored.stretches:
                assert stretch.first == next_offset, "a gap"
                next_offset = stretch.end
                for offset in range(stretch.first, stretch.end):
                    message = self.messages[tp, offset]
                    before = self.statuses.get((tp, offset), stretch.status)
                    assert before is stretch.status or DELIVERY_TRANSITIONS.allows(before, stretch.status)
                    self.statuses[tp, offset] = stretch.status
                    status = (
                        ("acknowledged" if message.is_done else "dying" if message.is_dying else None)
                        or ("pending" if message.pending else "acquired" if message.owner else None)
                        or ("waiting" if stretch.not_before_ms else "available")
                    )
                    deliveries = 1 if message.is_done else message.deliveries
                    assert (stretch.status.value, stretch.deliveries) == (status, deliveries), (tp, offset)
            assert stored.held_count == sum(
                1
                for (message_tp, _), message in self.messages.items()
                if message_tp == tp and (message.owner or message.pending)
            )
            for (message_tp, offset), message in self.messages.items():
                if message_tp == tp and offset < stored.start:
                    assert message.is_done
                if message_tp == tp and offset >= next_offset:
                    assert not message.deliveries
            assert self.mq.state.offsets[GROUP][tp].offset == stored.start

    @invariant()
    def unsettled_messages_are_owned_with_their_partition(self) -> None:
        for (tp, _), message in self.messages.items():
            if message.owner and not message.pending:
                assignment = self.mq.state.groups[GROUP].assignments[tp]
                assert (assignment.owner or assignment.lost_by, assignment.epoch) == (message.owner, message.epoch)

    @invariant()
    def no_member_has_more_than_twice_its_bound(self) -> None:
        for member in ("C1", "C2", "C3"):
            assert sum(1 for message in self.messages.values() if message.owner == member and not message.pending) <= 8


TestQueues = Queues.TestCase
TestQueues.settings = runs(60, 40)
