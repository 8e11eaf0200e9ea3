"""Acknowledgements that are refused in part: the others count, and each refusal is raised once."""

import pytest
from queue_world import QueueWorld, deliver, take_messages

from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.protocol.values.deliveries import Acknowledge
from lakemq.engine.protocol.values.groups import MemberSilent
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.errors import InvalidRecordState, UnknownMemberId


def lag(consumer: QueueConsumer) -> int:
    return sum(consumer.lag().values())


def test_refused_acknowledgement_refuses_no_other() -> None:
    _, consumer, messages = deliver({0: 5})
    consumer.nack(messages[1])
    for message in messages:
        consumer.ack(message)
    with pytest.raises(InvalidRecordState, match="t-0, offsets 1 to 1"):
        consumer.flush()
    consumer.flush()
    assert lag(consumer) == 1
    assert [(message.offset, message.delivery_count) for message in take_messages(consumer, 1)] == [(1, 2)]
    consumer.ack(messages[0]._replace(offset=9))
    with pytest.raises(InvalidRecordState, match="t-0, offsets 9 to 9"):
        consumer.poll()


def test_list_with_unknown_messages_counts_in_part_and_the_error_names_the_rest() -> None:
    world, consumer, messages = deliver({0: 3, 1: 2})
    consumer.ack(messages[1])
    for act in consumer.nack, consumer.reject:
        consumer.flush()
        remaining = [message for message in messages if message.partition == (0 if act == consumer.nack else 1)]
        with pytest.raises(InvalidRecordState, match=f"offsets {9} to {9}"):
            act([*remaining[:1], messages[0]._replace(offset=9)])
    assert world.deliveries()[0][0] == (0, 1, "available", 1)
    assert world.deliveries()[1][0] == (0, 1, "dying", 1)
    consumer.flush()


def test_gathered_acknowledgements_count_beside_messages_that_a_transaction_returned() -> None:
    """An aborted transaction has given back messages, and the member does not know it yet."""
    world = QueueWorld()
    world.publish({0: 6})
    consumer = world.consumer()
    batch = consumer.poll(timeout_ms=20)
    messages = list(batch)
    started = world.ask(InitProducer("tx", 60_000))
    ref = TransactionRef("tx", started.producer_id, started.producer_epoch)
    first = batch.offsets.messages[0]  # type: ignore[attr-defined]
    part = type(first)(first.topic_id, 0, first.epoch, first.outcome, [(1, 2)], None, 1)
    world.ask(Acknowledge("g", consumer.member_id, [part], ref))
    world.ask(EndTransaction(ref, False))
    for message in messages:
        consumer.ack(message)
    with pytest.raises(InvalidRecordState, match="offsets 1 to 2"):
        consumer.flush()
    consumer.flush()
    assert world.deliveries() == {0: [(1, 2, "available", 1), (3, 3, "acknowledged", 1)]}
    assert [(message.offset, message.delivery_count) for message in take_messages(consumer, 2)] == [(1, 2), (2, 2)]


def test_repeat_of_an_unanswered_acknowledgement_that_counted_is_no_error() -> None:
    world, consumer, messages = deliver({0: 3})
    world.holds_letters = True
    consumer.nack(messages[0])
    consumer.ack(messages[1:])
    world.deliver(is_answered=False)
    world.holds_letters = False
    consumer.flush()
    assert [(message.offset, message.delivery_count) for message in take_messages(consumer, 1)] == [(0, 2)]
    assert lag(consumer) == 1


def test_refusal_at_close_is_logged_and_raised_by_the_next_flush(caplog: pytest.LogCaptureFixture) -> None:
    _, consumer, messages = deliver({0: 2})
    consumer.ack(messages[0]._replace(offset=7))
    consumer.close()
    assert "offsets 7 to 7" in caplog.text
    with pytest.raises(InvalidRecordState, match="offsets 7 to 7"):
        consumer.flush()
    consumer.flush()


def test_lost_member_that_joins_again_keeps_its_messages() -> None:
    world, consumer, messages = deliver({0: 2, 1: 2}, rebalance_delay_ms=60_000)
    world.core.see(MemberSilent("g", consumer.member_id, "session"))
    consumer.ack(messages[0])
    with pytest.raises(UnknownMemberId, match="joins again"):
        consumer.flush()
    assert not consumer.poll(timeout_ms=100)
    consumer.ack(messages)
    consumer.flush()
    assert world.deliveries() == {0: [], 1: []}
