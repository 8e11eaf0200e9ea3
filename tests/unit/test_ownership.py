"""A batch says since when its partitions are owned, and at which offset the ownership began, in all protocols."""

from __future__ import annotations

import time
from typing import Any

import pytest
from unit.consuming import add, list_partitions
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.mark.parametrize("protocol", ["queue", "cooperative", "classic"])
def test_batch_has_since_when_and_from_which_offset_its_partitions_are_owned(mq: Connection, protocol: Any) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    delays = {"classic": "group.initial.rebalance.delay.ms", "queue": "rebalance.delay.ms"}
    config = {delays[protocol]: 0} if protocol in delays else {}
    mq.groups.create(group, {"group.protocol": protocol, **config})
    add(mq, topic, {0: 3, 1: 2})
    # step time begins with the time of a file, and the kernel's clock for these ticks every 4 to 10 ms
    before_ms = time.time() * 1000 - 12
    options: dict[str, Any] = {"topics": [topic], "auto_offset_reset": "earliest"}
    with mq.consumer(group, **options) as first_consumer:
        batch = first_consumer.poll(timeout_ms=5_000)
        assert {tp: ownership.first_offset for tp, ownership in batch.ownership.items()} == {
            (topic, 0): 0,
            (topic, 1): 0,
        }
        since_ms = [ownership.since_ms for ownership in batch.ownership.values()]
        assert all(before_ms <= ms <= time.time() * 1000 + 1 for ms in since_ms)
        first_consumer.commit(batch)
        with mq.consumer(group, **options) as second_consumer:
            until(
                lambda: (
                    not first_consumer.poll()
                    and not second_consumer.poll()
                    and len(list_partitions(first_consumer)) == len(list_partitions(second_consumer)) == 1
                )
            )
            add(mq, topic, {0: 1, 1: 1})
            (partition,) = list_partitions(second_consumer)
            later = second_consumer.poll(timeout_ms=5_000)
            ownership = later.ownership[topic, partition]
            assert (ownership.first_offset, list(later.ownership)) == ((3, 2)[partition], [(topic, partition)])
            first = batch.ownership[topic, partition]
            assert ownership.since_ms >= first.since_ms
            assert ownership.epoch > first.epoch
            assert ownership.since.timestamp() * 1000 == pytest.approx(ownership.since_ms)
    reader = mq.consumer(new_name("g"), assign=[topic], auto_offset_reset="earliest")
    assert reader.poll(timeout_ms=5_000).ownership == {}
