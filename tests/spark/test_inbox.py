"""Rows that SQL inserts are published exactly once, in spite of other changes of the table and several drains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.publish.inbox import Inbox
from lakemq.errors import IllegalState
from lakemq.tables.specs.messages import INBOX
from lakemq.tables.storage.delta.store import read_insertion
from lakemq.tables.storage.object_stores.files import LocalFiles


@pytest.fixture(autouse=True)
def drain_leftovers(mq: Connection) -> None:
    """Publish rows that the last test has left."""
    mq.drain_inbox()


def insert(spark: SparkSession, topic: str, *values: str) -> None:
    rows = ", ".join(f"('{topic}', 'k', '{value}')" for value in values)
    spark.sql(f"INSERT INTO mq.inbox (topic, key, value) VALUES {rows}")


def values(mq: Connection, topic: str) -> list[str]:
    return sorted(m.value.decode() for m in mq.fetch(topic) if m.value is not None)


def inbox(mq: Connection, spark: SparkSession, max_batch_bytes: int = 1 << 30) -> Inbox:
    return Inbox(mq.namespace, mq.spark_publisher(), spark, max_batch_bytes=max_batch_bytes)


def test_a_drain_publishes_each_row_to_its_topic_and_once(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=3)
    mq.topics.create(f"{topic}-fan", partitions=2, subscriptions=[f"{topic}/*"])
    insert(spark, topic, "a", "b")
    insert(spark, f"{topic}/x", "c")
    drained = mq.drain_inbox()
    assert (drained.record_count, drained.rejected_count) == (3, 0)
    assert values(mq, topic) == ["a", "b"]
    assert values(mq, f"{topic}-fan") == ["c"]
    assert mq.drain_inbox().record_count == 0
    assert spark.table("mq.inbox").count() == 0
    insert(spark, topic, "d")
    assert mq.drain_inbox().record_count == 1
    assert values(mq, topic) == ["a", "b", "d"]


@pytest.mark.extended
def test_a_topic_that_two_names_reach_keeps_dense_offsets(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=1, subscriptions=[f"{topic}/>"])
    insert(spark, topic, "a", "b")
    insert(spark, f"{topic}/x", "c", "d")
    mq.drain_inbox()
    assert sorted(m.offset for m in mq.fetch(topic)) == [0, 1, 2, 3]
    assert values(mq, topic) == ["a", "b", "c", "d"]


@pytest.mark.extended
def test_inbox_rows_are_published_when_they_are_due(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic)
    spark.sql(
        f"""INSERT INTO mq.inbox (topic, value, deliver_at, delay_ms) VALUES
            ('{topic}', 'now', NULL, NULL), ('{topic}', 'later', timestamp'2222-02-02', NULL),
            ('{topic}', 'late', NULL, 1000000000), ('{topic}', 'both', timestamp'2222-02-02', 1)"""
    )
    drained = mq.drain_inbox()
    assert (drained.record_count, drained.rejected_count) == (3, 1)
    assert values(mq, topic) == ["now"]
    assert mq.delayed.cancel_where(topic).column("outcome").to_pylist() == ["cancelled"] * 2


@pytest.mark.extended
def test_bad_rows_are_rejected_and_the_rest_is_published(
    spark: SparkSession, mq: Connection, topic: str, wait_for_projection: Callable[[], None]
) -> None:
    mq.topics.create(topic, partitions=2)
    spark.sql(
        f"""INSERT INTO mq.inbox (topic, value, timestamp) VALUES
            ('{topic}', 'good', NULL), ('{topic}-no', 'unknown', NULL), (NULL, '{topic}-null', NULL),
            ('../{topic}', 'bad name', NULL), ('{topic}', 'early', timestamp'1950-01-01'),
            ('{topic}', 'late', timestamp'+12000-01-01'), ('{topic}', NULL, NULL),
            (repeat('x', 5000), '{topic}-long', NULL)"""
    )
    drained = mq.drain_inbox()
    assert (drained.record_count, drained.rejected_count) == (2, 6)
    assert sorted(m.value or b"" for m in mq.fetch(topic)) == [b"", b"good"]
    wait_for_projection()
    dead, messages = spark.table("mq.rejected_rows").alias("d"), spark.table("mq.messages").alias("m")
    inside = F.expr("m.file_id = d.file_id AND m.row >= d.first_row AND m.row < d.first_row + d.record_count")
    rejected = {
        (bytes(r.value).decode(), r.source, r.error)
        for r in messages.join(dead, inside).select("value", "source", "error").collect()
    }
    assert {
        ("unknown", f"{topic}-no", "UNKNOWN_TOPIC_OR_PARTITION"),
        (f"{topic}-null", "inbox", "INVALID_TOPIC_EXCEPTION"),
        (f"{topic}-long", "inbox", "INVALID_TOPIC_EXCEPTION"),
        ("bad name", f"../{topic}", "INVALID_TOPIC_EXCEPTION"),
        ("early", topic, "INVALID_TIMESTAMP"),
        ("late", topic, "INVALID_TIMESTAMP"),
    } <= rejected


CHANGES = (
    "UPDATE mq.inbox SET value = binary('x')",
    "DELETE FROM mq.inbox",
    "TRUNCATE TABLE mq.inbox",
    "INSERT OVERWRITE mq.inbox (topic, value) VALUES ('{topic}', 'x')",
    "MERGE INTO mq.inbox i USING (SELECT 1) ON true WHEN MATCHED THEN UPDATE SET value = binary('x') "
    "WHEN NOT MATCHED THEN INSERT (topic, value) VALUES ('{topic}', binary('x'))",
)


@pytest.mark.extended
def test_inbox_takes_new_rows_only(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=1)
    insert(spark, topic, "a", "b")
    for change in CHANGES:
        with pytest.raises(Exception, match="CANNOT_MODIFY_APPEND_ONLY"):
            spark.sql(change.format(topic=topic))
    spark.sql(
        f"MERGE INTO mq.inbox i USING (SELECT binary('c') AS v) ON i.value = v "
        f"WHEN NOT MATCHED THEN INSERT (topic, value) VALUES ('{topic}', v)"
    )
    spark.sql("OPTIMIZE mq.inbox")
    mq.drain_inbox()
    assert values(mq, topic) == ["a", "b", "c"]


@pytest.mark.extended
def test_large_drains_go_in_batches(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=2)
    for value in ("a", "b", "c"):
        insert(spark, topic, value)
    step = mq.state().step
    assert inbox(mq, spark, max_batch_bytes=1).drain().record_count == 3
    assert mq.state().step >= step + 3
    assert values(mq, topic) == ["a", "b", "c"]


@pytest.mark.extended
def test_two_drains_at_once_publish_once(
    spark: SparkSession, mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.topics.create(topic, partitions=2)
    insert(spark, topic, "a")
    slow = inbox(mq, spark)
    publish = slow._publish

    def publish_after_another(batch, table_id):  # type: ignore[no-untyped-def]
        if batch.after == first:
            insert(spark, topic, "b")
            assert mq.drain_inbox().record_count == 2
            insert(spark, topic, "c")
        return publish(batch, table_id)

    first = slow._drained_version(mq.namespace.store.open(INBOX).table_id)
    monkeypatch.setattr(slow, "_publish", publish_after_another)
    slow.drain()
    mq.drain_inbox()
    assert values(mq, topic) == ["a", "b", "c"]


@pytest.mark.extended
def test_the_log_of_the_inbox_stays_short(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=1)
    handle = mq.namespace.store.open(INBOX)
    interval = mq.namespace.config.number("checkpoint.interval")
    for _ in range(interval):
        rows = INBOX.table([INBOX.row(topic=topic, value=b"v")])
        handle.append_at(handle.version, rows)
    assert mq.drain_inbox().record_count == interval
    assert handle.log.checkpointed_version() == handle.version
    insert(spark, topic, "after the checkpoint")
    assert mq.drain_inbox().record_count == 1
    assert mq.fetch(topic).record_count == interval + 1


def test_drain_of_a_connection_without_spark_is_refused(path: Path, mq: Connection) -> None:
    with lakemq.connect(str(path)) as plain, pytest.raises(IllegalState, match="spark="):
        plain.drain_inbox()


@pytest.mark.parametrize(
    ("operation", "is_insertion"), [("WRITE", True), ("UPDATE", False), ("MERGE", False), ("RESTORE", False)]
)
def test_overwrite_of_an_inbox_that_took_other_changes_inserts_rows(
    tmp_path: Path, operation: str, is_insertion: bool
) -> None:
    """The inbox of a namespace that was made by an earlier version may have such commits."""
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": operation}}, {"remove": {"path": "old.parquet"}}]
    actions.append({"add": {"path": "new.parquet", "size": 7}})
    log = tmp_path / "inbox" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    insertion = read_insertion(LocalFiles(str(tmp_path)), INBOX, 0)
    assert insertion.files == (("inbox/new.parquet",) if is_insertion else ())
