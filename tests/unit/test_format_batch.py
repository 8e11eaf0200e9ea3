"""A batch through the format `lakemq` without a JVM: its plan, and the rows that its tasks read."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from unit.served import new_name, new_topic, wait_for_files

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.arrow import FETCHED
from lakemq.engine.client.format import tasks
from lakemq.engine.client.format.stream import BatchReader
from lakemq.errors import InvalidConfig, InvalidRegularExpression, OffsetOutOfRange, UnknownTopicOrPartition

SERVED_WITH = {"project.interval.ms": 500}
pytestmark = pytest.mark.slow


def table(count: int, size: int = 10) -> pa.Table:
    return pa.table({"key": [f"k{i % 97}" for i in range(count)], "value": [f"{i:0{size}}" for i in range(count)]})


def options(mq: Connection, **extra: str) -> dict[str, str]:
    return {"path": mq.namespace.path, "includeHeaders": "true", **extra}


def rows(reader: BatchReader) -> pa.Table:
    """Return the rows of all tasks, pickled as for executors, by topic, partition and offset."""
    planned = pickle.loads(pickle.dumps((reader, reader.partitions())))
    batches = [batch for task in planned[1] for batch in planned[0].read(task)]
    keys = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    return pa.Table.from_batches(batches, FETCHED).sort_by(keys)


def read(mq: Connection, **extra: str) -> pa.Table:
    return rows(BatchReader(options(mq, **extra)))


def test_batch_equals_a_fetch_of_riding_rows_and_of_files(mq: Connection) -> None:
    topic = new_topic(mq, 3)
    with mq.producer() as producer:
        producer.send(topic, key="a", value="rides", headers=[("h", b"1")])
    assert read(mq, subscribe=topic).equals(mq.fetch(topic).to_arrow())
    mq.publish(topic, table(5000))
    with mq.producer() as producer:
        producer.send(topic, value=None, key="b")
    assert read(mq, subscribe=topic).equals(mq.fetch(topic).to_arrow())
    wait_for_files(mq)
    assert read(mq, subscribe=topic).equals(mq.fetch(topic).to_arrow())


def test_row_groups_are_cut_into_the_requested_number_of_tasks(mq: Connection, monkeypatch: Any) -> None:
    topic = new_topic(mq, 3)
    for _ in range(2):
        mq.publish(topic, table(5000))
    settings = options(mq, subscribe=topic)
    whole = mq.fetch(topic).to_arrow()
    assert [len(task.chunks) for task in BatchReader(settings).partitions()] == [1]
    reader = BatchReader({**settings, "minPartitions": "7"})
    assert len(reader.partitions()) >= 7
    assert rows(reader).equals(whole)
    reader = BatchReader({**settings, "maxRecordsPerPartition": "999"})
    assert all(sum(chunk.record_count for chunk in task.chunks) <= 999 for task in reader.partitions())
    assert rows(reader).equals(whole)
    monkeypatch.setattr(tasks, "TASK_ROWS", 5000)
    assert len(BatchReader(settings).partitions()) == 2  # one file each: no task opens the row group of another


def test_messages_of_a_task_have_the_order_of_their_logs(mq: Connection, monkeypatch: Any) -> None:
    topic = new_topic(mq, 2)
    for _ in range(6):
        mq.publish(topic, table(700))
    with mq.producer() as producer:
        producer.send(topic, value="rides", partition=0)
    monkeypatch.setattr(tasks, "_CHUNK_ROWS", 1000)
    reader = BatchReader(options(mq, subscribe=topic))
    (task,) = reader.partitions()
    assert len(task.chunks) > 3
    messages = pa.Table.from_batches(reader.read(task))
    for partition in range(2):
        offsets = messages.filter(pc.equal(messages.column("partition"), partition)).column("offset").to_pylist()
        assert offsets == list(range(mq.end_offsets(topic)[partition]))


def test_starting_and_ending_offsets_bound_a_batch(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    mq.publish(topic, table(1000))
    end = mq.end_offsets(topic)
    bounds = {
        "startingOffsets": f'{{"{topic}": {{"0": 10, "1": -2}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 20, "1": -1}}}}',
    }
    messages = read(mq, subscribe=topic, **bounds)
    assert messages.equals(mq.fetch(topic, start={0: 10, 1: 0}, end={0: 20, 1: end[1]}).to_arrow())
    assert read(mq, assign=f'{{"{topic}": [1]}}').equals(mq.fetch(topic, partitions=[1]).to_arrow())


def test_starting_and_ending_times_bound_a_batch(mq: Connection) -> None:
    topic = new_topic(mq)
    for second in range(3):
        rows_of = {"value": ["x"], "timestamp": pa.array([second * 1_000_000], pa.timestamp("us", "UTC"))}
        mq.publish(topic, pa.table(rows_of))
    assert read(mq, subscribe=topic, startingTimestamp="1000").column("offset").to_pylist() == [1, 2]
    assert read(mq, subscribe=topic, endingTimestamp="1500").column("offset").to_pylist() == [0, 1]
    by_topic = f'{{"{topic}": {{"0": 2000}}}}'
    assert read(mq, subscribe=topic, startingOffsetsByTimestamp=by_topic).column("offset").to_pylist() == [2]
    with pytest.raises(OffsetOutOfRange, match="no message of this time"):
        read(mq, subscribe=topic, startingTimestamp="9000")
    nothing = read(mq, subscribe=topic, startingTimestamp="9000", startingOffsetsByTimestampStrategy="latest")
    assert nothing.num_rows == 0
    assert read(mq, subscribe=topic, endingTimestamp="9000").num_rows == 3


@pytest.mark.parametrize(
    ("bounds", "error"),
    [
        ({"subscribe": "nobody"}, UnknownTopicOrPartition),
        ({"assign": '{"TOPIC": [7]}'}, UnknownTopicOrPartition),
        ({"subscribePattern": "a(b"}, InvalidRegularExpression),
        ({"startingOffsets": '{"other": {"0": 1}}'}, InvalidConfig),
        ({"startingOffsets": '{"TOPIC": {"0": 1}}'}, InvalidConfig),
        ({"startingOffsetsByTimestamp": '{"TOPIC": {"0": 1, "1": 1, "2": 1}}'}, InvalidConfig),
    ],
)
def test_missing_topics_and_partitions_are_refused(
    mq: Connection, bounds: dict[str, str], error: type[Exception]
) -> None:
    topic = new_topic(mq, 2)
    settings = {name: value.replace("TOPIC", topic) for name, value in bounds.items()}
    if settings.keys() <= {"startingOffsets", "startingOffsetsByTimestamp"}:
        settings["subscribe"] = topic
    with pytest.raises(error):
        read(mq, **settings)


def test_deleted_messages_are_an_error_or_are_left_out(mq: Connection, topic: str) -> None:
    mq.publish(topic, table(100))
    mq.topics.delete_records(topic, {0: 40})
    settings = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 10}}}}'}
    with pytest.raises(OffsetOutOfRange, match="data may be lost"):
        read(mq, **settings)
    assert read(mq, **settings, failOnDataLoss="false").column("offset").to_pylist() == list(range(40, 100))
    beyond = {"subscribe": topic, "endingOffsets": f'{{"{topic}": {{"0": 200}}}}'}
    with pytest.raises(OffsetOutOfRange):
        read(mq, **beyond)
    assert read(mq, **beyond, failOnDataLoss="false").num_rows == 60


def test_uncommitted_messages_are_left_out(mq: Connection, topic: str) -> None:
    txn = mq.transaction(new_name("txn"))
    with txn:
        txn.publish(topic, table(5))
        assert read(mq, subscribe=topic).num_rows == 0
        assert read(mq, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"}).num_rows == 5
    assert read(mq, subscribe=topic).num_rows == 5


@pytest.mark.extended
def test_executor_reads_without_deltalake_and_duckdb(mq: Connection, topic: str, tmp_path: Path) -> None:
    mq.publish(topic, table(1000))
    reader = BatchReader(options(mq, subscribe=topic))
    (tmp_path / "task").write_bytes(pickle.dumps((reader, reader.partitions())))
    code = f"""
import pickle, sys
for name in ("deltalake", "duckdb", "yaml", "typer"):
    sys.modules[name] = None
reader, tasks = pickle.load(open({str(tmp_path / "task")!r}, "rb"))
print(sum(batch.num_rows for task in tasks for batch in reader.read(task)))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.stdout.strip() == "1000", completed.stderr
