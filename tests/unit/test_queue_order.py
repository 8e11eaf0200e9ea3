"""Redelivery in order: with `nack.order` a message that is given back comes before later ones of its partition."""

from typing import Any

import pytest
from queue_world import QueueWorld

from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.protocol.values.deliveries import Acknowledge
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.transactions import EndTransaction


def take(consumer: QueueConsumer, count: int) -> list[tuple[int, int]]:
    """Poll three messages at a time and acknowledge them, and return (offset, delivery count) of this many."""
    deliveries: list[tuple[int, int]] = []
    for _ in range(30):
        if len(deliveries) < count:
            batch = consumer.poll(max_records=3, timeout_ms=20)
            deliveries += [(message.offset, message.delivery_count) for message in batch]
            consumer.ack(batch)
    assert len(deliveries) == count
    return deliveries


@pytest.mark.parametrize("delay_ms", [None, 300])
def test_prefetched_messages_come_after_returned_ones(delay_ms: int | None) -> None:
    world = QueueWorld()
    world.publish({0: 7})
    consumer = world.consumer()
    messages = list(consumer.poll(max_records=3, timeout_ms=20))
    consumer.ack(messages[0])
    consumer.nack(messages[1], delay_ms)
    consumer.ack(messages[2])
    if delay_ms:
        assert not consumer.poll(max_records=3, timeout_ms=200)
        world.pass_time(delay_ms)
    assert take(consumer, 5) == [(1, 2), (3, 1), (4, 1), (5, 1), (6, 1)]


def test_prefetched_messages_pass_a_returned_one_with_nack_order_none() -> None:
    world = QueueWorld()
    world.publish({0: 6})
    consumer = world.consumer(nack_order="none")
    messages = list(consumer.poll(max_records=3, timeout_ms=20))
    consumer.nack(messages[1], 60_000)
    assert take(consumer, 3) == [(3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize("goes_back", [True, False])
def test_messages_come_in_order_after_an_abort(goes_back: bool) -> None:
    world = QueueWorld()
    world.publish({0: 9})
    consumer = world.consumer()
    batch = consumer.poll(max_records=3, timeout_ms=20)
    started = world.ask(InitProducer("tx", 60_000))
    ref = TransactionRef("tx", started.producer_id, started.producer_epoch)
    parts: Any = batch.offsets.messages  # type: ignore[attr-defined]
    world.ask(Acknowledge("g", consumer.member_id, parts, ref))
    world.ask(EndTransaction(ref, False))
    if goes_back:
        assert consumer.go_back(batch)
    assert take(consumer, 9) == [*[(offset, 2) for offset in range(3)], *[(offset, 1) for offset in range(3, 9)]]


def test_poll_brings_prefetched_messages_once_a_transaction_has_made_room() -> None:
    world = QueueWorld()
    world.publish({0: 6})
    consumer = world.consumer(max_delivered_unacked_msgs_per_flow=3)
    batch = consumer.poll(max_records=3, timeout_ms=20)
    started = world.ask(InitProducer("tx", 60_000))
    ref = TransactionRef("tx", started.producer_id, started.producer_epoch)
    world.ask(Acknowledge("g", consumer.member_id, batch.offsets.messages, ref))  # type: ignore[attr-defined]
    world.ask(EndTransaction(ref, True, 1))
    assert [message.offset for message in consumer.poll(max_records=3)] == [3, 4, 5]
