"""A stream through the format `lakemq` without a JVM: called batch by batch, as Spark does."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMinRows
from unit.served import new_name, new_topic, read_committed_offset, send, served

import lakemq
from lakemq import errors
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.format.stream import StreamReader
from lakemq.testing import MovableClock

pytestmark = pytest.mark.slow


class Query:
    """A reader that is called as Spark calls it: offsets go through JSON between batches."""

    def __init__(self, reader: StreamReader, checkpoint: list[str]) -> None:
        self.reader, self.checkpoint = reader, checkpoint

    def batch(self) -> list[str] | None:
        """Return the values of the next batch in any order, or None if there is no batch."""
        start = self._start()
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        self.checkpoint.append(end)
        return self.again()

    def again(self, number: int = -1) -> list[str]:
        """Read the batch of this number again, as a query does that starts from the checkpoint."""
        number %= len(self.checkpoint)
        start, end = (json.loads(text) for text in (self._start(number), self.checkpoint[number]))
        tables = [pa.Table.from_batches(self.reader.read(task)) for task in self.reader.partitions(start, end)]
        return sorted(value.decode() for table in tables for value in table.column("value").to_pylist())

    def _start(self, number: int | None = None) -> str:
        before = self.checkpoint[:number]
        return before[-1] if before else json.dumps(self.reader.initialOffset())


@pytest.fixture
def query(mq: Connection) -> Callable[..., Any]:
    @contextmanager
    def start(checkpoint: list[str] | None = None, **options: str) -> Iterator[Query]:
        reader = StreamReader({"path": mq.namespace.path} | options)
        try:
            yield Query(reader, [] if checkpoint is None else checkpoint)
        finally:
            reader.stop()

    return start


# -- a batch that is repeated has the same messages -------------------------------------------------------


def test_stream_begins_at_the_end_and_its_checkpoint_keeps_the_place(mq: Connection, topic: str, query: Any) -> None:
    send(mq, topic, "before")
    checkpoint: list[str] = []
    with query(checkpoint, subscribe=topic) as stream:
        assert stream.batch() == []  # only its start offset
    send(mq, topic, "meanwhile")
    with query(checkpoint, subscribe=topic) as stream:
        assert stream.again() == []
        assert stream.batch() == ["meanwhile"]


def test_repeated_batch_has_the_messages_that_expired_since(query: Any, tmp_path: Path) -> None:
    clock, checkpoint = MovableClock(), list[str]()
    with served(tmp_path, clock) as mq:
        topic = new_topic(mq)
        options = {"path": mq.namespace.path, "subscribe": topic, "startingOffsets": "earliest"}
        mq.publish(topic, pa.table({"value": ["a", "b", "gone"], "ttl_ms": [60_000, None, 0]}))
        with query(checkpoint, **options) as stream:
            assert stream.batch() == ["a", "b"]
        clock.ahead_ms += 60_001
        send(mq, topic, "c")
        with query(checkpoint, **options) as stream:
            assert stream.again() == ["a", "b"]
            assert stream.batch() == ["c"]
        with query(**options) as stream:
            assert stream.batch() == ["b", "c"]


def test_all_batches_repeat_from_the_checkpoint(mq: Connection, query: Any) -> None:
    topic, checkpoint = new_topic(mq, 3), list[str]()
    batches = []
    for number in range(5):
        send(mq, topic, *(f"{number}-{i}" for i in range(7)))
        with query(checkpoint, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="5") as stream:
            batches.append(stream.batch())
    assert [len(batch) for batch in batches] == [5] * 5
    with query(checkpoint, subscribe=topic) as stream:
        assert [stream.again(number) for number in range(5)] == batches
        read_values = [value for batch in (*batches, stream.batch()) for value in batch]
        assert sorted(read_values) == sorted(f"{n}-{i}" for n in range(5) for i in range(7))


def test_offsets_of_a_batch_are_valid_starting_offsets(mq: Connection, topic: str, query: Any) -> None:
    send(mq, topic, "a", "b")
    with query(subscribe=topic, startingOffsets=f'{{"{topic}": {{"0": 1}}}}') as stream:
        assert stream.batch() == ["b"]
        offset = json.loads(stream.checkpoint[-1])
        assert offset["offsets"] == {topic: {"0": 2}}
        assert stream.reader.reportLatestOffset()["offsets"] == {topic: {"0": 2}}
    with query(subscribe=topic, startingOffsets=json.dumps(offset["offsets"])) as stream:
        assert stream.batch() == []


# -- topics and offsets that change under a stream --------------------------------------------------------


def test_new_partitions_and_topics_are_read_from_their_start(mq: Connection, query: Any) -> None:
    prefix = new_name("p")
    mq.topics.create(f"{prefix}.a", 1)
    with query(subscribePattern=rf"{prefix}\..*") as stream:
        assert stream.batch() == []
        mq.topics.alter(f"{prefix}.a", partitions=2)
        send(mq, f"{prefix}.a", "new partition", partition=1)
        mq.topics.create(f"{prefix}.b", 1)
        send(mq, f"{prefix}.b", "new topic")
        assert stream.batch() == ["new partition", "new topic"]


def test_recreated_topic_is_data_loss_and_then_read_from_its_start(mq: Connection, topic: str, query: Any) -> None:
    send(mq, topic, "a", "b", "c")
    checkpoint: list[str] = []
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    with query(checkpoint, **options) as stream:
        assert stream.batch() == ["a", "b", "c"]
        mq.topics.delete(topic)
        with pytest.raises(errors.UnknownTopicId, match="not there"):
            stream.batch()
        mq.topics.create(topic, 1)
        send(mq, topic, "anew")
        with pytest.raises(errors.UnknownTopicId, match="another topic"):
            stream.batch()
    with query(checkpoint, **options, failOnDataLoss="false") as stream:
        assert stream.again() == []
        assert stream.batch() == ["anew"]
        assert stream.batch() is None


def test_checkpoint_of_another_namespace_is_refused(mq: Connection, query: Any, tmp_path: Path) -> None:
    """Each namespace numbers its topics from 1.

    One that was created again may give a topic an id that was used before.
    """
    with lakemq.connect(str(tmp_path / "mq"), create=True) as other, other.serving():
        topic = new_name("t")
        for connection in (mq, other):
            connection.topics.create(topic, 1)
            send(connection, topic, "a")
        checkpoint: list[str] = []
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        with query(checkpoint, **options) as stream:
            assert stream.batch() == ["a"]
        send(other, topic, "b")
        with query(checkpoint, **options, path=other.namespace.path, failOnDataLoss="false") as stream:
            for ask in (stream.batch, stream.again):
                with pytest.raises(errors.InconsistentClusterId, match="another namespace"):
                    ask()
        without_id = json.loads(checkpoint[0])
        del without_id["namespace_id"]
        with query([json.dumps(without_id)], **options) as stream:  # the format before it had ids
            assert stream.batch() is None


def test_messages_deleted_while_the_stream_was_stopped_are_data_loss(mq: Connection, topic: str, query: Any) -> None:
    send(mq, topic, "a")
    checkpoint: list[str] = []
    with query(checkpoint, subscribe=topic, startingOffsets="earliest") as stream:
        stream.batch()
    send(mq, topic, "b", "c", "d")
    mq.topics.delete_records(topic, {0: 3})
    with query(checkpoint, subscribe=topic) as stream, pytest.raises(errors.OffsetOutOfRange, match="data may be lost"):
        stream.batch()
    with query(list(checkpoint), subscribe=topic, failOnDataLoss="false") as stream:
        assert stream.batch() == ["d"]
    mq.topics.delete_records(topic, {0: 1})
    with query(checkpoint, subscribe=topic) as stream, pytest.raises(errors.OffsetOutOfRange):
        stream.again()


@pytest.mark.parametrize("starts", ['{"TOPIC": {"0": 9}}', '{"TOPIC": {"0": 0}}'])
def test_starting_offsets_that_do_not_exist_are_refused(mq: Connection, topic: str, query: Any, starts: str) -> None:
    send(mq, topic, "a", "b", "c")
    mq.topics.delete_records(topic, {0: 1})
    settings = {"subscribe": topic, "startingOffsets": starts.replace("TOPIC", topic)}
    with query(**settings) as stream, pytest.raises(errors.OffsetOutOfRange):
        stream.batch()
    with query(subscribe="nobody") as stream, pytest.raises(errors.UnknownTopicOrPartition):
        stream.batch()


# -- when a batch begins and ends -------------------------------------------------------------------------


def test_available_now_ends_with_the_messages_of_its_start(mq: Connection, topic: str, query: Any) -> None:
    send(mq, topic, "a", "b", "c")
    limits = {"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "2"}
    with query(subscribe=topic, startingOffsets="earliest", **limits) as stream:
        stream.reader.prepareForTriggerAvailableNow()
        send(mq, topic, "d")
        mq.topics.alter(topic, partitions=2)
        send(mq, topic, "e", partition=1)
        assert [stream.batch(), stream.batch(), stream.batch()] == [["a", "b"], ["c"], None]
    with query(stream.checkpoint, subscribe=topic) as stream:
        assert stream.batch() == ["d", "e"]


def test_small_batch_waits_for_more_messages_or_for_its_time(mq: Connection, topic: str, query: Any) -> None:
    limits = {"minOffsetsPerTrigger": "3", "maxTriggerDelay": "400ms"}
    with query(subscribe=topic, startingOffsets="earliest", **limits) as stream:
        assert isinstance(stream.reader.getDefaultReadLimit(), ReadMinRows)
        assert stream.batch() == []  # the first batch does not wait
        send(mq, topic, "a", "b")
        assert stream.batch() is None
        send(mq, topic, "c")
        assert stream.batch() == ["a", "b", "c"]
        send(mq, topic, "d")
        batch = None
        while batch is None:
            batch = stream.batch()
        assert batch == ["d"]


def test_repeated_batch_waits_for_messages_that_are_not_committed_yet(mq: Connection, topic: str, query: Any) -> None:
    """A batch is repeated exactly or not at all.

    Messages that an open transaction holds back are neither lost nor skipped.
    """
    checkpoint: list[str] = []
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    txn = mq.transaction(new_name("txn"))
    with txn:
        txn.publish(topic, pa.table({"value": ["open"]}))
        with query(checkpoint, **options, **{"isolation.level": "read_uncommitted"}) as stream:
            assert stream.batch() == ["open"]
        with query(checkpoint, **options) as stream:
            with pytest.raises(errors.UnstableOffsetCommit, match="open transaction"):
                stream.again()
            assert stream.batch() is None
    with query(checkpoint, **options) as stream:
        assert stream.again() == ["open"]
        send(mq, topic, "more")
        assert stream.batch() == ["more"]


# -- offsets of a group -----------------------------------------------------------------------------------


def test_group_gets_the_offsets_of_a_finished_batch(mq: Connection, topic: str, group: str, query: Any) -> None:
    send(mq, topic, "a", "b", "c")
    limits = {"maxOffsetsPerTrigger": "2", "kafka.group.id": group}
    with query(subscribe=topic, startingOffsets="earliest", **limits) as stream:
        stream.batch()
        assert read_committed_offset(mq, group, topic) is None  # the batch may still be in work
        stream.batch()
        assert read_committed_offset(mq, group, topic) == 2
        assert stream.batch() is None
        assert read_committed_offset(mq, group, topic) == 3


def test_group_with_members_refuses_offsets_of_a_stream(mq: Connection, topic: str, group: str, query: Any) -> None:
    send(mq, topic, "a")
    with (
        mq.consumer(group, topics=[topic], protocol="cooperative"),
        query(subscribe=topic, startingOffsets="earliest", **{"group.id": group}) as stream,
    ):
        stream.batch()
        with pytest.raises(errors.LakeMQError):
            stream.batch()
