"""Real consumers of a queue group over the core, against a plain model of the messages shown to them, and how
often.

Letters are held, lost or decided without an answer. Members come, go and are lost. Transactions abort. The promise of
`nack.order=partition`: a message that was given back is shown before any later message of its partition, whichever
member owns the partition by then.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from queue_world import QueueWorld
from stateful.runs import runs

from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.fetch.fetch_result import Message
from lakemq.engine.protocol.values.deliveries import Acknowledge, DeliveryStatus
from lakemq.engine.protocol.values.groups import MemberSilent
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.errors import FencedMemberEpoch, IllegalState, InvalidRecordState, LakeMQError, UnknownMemberId

_MAX_REDELIVERIES = 4
_DONE = (DeliveryStatus.ACKNOWLEDGED, DeliveryStatus.DYING)

Key = tuple[int, int]
"""Partition and offset."""


@dataclass
class Shown:
    """The model's knowledge of a message. member: the one that was shown it last."""

    count: int = 0
    member: int = -1
    is_given_back: bool = False
    is_accepted: bool = False


@dataclass
class MemberWithMessages:
    """A member, and the messages that its user has."""

    consumer: QueueConsumer
    messages: list[Message] = field(default_factory=list)
    batch: Any = None


class QueueOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = QueueWorld(2)
        self.members: dict[int, MemberWithMessages] = {}
        self.next_member = 0
        self.messages: dict[Key, Shown] = {}
        self.newest: dict[int, int] = {}
        self.is_calm = True
        """Only one member so far, and it was never lost: each delivery that is counted was shown."""
        self.join()

    # -- members ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < 3)
    @rule()
    def join(self) -> None:
        consumer = self.world.consumer(
            max_redelivery_count=_MAX_REDELIVERIES,
            max_handoff_ms=500,
            rebalance_delay_ms=1_000,
            max_delivered_unacked_msgs_per_flow=6,
        )
        self.is_calm &= not self.members
        self.members[self.next_member] = MemberWithMessages(consumer)
        self.next_member += 1

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.members.pop(self.draw(data)).consumer.close()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_killed=st.booleans())
    def lose_member(self, data: st.DataObject, is_killed: bool) -> None:
        """The member is killed, or only thought lost, and comes back with its next poll."""
        self.is_calm = False
        number = self.draw(data)
        self.world.core.see(MemberSilent("g", self.members[number].consumer.member_id, "session"))
        self.world.core.assign()
        if is_killed and len(self.members) > 1:
            del self.members[number]

    def draw(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(sorted(self.members))))

    # -- messages -----------------------------------------------------------------------------------------

    @rule(partition=st.integers(0, 1), count=st.integers(1, 5))
    def publish(self, partition: int, count: int) -> None:
        self.world.publish({partition: count})

    @rule(data=st.data(), most=st.integers(1, 5), waits=st.booleans())
    def poll(self, data: st.DataObject, most: int, waits: bool) -> None:
        number = self.draw(data)
        self.poll_with(number, most, 100 if waits else 0)

    def poll_with(self, number: int, most: int, timeout_ms: int) -> None:
        member = self.members[number]
        try:
            batch = member.consumer.poll(most, timeout_ms)
        except (IllegalState, InvalidRecordState, UnknownMemberId):
            return
        messages = list(batch)
        if messages:
            member.batch = batch
        for message in messages:
            self.show(number, message)
        member.messages += messages

    def show(self, number: int, message: Message) -> None:
        partition, offset = message.partition, message.offset
        shown = self.messages.setdefault((partition, offset), Shown())
        earlier = [
            earlier_offset
            for (message_partition, earlier_offset), message in self.messages.items()
            if message_partition == partition and earlier_offset < offset and message.is_given_back
        ]
        waiting = [earlier_offset for earlier_offset in earlier if not self.is_done(partition, earlier_offset)]
        assert not waiting, f"{partition}: {offset} was shown before {waiting}"
        assert not shown.is_accepted or message.redelivered
        if shown.count == 0:
            assert offset > self.newest.get(partition, -1), "a first delivery steps back"
            self.newest[partition] = offset
        assert message.delivery_count > shown.count
        assert message.delivery_count <= 1 + _MAX_REDELIVERIES
        if self.is_calm:
            assert message.delivery_count == shown.count + 1, "what was not shown was counted"
        self.messages[partition, offset] = Shown(message.delivery_count, number)

    def is_done(self, partition: int, offset: int) -> bool:
        deliveries = self.world.core.state.find_deliveries("g", (self.world.core.state.topic_ids["t"], partition))
        assert deliveries is not None
        stretches = deliveries.find_stretches([(offset, 1)])
        return offset < deliveries.start or (bool(stretches) and stretches[0].status in _DONE)

    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "nack", "nack", "late nack", "reject"]))
    def settle_message(self, data: st.DataObject, how: str) -> None:
        number = self.draw(data)
        member = self.members[number]
        if not member.messages:
            return
        message = member.messages.pop(data.draw(st.integers(0, len(member.messages) - 1)))
        try:
            if how == "ack":
                member.consumer.ack(message)
            elif how == "reject":
                member.consumer.reject(message)
            else:
                member.consumer.nack(message, 300 if how == "late nack" else None)
        except (FencedMemberEpoch, InvalidRecordState, UnknownMemberId):
            return
        shown = self.messages[message.partition, message.offset]
        if "nack" in how and shown.member == number:
            shown.is_given_back = True

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """The batch polled last is acknowledged in a transaction, which is aborted."""
        number = self.draw(data)
        member = self.members[number]
        if self.world.letters or member.batch is None:
            return
        batch, member.batch = member.batch, None
        producer = self.world.ask(InitProducer("tx", 60_000))
        ref = TransactionRef("tx", producer.producer_id, producer.producer_epoch)
        parts = batch.offsets.messages
        try:
            self.world.ask(Acknowledge("g", member.consumer.member_id, parts, ref))
            self.world.ask(EndTransaction(ref, False))
        except LakeMQError:
            return
        member.consumer.go_back(batch)
        offsets = {(message.partition, message.offset) for message in batch}
        member.messages = [message for message in member.messages if (message.partition, message.offset) not in offsets]
        for key in offsets:
            if self.messages[key].member == number and not self.is_done(*key):
                self.messages[key].is_given_back = True

    # -- letters and time -----------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 60, 300, 1_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(holds=st.booleans())
    def hold_letters(self, holds: bool) -> None:
        self.world.holds_letters = holds
        if not holds:
            self.world.deliver()

    @rule(how=st.sampled_from(["decided", "decided", "unanswered", "lost"]))
    def deliver(self, how: str) -> None:
        if how == "lost":
            self.world.lose(1)
        else:
            self.world.deliver(1, is_answered=how == "decided")

    # -- the end --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Check that a member which polls and acknowledges everything reaches the end of both partitions."""
        self.hold_letters(False)
        for member in list(self.members.values())[1:]:
            member.consumer.close()
        (number, member), *_ = self.members.items()
        self.members = {number: member}
        for _ in range(60):
            self.poll_with(number, 10, 100)
            for message in member.messages:
                with suppress(FencedMemberEpoch, InvalidRecordState, UnknownMemberId):
                    member.consumer.ack(message)
            member.messages = []
            with suppress(LakeMQError):
                member.consumer.flush()
            self.world.pass_time(300)
        topic = self.world.core.state.topic("t")
        for partition in range(2):
            for offset in range(int(topic.high_watermarks[partition])):
                assert self.is_done(partition, offset), (partition, offset, self.world.deliveries())


TestQueueOrder = QueueOrder.TestCase
TestQueueOrder.settings = runs(30, 40)
