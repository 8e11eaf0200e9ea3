"""SQL shows the same transactions as a fetch and the other calls, row by row."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from unit.served import CONFIG, read_committed_offset, served, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.producer import TransactionalProducer
from lakemq.engine.client.sql.query import run_query

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TOPICS = {"a": 1, "b": 3, "purged": 2, "gone": 1}
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class MixedHistory(NamedTuple):
    """A namespace with a mixed history, all of it projected, without a sequencer."""

    mq: Connection
    writing: TransactionalProducer


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedHistory]:
    """A history of commits, aborts and plain messages, with deleted records, and two transactions that stay open."""
    chance = random.Random(11)
    with served(tmp_path_factory.mktemp("views")) as first:
        for topic, partitions in TOPICS.items():
            first.topics.create(topic, partitions)
        producers = [first.producer(f"id-{i}", linger_ms=0) for i in range(3)]
        for number in range(60):
            _do_something(chance, first, producers, number)
        for producer in producers:
            if producer._transactions.is_open:
                producer.commit_transaction()
        first.topics.delete_records("purged", {0: 3, 1: 1})
        first.consumer("other", assign=["gone"]).commit({("gone", 0): 0})
        first.topics.delete("gone")
        other = lakemq.connect(first.namespace.path, config=CONFIG)
        writing = [other.producer(f"open-{i}", linger_ms=0) for i in range(2)]
        for topic, producer in zip(("a", "b"), writing, strict=True):
            producer.begin_transaction()
            producer.send(topic, "open", partition=0)
            if topic == "a":
                producer.send_offsets_to_transaction({("a", 0): 5}, "group")
            producer.flush()
        first.publish("a", pa.table({"value": ["behind it"]}))
        first.publish("b", pa.table({"value": ["behind it", "beside it"], "partition": [0, 1]}))
        with first.producer("offsets") as producer:
            producer.begin_transaction()
            producer.send_offsets_to_transaction({("a", 0): 2, ("b", 2): 1}, "group", metadata="noted")
            producer.commit_transaction()
        first.consumer("eager", assign=["a"]).commit({("a", 0): first.end_offsets("a", "read_uncommitted")[0]})
        first.consumer("other", assign=["b"]).commit({("b", 1): 0})
        first.consumer("other", assign=["b"]).commit({("b", 1): 2})
    yield MixedHistory(other, writing[0])
    # the sequencer has ended
    for producer in writing:
        producer._transactions.release_id()
    other.close()


def _do_something(chance: random.Random, mq: Connection, producers: list[TransactionalProducer], number: int) -> None:
    producer, topic = chance.choice(producers), chance.choice(sorted(TOPICS))
    if chance.random() < 0.3:
        mq.publish(topic, pa.table({"value": [f"plain{number}"], "key": [f"k{number % 5}"]}))
    elif not producer._transactions.is_open:
        producer.begin_transaction()
    elif chance.random() < 0.5:
        for i in range(chance.randint(1, 4)):
            producer.send(topic, f"{number}.{i}", key=f"k{i}", headers=[("h", b"x")], timestamp_ms=number * 1000)
        producer.flush()
    else:
        producer.commit_transaction() if chance.random() < 0.6 else producer.abort_transaction()


def sql(mq: Connection, query: str) -> list[dict[str, Any]]:
    columns, rows = run_query(mq.namespace, query)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("view", "isolation"), [("log", "read_uncommitted"), ("log_committed", "read_committed")])
def test_log_views_show_what_a_fetch_returns(history: MixedHistory, view: str, isolation: Any):
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    rows = sql(history.mq, f'SELECT {columns} FROM {view} ORDER BY topic, partition, "offset"')
    expected = [
        {name: row[name] for name in COLUMNS}
        for topic in ("a", "b", "purged")
        for row in history.mq.fetch(topic, isolation=isolation).to_arrow().to_pylist()
    ]
    assert rows == expected
    shown_values = {row["value"] for row in rows if row["value"] in (b"open", b"behind it", b"beside it")}
    assert shown_values == ({b"beside it"} if view == "log_committed" else {b"open", b"behind it", b"beside it"})


def test_open_transactions_shows_what_transactions_all_returns(history: MixedHistory):
    rows = sql(history.mq, "SELECT * FROM open_transactions ORDER BY transactional_id")
    infos = history.mq.transactions.all(("Ongoing",))
    assert [row["transactional_id"] for row in rows] == ["open-0", "open-1"]
    for row, info in zip(rows, infos, strict=True):
        assert (row["producer_id"], row["producer_epoch"]) == (info.producer_id, info.producer_epoch)
        assert (row["state"], row["timeout_ms"]) == (info.state, info.timeout_ms)
        assert (row["topics"], row["groups"]) == (list(info.partitions), list(info.groups))
        assert round(row["started_at"].timestamp() * 1000) == info.started_at_ms
    assert [row["topics"] for row in rows] == [["a-0"], ["b-0"]]


def test_transaction_history_shows_each_transition(history: MixedHistory):
    rows = sql(
        history.mq,
        """SELECT state, reason, producer_epoch FROM transaction_history WHERE transactional_id = 'offsets'
           ORDER BY step, position""",
    )
    assert [row["state"] for row in rows] == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert [row["producer_epoch"] for row in rows] == [0, 0, 0, 1]
    assert rows[-1]["reason"] == "producer"


def test_consumer_lag_counts_up_to_the_high_watermark(history: MixedHistory):
    rows = sql(history.mq, 'SELECT * FROM consumer_lag ORDER BY "group", topic, partition')
    end = history.mq.end_offsets("a", "read_uncommitted")[0]
    assert [(r["group"], r["topic"], r["partition"], r["committed_offset"], r["metadata"]) for r in rows] == [
        ("eager", "a", 0, end, None),
        ("group", "a", 0, 2, "noted"),
        ("group", "b", 2, 1, "noted"),
        ("other", "b", 1, 2, None),
    ]
    for row in rows:
        stable, high = (
            history.mq.end_offsets(row["topic"], i)[row["partition"]] for i in ("read_committed", "read_uncommitted")
        )
        assert (row["last_stable_offset"], row["high_watermark"]) == (stable, high)
        assert row["lag"] == high - row["committed_offset"]


def test_views_follow_a_commit(history: MixedHistory):
    """The test is the last one, because it ends the transactions that the others look at."""
    with lakemq.connect(history.mq.namespace.path, config={**CONFIG, "project.interval.ms": 50}) as mq:
        mq.serving()
        history.writing.commit_transaction()
        assert read_committed_offset(mq, "group", "a") == 5
        until(lambda: [r["transactional_id"] for r in sql(mq, "FROM open_transactions")] == ["open-1"])
        values = [
            row["value"] for row in sql(mq, "SELECT value FROM log_committed WHERE topic = 'a' ORDER BY \"offset\"")
        ]
        assert values == [m.value for m in mq.fetch("a")]
        assert values[-2:] == [b"open", b"behind it"]
