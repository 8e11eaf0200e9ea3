"""The length of everything that a user iterates over: batches of all kinds of consumers, and fetches."""

from typing import Any

import pytest
from unit.consuming import add, new_group
from unit.served import new_topic

from lakemq.engine.client.connection import Connection


def check_length(batch: Any, count: int) -> None:
    assert len(batch) == len(list(batch)) == batch.record_count == batch.to_arrow().num_rows == count
    assert bool(batch) == (count > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol", ["cooperative", pytest.param("classic", marks=pytest.mark.extended), "queue", None]
)
def test_the_length_of_a_batch_is_its_number_of_messages(mq: Connection, protocol: str | None) -> None:
    topic, group = new_topic(mq, 2), new_group(mq, protocol)
    add(mq, topic, {0: 3, 1: 2})
    reads: dict[str, Any] = {"assign": [topic]} if protocol is None else {"topics": [topic], "protocol": protocol}
    with mq.consumer(group, auto_offset_reset="earliest", **reads) as consumer:
        lengths = []
        for batch in consumer.until_end(max_records=4):
            check_length(batch, len(batch))
            lengths.append(len(batch))
            consumer.commit(batch)
        assert sum(lengths) == 5
        check_length(consumer.poll(), 0)


@pytest.mark.slow
def test_the_length_of_a_fetch_is_its_number_of_messages(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    check_length(mq.fetch(topic), 0)
    add(mq, topic, {0: 3, 1: 2})
    check_length(mq.fetch(topic), 5)
    check_length(mq.fetch(topic, start={0: 2, 1: 0}), 3)
