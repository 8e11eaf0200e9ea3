"""Consumers and producers are put together from parts: no class changes what a class above it does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.consume.member.group_consumer import GroupConsumer
from lakemq.engine.client.consume.member.member_consumer import MemberConsumer
from lakemq.engine.client.consume.positions.assigned_consumer import AssignedConsumer
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.client.producer.producer import Producer
from lakemq.engine.client.producer.record_producer import RecordProducer
from lakemq.engine.client.producer.transactional import TransactionalProducer

CONSUMERS = (AssignedConsumer, GroupConsumer, QueueConsumer)


def find_overridden_methods(kind: type) -> Iterator[str]:
    """Yield the methods of a class that replace one which a class above it carries out."""
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and name != "__init__":
            above = [vars(base)[name] for base in kind.__mro__[1:-1] if name in vars(base)]
            if any(not getattr(overridden, "__isabstractmethod__", False) for overridden in above):
                yield f"{kind.__name__}.{name}"


@pytest.mark.parametrize("kind", [*CONSUMERS, MemberConsumer, Producer, TransactionalProducer, Connection])
def test_no_method_is_overridden(kind: type) -> None:
    assert list(find_overridden_methods(kind)) == []


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
