"""A view for each topic with a schema: the messages of `final_messages`, and their fields as Spark parses them.

And the programs of the page that begins with both.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
import pytest
from finals import are_all_final
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from unit.pages import read_blocks
from unit.served import until

import lakemq
from lakemq.errors import NamespaceError

DDL = (
    "id BIGINT NOT NULL, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(5,2), raw BINARY, "
    "tags ARRAY<STRING>, m MAP<STRING,INT>, `it's``` STRUCT<ok: BOOLEAN>"
)
VALUES = [
    '{"id": 1, "at": "2024-02-29T12:00:00.5+01:00", "local": "2024-02-29T12:00:00", "day": "2024-02-29", "price": 9.5, '
    '"raw": "AP8=", "tags": ["x", null], "m": {"k": 1}, "it\'s`": {"ok": true}, "more": 1}',
    '{"id": 2}',
]
JSON = {"type": "object", "properties": {"page": {"type": "string"}, "seen": {"type": "integer"}}}
ANY = {"type": "object", "properties": {"any": {"type": ["string", "object"]}}}
AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_topic_with_a_schema_has_a_view_with_its_fields(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, config = str(tmp_path / "typed"), {"project.interval.ms": 50, "final.interval.ms": 200}
    with lakemq.connect(path, spark=spark, create=True, config=config) as mq, mq.serving():
        mq.topics.create("plain")
        mq.topics.create("a.b-C", config={"schema": DDL})
        mq.topics.create("Clicks", config={"schema": JSON, "schema.type": "json"})
        mq.topics.create("clicks", config={"schema": JSON, "schema.type": "json"})
        mq.topics.create("any", config={"schema": ANY, "schema.type": "json"})
        mq.topics.create("avro", config={"schema": AVRO, "schema.type": "avro"})
        mq.publish("a.b-C", pa.table({"value": VALUES}))
        for topic in ("Clicks", "clicks"):
            mq.publish(topic, pa.table({"value": [f'{{"page": "{topic}", "seen": 3}}']}))
        with caplog.at_level(logging.WARNING):
            views = mq.put_topic_views()
        capitals = f"clicks_{mq.topics.describe('Clicks').topic_id}"
        assert views == {
            name: f"typed_topics.{view}"
            for name, view in {"a.b-C": "a_b_c", "clicks": "clicks", "Clicks": capitals}.items()
        }
        assert "Topic avro has no view: Spark does not parse Avro" in caplog.text
        assert "Topic any has no view: its schema allows" in caplog.text
        until(lambda: are_all_final(mq))

        rows = spark.table("typed_topics.a_b_c").orderBy("offset").select("data").toArrow().column("data")
        assert rows.to_pylist() == mq.fetch("a.b-C", parse=True).to_arrow().column("parsed").to_pylist()
        counted = spark.sql(f"SELECT topic, data.page, data.seen FROM typed_topics.{capitals}").collect()
        assert [tuple(row) for row in counted] == [("Clicks", "Clicks", 3)]

        mq.topics.delete("Clicks")
        assert mq.put_topic_views().keys() == {"a.b-C", "clicks"}
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.table(f"typed_topics.{capitals}")
        spark.sql("CREATE DATABASE other_topics")
        other = lakemq.connect(str(tmp_path / "other"), spark=spark, create=True)
        with other, pytest.raises(NamespaceError, match="already has a database other_topics"):
            other.put_topic_views()
    with lakemq.connect(str(tmp_path / "late"), spark=spark, create=True) as late, late.serving():
        late.topics.create("a", config={"schema": DDL})
        late.publish("a", pa.table({"value": VALUES[:1]}))
        with caplog.at_level(logging.WARNING):
            late.put_topic_views()
        assert "The view of topic a is empty" in caplog.text


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away the databases that the page makes. README makes one of them, too."""
    monkeypatch.chdir(tmp_path)
    for database in ("shop", "shop_topics"):
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")
    yield
    for database in ("shop", "shop_topics"):
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


@pytest.mark.extended
@pytest.mark.usefixtures("shop")
def test_first_programs_of_the_spark_page_run(spark: SparkSession) -> None:
    publish, stream, make_views, read_table = read_blocks("spark.md", "python")[:4]
    count, total = read_blocks("spark.md", "sql")[:2]
    names: dict[str, object] = {}
    exec(compile(publish, "spark.md", "exec"), names)
    mq = names["mq"]
    assert isinstance(mq, lakemq.Connection)
    with mq:
        until(lambda: are_all_final(mq))
        exec(compile(stream, "spark.md", "exec"), names)
        assert spark.read.format("delta").load("data/copy").count() == 1000
        for program, shown in zip((make_views, read_table), read_blocks("spark.md", "text")[:2], strict=True):
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(program, "spark.md", "exec"), names)
            assert output.getvalue() == shown
        days_ago = time.time() - 6 * 86_400
        os.utime(f"data/shop/final_messages/_delta_log/{0:020d}.json", (days_ago, days_ago))
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        assert spark.sql("SELECT count(*) FROM shop.final_messages VERSION AS OF 0").collect()[0][0] == 0
        for change in ("delete", "vacuum"):
            with pytest.raises(Exception, match="DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"):
                getattr(names["table"], change)()
        answers = [spark.sql(text.rstrip().removesuffix(";")).collect() for text in (count, total)]
        assert [rows[0][0] for rows in answers] == [1000, sum(i / 2 for i in range(990, 1000))]
