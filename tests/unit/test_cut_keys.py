"""Keys that a handoff has cut: both owners acknowledged messages of them."""

from typing import Any

import pyarrow as pa
import pytest
from unit.consuming import list_partitions, take_messages
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.live_tables import count_cut_keys, read_handoffs

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def publish(mq: Connection, topic: str, keys: str) -> None:
    """Publish a message to partition 1 for each letter. The letter is its key."""
    rows: dict[str, Any] = {"key": [*keys], "value": [*keys], "partition": [1] * len(keys)}
    mq.publish(topic, pa.table(rows))


@pytest.mark.parametrize(("later", "cut"), [("de", 0), ("db", 1), ("ab", 2)])
def test_key_is_cut_if_both_owners_acknowledged_its_messages(mq: Connection, later: str, cut: int) -> None:
    """The first owner acknowledges a, b and the second b out of order. It keeps c, which the next owner gets."""
    topic, group = new_topic(mq, 2), new_name("g")
    mq.groups.create(group, {"group.protocol": "queue", "max.handoff.ms": 50, "rebalance.delay.ms": 0})
    publish(mq, topic, "abcb")
    with mq.consumer(group, topics=[topic], auto_offset_reset="earliest") as first:
        messages = take_messages(first, 4)
        first.ack([message for message in messages if message.key != b"c"])
        first.flush()
        with mq.consumer(group, topics=[topic], auto_offset_reset="earliest") as second:
            later_messages: list[Any] = []
            until(lambda: bool(first.poll() or later_messages.extend(second.poll()) or list_partitions(second) == [1]))
            publish(mq, topic, later)
            second.ack([*later_messages, *take_messages(second, 3 - len(later_messages))])
            second.flush()
            until(lambda: any(handoff.to_member == second.member_id for handoff in read_handoffs(mq.namespace, group)))
            (handoff,) = [
                handoff for handoff in read_handoffs(mq.namespace, group) if handoff.to_member == second.member_id
            ]
            assert (handoff.from_offset, handoff.to_offset, handoff.redelivered) == (0, 2, 1)
            assert handoff.to_acknowledged_ahead == "[[3,1]]"
            assert count_cut_keys(mq, mq.groups.lag(group), [handoff]) == [cut]
            query = f"SELECT cut_keys FROM cut_keys WHERE group = '{group}' AND to_member = '{second.member_id}'"
            assert mq.sql(query).to_pylist() == [{"cut_keys": cut}]
