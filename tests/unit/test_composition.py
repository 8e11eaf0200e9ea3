"""Consumers and producers are put together from parts: no class changes what a class above it does."""

from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.engine.client.consume.position_consumer import AssignedConsumer
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.producer.producer import Producer, TransactionalProducer
from lakemq.engine.client.producer.record_producer import RecordProducer

CONSUMERS = (AssignedConsumer, GroupConsumer, QueueConsumer)


def test_a_consumer_has_the_calls_of_its_protocol_and_no_others() -> None:
    calls = {kind: {name for name in dir(kind) if not name.startswith("_")} for kind in CONSUMERS}
    common = {"poll", "until_end", "position", "lag", "commit", "committed", "pause", "resume", "close"}
    membership = {"member_id", "assignment", "subscription", "subscribe", "unsubscribe"}
    membership |= {"is_rebalancing", "group_lag", "go_back"}
    assert calls[AssignedConsumer] == common | {"seek"}
    assert calls[GroupConsumer] == common | membership | {"seek"}
    assert calls[QueueConsumer] == common | membership | {"ack", "ack_through", "nack", "reject", "flush"}
    assert {name for name in dir(Consumer) if not name.startswith("_")} == common


def test_a_producer_has_the_calls_of_its_protocol_and_no_others() -> None:
    calls = {
        kind: {name for name in dir(kind) if not name.startswith("_")}
        for kind in (RecordProducer, Producer, TransactionalProducer)
    }
    transactions = {"init_transactions", "begin_transaction", "send_offsets_to_transaction"}
    transactions |= {"commit_transaction", "abort_transaction"}
    assert {"send", "send_arrow", "flush", "close"} <= calls[RecordProducer]
    assert calls[Producer] == calls[RecordProducer]
    assert calls[TransactionalProducer] == calls[RecordProducer] | transactions
