"""Schemas with Spark: DataFrames and streams are checked, and fetches and the format give typed columns."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.errors import SchemaMismatch

DDL = "id BIGINT NOT NULL, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(5,2), tags ARRAY<STRING>, m MAP<STRING,INT>"
A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": "x"}
AVRO, WIDER = ({"type": "record", "name": "R", "fields": fields} for fields in ([A], [A, B]))


def orders(spark: SparkSession) -> DataFrame:
    """Twenty rows as Spark writes them in JSON, and two that do not fit."""
    row = F.struct(
        "id",
        F.timestamp_seconds("id").alias("at"),
        F.lit("2024-02-29T12:00:00").alias("local"),
        (F.col("id") / 4).cast("decimal(5,2)").alias("price"),
        F.array(F.lit("x")).alias("tags"),
        F.create_map(F.lit("k"), F.lit(1)).alias("m"),
    )
    bad = spark.createDataFrame([('{"id": "secret"}',), ("{",)], "value string")
    return spark.range(20).select(F.to_json(row).alias("value")).union(bad)


def test_a_dataframe_is_checked_and_comes_back_with_types(mq: Connection, spark: SparkSession, topic: str) -> None:
    mq.topics.create(topic, 2, {"schema": DDL})
    with pytest.raises(SchemaMismatch, match="Nothing was published"):
        mq.publish(topic, orders(spark), on_error="fail")
    done = mq.publish(topic, orders(spark))
    assert (done.record_count, done.rejected_count) == (20, 2)
    frame = mq.fetch(topic, parse=True).to_spark()
    assert frame.schema["parsed"].dataType.simpleString() == (
        "struct<id:bigint,at:timestamp,local:timestamp_ntz,price:decimal(5,2),tags:array<string>,m:map<string,int>>"
    )
    parsed = mq.fetch(topic, parse=True).to_arrow().column("parsed").to_pylist()
    rows = frame.select("parsed.*").orderBy("id").collect()
    assert [row["price"] for row in rows] == [p["price"] for p in sorted(parsed, key=lambda p: p["id"])]
    assert (rows[3]["id"], rows[3]["tags"], rows[3]["m"]) == (3, ["x"], {"k": 1})


@pytest.mark.extended
def test_the_format_checks_what_it_writes_and_types_what_it_reads(
    mq: Connection, spark: SparkSession, path: Path, topic: str
) -> None:
    mq.topics.create(topic, 2, {"schema": DDL})
    write = orders(spark).write.format("lakemq").mode("append").option("path", str(path)).option("topic", topic)
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH"):
        write.save()
    write.option("onError", "reject").save()
    read = spark.read.format("lakemq").option("path", str(path)).option("subscribe", topic)
    rows = read.option("parseValues", "true").load().select("parsed.id", "parsed.at").collect()
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert all(row["at"].timestamp() == row["id"] for row in rows)


@pytest.mark.extended
def test_a_stream_keeps_its_version_and_reads_later_ones(
    mq: Connection, spark: SparkSession, path: Path, topic: str, tmp_path: Path
) -> None:
    mq.topics.create(topic, 1, {"schema": AVRO, "schema.type": "avro"})
    mq.publish(topic, pa.table({"value": mq.topics.schema(topic).encode([{"a": 1}])}))
    source = spark.readStream.format("lakemq").option("path", str(path)).option("subscribe", topic)
    typed = source.option("startingOffsets", "earliest").option("parseValues", "true").load().select("parsed.*")
    query = typed.writeStream.format("memory").queryName(topic).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        mq.topics.alter(topic, {"schema": WIDER})
        mq.publish(topic, pa.table({"value": mq.topics.schema(topic).encode([{"a": 2, "b": "y"}])}))
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.table(topic).orderBy("a").collect()
    spark.catalog.dropTempView(topic)
    assert [row.asDict() for row in rows] == [{"a": 1}, {"a": 2}]
    assert mq.fetch(topic, parse=True).to_arrow().column("parsed").to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.extended
def test_values_of_topics_with_several_schemas_are_not_parsed_together(
    mq: Connection, spark: SparkSession, path: Path, topic: str
) -> None:
    for name, schema in ((topic, "a INT"), (f"{topic}b", "b INT"), (f"{topic}c", "")):
        mq.topics.create(name, config={"schema": schema})
    for names, error in ((f"{topic},{topic}b", "2 schemas"), (f"{topic}c", "has no schema")):
        read = spark.read.format("lakemq").option("path", str(path)).option("subscribe", names)
        with pytest.raises(PySparkException, match=error):
            read.option("parseValues", "true").load()
