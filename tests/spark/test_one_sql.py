"""Spark and DuckDB give the same answers to the same SQL: every query of README and docs, and some over JSON."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.views import VIEWS

pytestmark = pytest.mark.extended

CHECKOUT = Path(__file__).parents[2]
NAME = "one_sql"
NOW = ("open_ms", "age_ms")
"""Columns with the time since an event."""


def queries_of_the_docs() -> list[str]:
    """Return all queries in blocks of SQL and in calls of the command, but no definitions of views.

    Those of the database `shop`, which a page makes in Spark, run in test_topic_views.py.
    """
    queries: list[str] = []
    for page in [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]:
        if page.name == "tables.md":
            continue
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```sql\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        queries += [
            statement for block in blocks for statement in block.split(";") if statement.strip().startswith("SELECT")
        ]
        queries += re.findall(r'^lakemq .* sql "(SELECT .*)"$', text, re.MULTILINE)
    return [query for query in queries if "FROM shop" not in query]


JSON = [
    "SELECT offset, value FROM log WHERE topic = 'orders' AND offset = 1000",
    "SELECT offset, get_json_object(CAST(value AS STRING), '$.items[0].name') AS item FROM log WHERE topic = 'orders'",
    "SELECT get_json_object(CAST(value AS STRING), '$.user') AS user, sum(CAST(get_json_object(CAST(value AS STRING),"
    " '$.amount') AS DOUBLE)) AS amount, max_by(offset, offset) AS last FROM log_committed WHERE topic = 'orders'"
    " GROUP BY 1 ORDER BY user",
    "SELECT string(key) AS k, count_if(offset > 500), approx_count_distinct(partition) FROM log GROUP BY key",
    "SELECT partition, offset, lag(offset) OVER (PARTITION BY topic, partition ORDER BY offset) AS before FROM log",
    'SELECT CAST(value AS STRING) AS v FROM log WHERE CAST(value AS STRING) RLIKE \'"user":"ann"\' ORDER BY v LIMIT 7',
    "SELECT topic, date_trunc('HOUR', timestamp) AS hour, count(*) FROM log GROUP BY ALL",
    "SELECT CAST(timestamp AS STRING) AS at, date_format(timestamp, 'yyyy-MM-dd') AS day FROM log WHERE topic = 'odd'",
    "SELECT h.key, CAST(h.value AS STRING) AS v FROM log LATERAL VIEW explode(headers) t AS h",
    "SELECT headers[0].key AS first, size(headers) AS n FROM log WHERE headers IS NOT NULL",
    "SELECT key, CAST(key AS STRING) AS k FROM log WHERE topic = 'odd' ORDER BY k",
    "SELECT get_json_object(CAST(value AS STRING), '$.a') AS a FROM log WHERE topic = 'odd'",
    "WITH big AS (SELECT * FROM log WHERE offset >= 1000) SELECT `topic`, count(*) AS n FROM big GROUP BY topic",
    "SELECT offset, offset / 4 AS part, offset div 4 AS whole, offset % 4 AS rest FROM log WHERE offset < 9",
    "SELECT group, topic, partition, lag FROM consumer_lag ORDER BY group, topic, partition",
    "SELECT length(CAST(value AS STRING)) AS n, CAST(concat(CAST(value AS STRING), '!') AS STRING) AS more FROM log",
    "SELECT CAST(offset / 8 AS INT) AS whole, substring(CAST(key AS STRING), 0, 2) AS first,"
    " dayofweek(timestamp) AS day, weekday(timestamp) AS weekday, unix_millis(timestamp) AS ms,"
    " CAST(timestamp AS BIGINT) AS s, date_add(CAST(timestamp AS DATE), 1) AS later FROM log WHERE offset < 99",
    "SELECT partition, percentile(offset, 0.5) AS middle FROM log WHERE topic = 'orders' GROUP BY partition",
    "SELECT 'it''s' AS text, \"double\" AS other, 1.5 AS n, TRUE AS yes, NULL AS nothing",
    " UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in (*(spec.name for spec in TABLES), *VIEWS)
    ),
]


@pytest.fixture(scope="module")
def one_sql(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A projected namespace without a sequencer: JSON payloads, transactions, groups, delays, dead letters."""
    path = tmp_path_factory.mktemp("sql") / NAME
    with lakemq.connect(path, create=True) as mq, mq.serving():
        for topic in ("orders", "clicks", "odd", "flights"):
            mq.topics.create(topic, 2)
        users = ["ann", "bob", "cleo", "bot"]
        orders = [
            {"user": users[i % 4], "amount": i / 4, "items": [{"name": f'a "quoted" tea \\ {i}', "n": i}]}
            for i in range(4000)
        ]
        keys = [users[i % 4] for i in range(4000)]
        mq.publish("orders", pa.table({"key": keys, "value": [json.dumps(order) for order in orders]}))
        pages = [{"user": users[i % 4], "page": f"/tea/{i % 3}"} for i in range(60)]
        with mq.producer() as producer:
            for page in pages:
                producer.send("clicks", json.dumps(page), key=page["user"], headers=[("h", b"x"), ("empty", None)])
            for odd in ("{", "[1]", '{"a": null}', '{"a": {"b": [1, "x"]}}', '{"a": "Ä"}', ""):
                producer.send("odd", odd, key=odd, timestamp_ms=1_700_000_000_500)
        for commits in (True, False):
            with mq.producer(transactional_id="teller") as producer:
                producer.begin_transaction()
                producer.send("orders", json.dumps({"user": "tx"}), key="tx")
                producer.flush()
                producer.commit_transaction() if commits else producer.abort_transaction()
        mq.publish("flights", pa.table({"value": ["late"] * 3}), delay_ms=3_600_000)
        mq.publish("flights", pa.table({"value": ["refused"], "partition": [7]}))
        with mq.consumer("map", topics=["clicks"], auto_offset_reset="earliest") as consumer:
            for message in consumer.poll(timeout_ms=5_000):
                consumer.ack(message)
            consumer.flush()
    with lakemq.connect(path, spark=spark) as connection:
        yield connection
    spark.sql("USE default")
    spark.sql(f"DROP DATABASE IF EXISTS {NAME} CASCADE")


def plain(value: Any) -> Any:
    """Return the value in a form that is the same for both engines."""
    if isinstance(value, Row):
        return {name: plain(field) for name, field in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return float(value) if isinstance(value, Decimal | int) and not isinstance(value, bool) else value


def answer(columns: list[str], rows: list[Any]) -> tuple[list[str], list[str]]:
    positions = [nth for nth, name in enumerate(columns) if name not in NOW]
    return [columns[nth] for nth in positions], sorted(repr([plain(row[nth]) for nth in positions]) for row in rows)


@pytest.mark.parametrize("query", [*queries_of_the_docs(), *JSON])
def test_spark_and_duckdb_give_the_same_rows(spark: SparkSession, one_sql: Connection, query: str) -> None:
    query = query.replace("mq.log_committed", "log_committed")
    spark.sql(f"USE {NAME}")
    in_spark = spark.sql(query)
    expected = answer(in_spark.columns, [tuple(row) for row in in_spark.collect()])
    columns, rows = run_query(one_sql.namespace, query, dialect=SqlDialect.spark)
    names, answers = answer(columns, list(rows))
    assert answers == expected[1]
    named_columns = [
        column for column in expected[0] if "(" not in column
    ]  # columns without a name get one of each engine's own
    assert [name for name in names if name in named_columns] == named_columns


def test_docs_have_queries_to_compare() -> None:
    assert len(queries_of_the_docs()) >= 15
