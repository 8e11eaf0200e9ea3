"""SQL shows the same transactions as a fetch and the other calls, row by row."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from unit.served import CONFIG, served

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.producer import TransactionalProducer
from lakemq.engine.client.sql.query import run_query

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TOPICS = {"a": 1, "b": 3, "purged": 2, "gone": 1}
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A history of commits, aborts and plain messages, with deleted records, and two transactions that stay open.

    All of it is projected, and no sequencer runs any more.
    """
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
        first.consumer("eager", assign=["a"]).commit({("a", 0): 1}, "noted")
    yield other
    for producer in writing:  # the sequencer has ended
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
def test_log_views_show_what_a_fetch_returns(mq: Connection, view: str, isolation: Any):
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    rows = sql(mq, f'SELECT {columns} FROM {view} ORDER BY topic, partition, "offset"')
    expected = [
        {name: row[name] for name in COLUMNS}
        for topic in ("a", "b", "purged")
        for row in mq.fetch(topic, isolation=isolation).to_arrow().to_pylist()
    ]
    assert rows == expected
    shown_values = {row["value"] for row in rows if row["value"] in (b"open", b"behind it", b"beside it")}
    assert shown_values == ({b"beside it"} if view == "log_committed" else {b"open", b"behind it", b"beside it"})


def test_open_transactions_shows_what_transactions_all_returns(mq: Connection):
    rows = sql(mq, "SELECT * FROM open_transactions ORDER BY transactional_id")
    infos = mq.transactions.all(("Ongoing",))
    assert [row["transactional_id"] for row in rows] == ["open-0", "open-1"]
    for row, info in zip(rows, infos, strict=True):
        assert (row["producer_id"], row["producer_epoch"]) == (info.producer_id, info.producer_epoch)
        assert (row["state"], row["timeout_ms"]) == (info.state, info.timeout_ms)
        assert (row["topics"], row["groups"]) == (list(info.partitions), list(info.groups))
        assert round(row["started_at"].timestamp() * 1000) == info.started_at_ms
    assert [row["topics"] for row in rows] == [["a-0"], ["b-0"]]


def test_consumer_lag_shows_both_ends_of_the_log(mq: Connection):
    columns = "committed_offset, metadata, last_stable_offset, high_watermark"
    (row,) = sql(mq, f"SELECT {columns} FROM consumer_lag WHERE \"group\" = 'eager'")
    stable, high = (mq.end_offsets("a", i)[0] for i in ("read_committed", "read_uncommitted"))
    assert tuple(row.values()) == (1, "noted", stable, high)
    assert stable < high
