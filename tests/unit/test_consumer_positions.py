"""Positions of a consumer: found with one request, and moved past offsets that are not shown."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.consuming.offsets import FetchOffsets
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult

pytestmark = pytest.mark.slow


def publish_aborted_message(mq: Connection, topic: str, partition: int) -> None:
    """Publish a message that read_committed never shows."""
    with mq.producer("aborting") as producer:
        producer.begin_transaction()
        producer.send(topic, value="never", partition=partition)
        producer.flush()
        producer.abort_transaction()


def test_poll_fetches_the_offsets_of_its_group_once(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    mq.topics.create("wide", partitions=20)
    mq.publish("wide", pa.table({"value": [str(n) for n in range(100)]}))
    requests: list[AnyRequest] = []
    ask = mq.requester.ask

    def count_request(request: AnyRequest) -> AnyResult:
        requests.append(request)
        return ask(request)

    monkeypatch.setattr(mq.requester, "ask", count_request)
    with mq.consumer("wide", assign=["wide"]) as consumer:
        assert consumer.poll().record_count == 100
        assert set(consumer.lag().values()) == {0}
    assert [type(request) for request in requests] == [FetchOffsets]


def test_empty_batch_moves_past_aborted_messages(mq: Connection) -> None:
    mq.topics.create("holes", partitions=2)
    publish_aborted_message(mq, "holes", 0)
    with mq.consumer("holes", assign=["holes"]) as consumer:
        batch = consumer.poll()
        assert (bool(batch), batch.offsets) == (False, {("holes", 0): 2})
        assert consumer.lag() == {("holes", 0): 0, ("holes", 1): 0}


def test_batch_counts_offsets_passed_before_its_first_message(mq: Connection) -> None:
    for topic in ("late", "later"):
        mq.topics.create(topic)
        publish_aborted_message(mq, topic, 0)
    mq.publish("later", pa.table({"value": ["shown"]}))
    with mq.consumer("late", assign=["late", "later"]) as consumer:
        # the first look takes two offsets of each partition, and shows none of them
        batch = consumer.poll(max_records=4, timeout_ms=1000)
        assert [message.value for message in batch] == [b"shown"]
        assert batch.offsets == {("late", 0): 2, ("later", 0): 3}


def test_position_beyond_the_last_stable_offset_has_no_lag(mq: Connection) -> None:
    mq.topics.create("open")
    producer = mq.producer("open")
    producer.begin_transaction()
    producer.send("open", value="later")
    producer.flush()
    with mq.consumer("open", assign=["open"]) as consumer:
        consumer.seek("open", 0, 1)
        assert consumer.lag() == {("open", 0): 0}
    producer.abort_transaction()


def test_tail_yields_no_empty_table(mq: Connection) -> None:
    mq.topics.create("followed")
    publish_aborted_message(mq, "followed", 0)
    later = threading.Timer(0.2, lambda: mq.publish("followed", pa.table({"value": ["shown"]})))
    later.start()
    assert next(mq.tail("followed", start=0))["value"].to_pylist() == [b"shown"]
    later.join()
