"""Helpers that tests of consumers share: messages that name their place, and a listener that records its calls."""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from unit.served import new_name, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.options import RebalanceListener
from lakemq.engine.client.consume.queue_consumer import QueueConsumer


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


def new_group(mq: Connection, protocol: str | None) -> str:
    """Return the name of a new group. A classic one exists, and does not wait three seconds for more members."""
    group = new_name("g")
    if protocol == "classic":
        mq.groups.create(group, {"group.protocol": "classic", "group.initial.rebalance.delay.ms": 0})
    return group


def name_what_to_read(topic: str, protocol: str | None) -> dict[str, Any]:
    """Return the options of a consumer that reads the topic: assigned to it, or as a member by this protocol."""
    return {"assign": [topic]} if protocol is None else {"topics": [topic], "protocol": protocol}


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


def take_messages(consumer: QueueConsumer, count: int, **options: Any) -> list[Any]:
    """Poll until at least `count` messages have come, and return them."""
    messages: list[Any] = []
    until(lambda: bool(messages.extend(consumer.poll(timeout_ms=20, **options)) or len(messages) >= count))
    return messages


def read_texts(messages: Iterable[Any]) -> list[str]:
    return [message.value.decode() for message in messages]


# -- queue groups -------------------------------------------------------------------------------------------


def create_queue_group(mq: Connection, **config: Any) -> str:
    """Create a group with these settings, and return its name. A `_` in a key stands for a dot."""
    group = new_name("g")
    mq.groups.create(group, {"group.protocol": "queue", **{k.replace("_", "."): value for k, value in config.items()}})
    return group


def join_queue_group(mq: Connection, group: str, topic: str, **options: Any) -> QueueConsumer:
    options = {"auto_offset_reset": "earliest", **options}
    return mq.consumer(group, topics=[topic], protocol="queue", **options)


def read_deliveries(mq: Connection, group: str, topic: str) -> dict[int, list[tuple[int, int, str, int]]]:
    """Return the group's view of each partition: first offset, count, status, delivery count."""

    def list_stretches(state: Any) -> dict[int, list[tuple[int, int, str, int]]]:
        topic_id = state.topic_ids[topic]
        return {
            partition: [(part.first, part.length, part.status.value, part.deliveries) for part in deliveries.stretches]
            for (of_topic, partition), deliveries in state.deliveries.get(group, {}).items()
            if of_topic == topic_id
        }

    return mq._fetcher.query_groups(list_stretches)


def act_before_fetch(consumer: Any, act: Callable[[], None]) -> None:
    """Let the next poll find that something has happened between its plan and its fetch."""
    fetcher = consumer._parts.fetcher
    fetch = fetcher.fetch

    def act_and_fetch(*arguments: Any, **options: Any) -> Any:
        fetcher.fetch = fetch
        act()
        return fetch(*arguments, **options)

    fetcher.fetch = act_and_fetch
