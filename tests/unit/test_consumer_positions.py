"""Positions of a consumer: found with one request, and moved past offsets that are not shown."""

import pyarrow as pa
import pytest

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.offsets import FetchOffsets

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
