"""The sinks of the format `lakemq` without a JVM: the files that tasks write, and the messages that are published."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, NullType, StructType, VariantType, YearMonthIntervalType
from targets import extended_but
from unit.served import new_name, new_topic, values, wait_for_files

from lakemq import errors
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.format.publishing import BY_COLUMN
from lakemq.engine.client.format.source import BatchWriter, LakeMQDataSource, StreamWriter
from lakemq.tables.specs.messages import REJECTED_ROWS

SERVED_WITH = {"project.interval.ms": 50}

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def table(*rows: str, **columns: Any) -> pa.Table:
    return pa.table({"value": list(rows), **columns})


def write_parts(writer: Any, parts: tuple[pa.Table, ...]) -> list[Any]:
    """Write each part with a writer of its own, and return what the tasks send to the driver."""
    task = pickle.dumps(writer)
    return [pickle.loads(pickle.dumps(pickle.loads(task).write(iter(part.to_batches())))) for part in parts]


def write(mq: Connection, *parts: pa.Table, **options: str) -> None:
    writer = BatchWriter({"path": mq.namespace.path, **options}, from_arrow_schema(parts[0].schema), False)
    pickle.loads(pickle.dumps(writer)).commit(write_parts(writer, parts))


class Stream:
    """A checkpoint, and the batches of its stream."""

    def __init__(self, mq: Connection, folder: Path, **options: str) -> None:
        folder.mkdir()
        (folder / "metadata").write_text(json.dumps({"id": new_name("id-")}))
        self._options = {"path": mq.namespace.path, "checkpointLocation": str(folder), **options}

    def write(self, batch_id: int, *parts: pa.Table) -> None:
        writer = StreamWriter(self._options, from_arrow_schema(parts[0].schema))
        writer.commit(write_parts(writer, parts), batch_id)


# -- rows become messages ---------------------------------------------------------------------------------


def test_rows_are_published_in_the_order_of_their_tasks(mq: Connection, topic: str) -> None:
    write(mq, table("a", "b"), table(), table("c"), topic=topic)
    assert values(mq, topic) == ["a", "b", "c"]


def test_sink_writes_all_columns_of_a_message(mq: Connection) -> None:
    topic = new_topic(mq, 3)
    stamp = pa.array([1_000_000, None], pa.timestamp("us", "UTC"))
    headers = pa.array([[("h", b"1")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    rows = table("a", "b", Key=["k", None], timestamp=stamp, headers=headers, partition=[2, 0], other=[1, 2])
    write(mq, rows, topic=topic)
    b, a = mq.fetch(topic)
    assert (a.partition, a.key, a.value, a.headers, a.timestamp.timestamp()) == (2, b"k", b"a", (("h", b"1"),), 1.0)
    assert (b.partition, b.key, b.headers) == (0, None, ())
    write(mq, rows, topic=topic, includeHeaders="false")
    assert all(message.headers == () for message in mq.fetch(topic, partitions=[2], start={2: 1}))


def test_rows_go_to_the_topics_that_they_name(mq: Connection) -> None:
    topic, other = new_topic(mq), new_topic(mq)
    queue, level = new_name("q"), new_name("level")
    mq.topics.create(queue, 1, subscriptions=[f"{level}/>"])
    names = [topic, other, topic, f"{level}/x", "nobody", None]
    parts = table("a", "b", "c", "d", "e", "f", topic=names), table("g", "h", topic=[other, "nobody"])
    write(mq, *parts, onError="reject")
    assert (values(mq, topic), values(mq, other), values(mq, queue)) == (["a", "c"], ["b", "g"], ["d"])
    wait_for_files(mq)
    refused = mq.namespace.store.open(REJECTED_ROWS).read().to_pylist()
    refusals = sorted((row["source"], row["error"]) for row in refused if row["source"] in ("nobody", BY_COLUMN))
    assert refusals == [(BY_COLUMN, "INVALID_TOPIC_EXCEPTION"), *[("nobody", "UNKNOWN_TOPIC_OR_PARTITION")] * 2]


def test_rejected_rows_fail_the_write_or_are_logged(
    mq: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_name("t")
    mq.topics.create(topic, 1, config={"max.message.bytes": 10})
    rows = table("a", "x" * 100, "b", topic=[topic, topic, "nobody"])
    stream = Stream(mq, tmp_path / "fails")
    with pytest.raises(errors.MessageTooLarge, match=r"2 rows are rejected.*10 bytes\. The option onError=reject"):
        stream.write(0, rows)
    with pytest.raises(errors.MessageTooLarge):
        write(mq, rows, topic=topic)
    assert values(mq, topic) == []
    Stream(mq, tmp_path / "rejects", onError="reject").write(7, rows)
    (line,) = caplog.messages
    assert re.match(r"Batch 7 of stream-id-.*: messages published: 1. 2 rows are rejected: ", line)
    assert f"MESSAGE_TOO_LARGE (1 for {topic}): " in line
    assert "UNKNOWN_TOPIC_OR_PARTITION (1 for nobody): No topic has this name" in line
    write(mq, rows, topic=topic, onError="reject")
    assert caplog.messages[1].startswith("Batch: messages published: 2. 1 row is rejected: ")
    assert values(mq, topic) == ["a", "a", "b"]


# -- a repeated write is published once -------------------------------------------------------------------


def test_batch_with_a_version_is_published_once(mq: Connection, topic: str) -> None:
    for version in ("1", "1", "2", "1"):
        write(mq, table(f"v{version}"), topic=topic, txnAppId="nightly", txnVersion=version)
    assert values(mq, topic) == ["v1", "v2"]


def test_repeated_batch_of_a_stream_is_published_once(mq: Connection, topic: str, tmp_path: Path) -> None:
    stream = Stream(mq, tmp_path / "one", topic=topic)
    stream.write(0, table("a"))
    stream.write(1, table("b"))
    stream.write(1, table("b"))  # the driver was killed before it noted this
    Stream(mq, tmp_path / "other", topic=topic).write(0, table("of another stream"))
    assert values(mq, topic) == ["a", "b", "of another stream"]


def test_repeated_batch_whose_rows_name_topics_is_published_once(mq: Connection, tmp_path: Path) -> None:
    topic, other = new_topic(mq), new_topic(mq)
    stream = Stream(mq, tmp_path / "one")
    for _ in range(2):
        stream.write(0, table("a", "b", topic=[topic, other]))
    stream.write(1, table("c", topic=[topic]))
    assert (values(mq, topic), values(mq, other)) == (["a", "c"], ["b"])


def test_file_of_a_task_that_ran_twice_is_published_once(mq: Connection, topic: str) -> None:
    writer = BatchWriter({"path": mq.namespace.path, "topic": topic}, from_arrow_schema(table("a").schema), False)
    _, second = write_parts(writer, (table("a"), table("a")))  # a task that ran twice
    writer.commit([second])
    assert values(mq, topic) == ["a"]


# -- what is refused, and when ----------------------------------------------------------------------------


def test_topic_that_changed_during_the_write_fails_it(mq: Connection, topic: str) -> None:
    writer = BatchWriter({"path": mq.namespace.path, "topic": topic}, from_arrow_schema(table("a").schema), False)
    messages = write_parts(writer, (table("a"),))
    mq.topics.alter(topic, partitions=2)
    with pytest.raises(errors.StaleTopicMetadata):
        writer.commit(messages)
    assert values(mq, topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        ({"key": ["k"]}, {"topic": "TOPIC"}, errors.InvalidRecord),
        ({"value": [1]}, {"topic": "TOPIC"}, errors.InvalidRecord),
        ({"value": ["v"], "VALUE": ["v"]}, {"topic": "TOPIC"}, errors.InvalidRecord),
        ({"value": ["v"]}, {}, errors.InvalidRecord),
        ({"value": ["v"], "topic": [1]}, {}, errors.InvalidRecord),
        ({"value": ["v"], "partition": ["0"]}, {"topic": "TOPIC"}, errors.InvalidRecord),
        ({"value": ["v"]}, {"topic": "nobody"}, errors.UnknownTopicOrPartition),
        ({"value": ["v"]}, {"topic": "TOPIC", "subscrbe": "TOPIC"}, errors.InvalidConfig),
        ({"value": ["v"]}, {"topic": "TOPIC", "kafka.bootstrap.servers": "x"}, errors.InvalidConfig),
        ({"value": ["v"]}, {"topic": "TOPIC", "txnVersion": "1"}, errors.InvalidConfig),
        ({"value": ["v"]}, {"topic": "TOPIC", "onError": "ignore"}, errors.InvalidConfig),
    ],
)
def test_wrong_columns_and_options_are_refused_before_a_row_is_written(
    mq: Connection, topic: str, columns: dict[str, Any], options: dict[str, str], error: type[Exception]
) -> None:
    settings = {"path": mq.namespace.path, **{name: value.replace("TOPIC", topic) for name, value in options.items()}}
    with pytest.raises(error):
        BatchWriter(settings, from_arrow_schema(pa.table(columns).schema), False)


@pytest.mark.parametrize("odd_type", [YearMonthIntervalType(), ArrayType(YearMonthIntervalType())])
def test_column_of_an_unsupported_type_is_refused_before_a_task_starts(
    mq: Connection, topic: str, odd_type: Any
) -> None:
    settings = {"path": mq.namespace.path, "topic": topic}
    fits = StructType().add("value", "string").add("more", VariantType()).add("none", NullType())
    BatchWriter(settings, fits, False)
    with pytest.raises(errors.InvalidRecord, match=r"the column age.*interval year to month"):
        BatchWriter(settings, fits.add("age", odd_type), False)


def test_overwrite_is_refused(mq: Connection, topic: str) -> None:
    settings = {"path": mq.namespace.path, "topic": topic}
    with pytest.raises(errors.InvalidRequest):
        LakeMQDataSource(settings).writer(from_arrow_schema(table("a").schema), overwrite=True)


def test_stream_without_an_id_is_refused(mq: Connection, topic: str, tmp_path: Path) -> None:
    settings = {"path": mq.namespace.path, "topic": topic}
    schema = from_arrow_schema(table("a").schema)
    with pytest.raises(errors.InvalidConfig, match="checkpointLocation"):
        StreamWriter(settings, schema)
    for place in (str(tmp_path), "hdfs://somewhere/checkpoint"):
        with pytest.raises(errors.InvalidConfig, match="id of the stream"):
            StreamWriter({**settings, "checkpointLocation": place}, schema)


@pytest.mark.parametrize("names_topic", extended_but([True], [True, False]))
def test_executor_writes_without_deltalake_and_duckdb(
    mq: Connection, topic: str, tmp_path: Path, names_topic: bool
) -> None:
    rows = table("a", topic=[topic])
    options = {"path": mq.namespace.path, **({"topic": topic} if names_topic else {})}
    writer = BatchWriter(options, from_arrow_schema(rows.schema), False)
    (tmp_path / "task").write_bytes(pickle.dumps((writer, rows)))
    code = f"""
import pickle, sys
for name in ("deltalake", "duckdb", "yaml", "typer"):
    sys.modules[name] = None
writer, rows = pickle.load(open({str(tmp_path / "task")!r}, "rb"))
pickle.dump(writer.write(iter(rows.to_batches())), open({str(tmp_path / "done")!r}, "wb"))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    writer.commit([pickle.loads((tmp_path / "done").read_bytes())])
    assert values(mq, topic) == ["a"]
