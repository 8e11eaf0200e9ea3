"""The views of transactions and of lag, on a namespace that a process left with a transaction open."""

from __future__ import annotations

import time

import duckdb
import pyarrow as pa
import pytest

import lakemq
from lakemq.jobs.sql import connected


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    path = str(tmp_path_factory.mktemp("views") / "mq")
    gone = lakemq.connect(path, create=True)  # never closed: what it has open stays so
    with lakemq.connect(path) as mq, mq.serving():
        for topic in ("kept", "deleted"):
            mq.topics.create(topic)
            mq.publish(topic, pa.table({"value": ["a", "b", "c"]}))
        with mq.consumer("reading", topics=["kept", "deleted"]) as consumer:
            consumer.commit({("kept", 0): 1, ("deleted", 0): 1})
            consumer.commit({("kept", 0): 2}, metadata="so far")
        mq.topics.delete("deleted")
        producer = gone.producer("gone")
        producer.begin_transaction()
        producer.send("kept", value="open")
        producer.flush()
        with mq.consumer("eager", topics=["kept"], isolation="read_uncommitted") as consumer:
            consumer.commit(consumer.poll())
        with mq.transaction("done", batch_id=3) as txn:
            txn.publish("kept", pa.table({"value": ["d"]}))
            txn.send_offsets({("kept", 0): 0}, "slow")
    time.sleep(0.2)
    return connected(mq.namespace)


def test_lag_is_up_to_what_is_stable_and_never_negative(sql: duckdb.DuckDBPyConnection) -> None:
    columns = "c.group, topic, committed_offset, last_stable_offset, high_watermark, lag, metadata"
    assert sql.execute(f"SELECT {columns} FROM consumer_lag AS c ORDER BY 1").fetchall() == [
        ("eager", "kept", 4, 3, 6, 0, None),
        ("reading", "kept", 2, 3, 6, 1, "so far"),
        ("slow", "kept", 0, 3, 6, 3, None),
    ]


def test_an_open_transaction_grows_older(sql: duckdb.DuckDBPyConnection) -> None:
    ((name, open_ms, topics, groups),) = sql.execute(
        "SELECT transactional_id, open_ms, topics, o.groups FROM open_transactions AS o"
    ).fetchall()
    assert (name, topics, groups) == ("gone", ["kept-0"], [])
    assert 200 <= open_ms < 60_000


def test_history_says_how_each_one_went(sql: duckdb.DuckDBPyConnection) -> None:
    found = sql.execute(
        "SELECT state, reason, batch_id, topics, h.groups, open_ms >= 0 FROM transaction_history AS h"
        " WHERE transactional_id = 'done' ORDER BY step, position"
    ).fetchall()
    assert [(state, reason, batch_id) for state, reason, batch_id, *_ in found] == [
        ("Empty", None, None),
        ("Ongoing", None, None),
        ("Ongoing", None, None),
        ("PrepareCommit", "producer", 3),
        ("CompleteCommit", "producer", 3),
    ]
    assert found[-1][3:] == (["kept-0"], ["slow"], True)


def test_log_committed_ends_where_the_open_transaction_begins(sql: duckdb.DuckDBPyConnection) -> None:
    def offsets(view: str) -> list[tuple[int]]:
        return sql.execute(f'SELECT "offset" FROM {view} ORDER BY 1').fetchall()

    assert offsets("log_committed") == [(0,), (1,), (2,)]
    assert offsets("log") == [(0,), (1,), (2,), (3,), (4,)]
