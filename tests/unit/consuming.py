"""Helpers that tests of consumers share: messages that name their place, and a listener that records its calls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from unit.served import until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.listener import RebalanceListener
from lakemq.engine.client.consume.member.member_consumer import MemberConsumer
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer


class RecordingListener(RebalanceListener):
    """A listener that records each call with the partitions of it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        self.events.append(("assigned", [p for _, p in partitions]))

    def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        self.events.append(("revoked", [p for _, p in partitions]))

    def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        self.events.append(("lost", [p for _, p in partitions]))


def add(mq: Connection, topic: str, counts: dict[int, int], mark: str = "") -> None:
    """Publish this many messages to each partition. The values are `0.0`, `0.1`, ..."""
    places = [(p, i) for p, count in counts.items() for i in range(count)]
    rows = {"value": [f"{mark}{p}.{i}" for p, i in places], "partition": [p for p, _ in places]}
    if places:
        mq.publish(topic, pa.table(rows))


def texts(batch: Any) -> list[str]:
    return [value.decode() for value in batch.to_arrow()["value"].to_pylist()]


def list_partitions(consumer: MemberConsumer) -> list[int]:
    return [partition for _, partition in consumer.assignment()]


def take_messages(consumer: QueueConsumer, count: int) -> list[Any]:
    """Poll until at least `count` messages have come, and return them."""
    messages: list[Any] = []
    until(lambda: bool(messages.extend(consumer.poll(timeout_ms=20)) or len(messages) >= count))
    return messages
