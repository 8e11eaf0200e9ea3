"""Spark on a namespace in an S3 server: `format("lakemq")` and DataFrames, on executors that share no disk with it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from s3_server import BUCKET, SECRET_KEY, S3Server

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.session import spark_session
from lakemq.spark import register

TOPIC = "orders"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session(app_name="lakemq tests", master="local[2,3]")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def path() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/mq"


@pytest.fixture
def mq(s3: S3Server, path: str) -> Iterator[Connection]:
    with lakemq.connect(path, storage_options=s3.options, create=True) as connection, connection.serving():
        connection.topics.create(TOPIC, partitions=3)
        yield connection


def options_of(s3: S3Server, path: str) -> dict[str, str]:
    return {"path": path, **{f"storage.{key}": value for key, value in s3.options.items()}}


def test_rows_are_written_and_read_and_plans_show_no_credentials(
    spark: SparkSession, s3: S3Server, mq: Connection, path: str
) -> None:
    rows = spark.range(1_000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format("lakemq").options(**options_of(s3, path), topic=TOPIC).mode("append").save()
    assert mq.fetch(TOPIC).to_arrow().num_rows == 1_000
    frame = spark.read.format("lakemq").options(**options_of(s3, path), subscribe=TOPIC).load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(1_000))
    plan = frame._jdf.queryExecution().toString()
    assert "lakemq" in plan
    assert SECRET_KEY not in plan


def test_a_stream_is_published_once_and_read(
    spark: SparkSession, s3: S3Server, mq: Connection, path: str, tmp_path: Path
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "rows.json").write_text("".join(f'{{"value": "{number}"}}\n' for number in range(100)))
    for _ in range(2):
        rows = spark.readStream.schema("value STRING").json(str(tmp_path / "landing"))
        writer = rows.writeStream.format("lakemq").options(**options_of(s3, path), topic=TOPIC)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    assert sorted(int(message.value) for message in mq.fetch(TOPIC)) == list(range(100))
