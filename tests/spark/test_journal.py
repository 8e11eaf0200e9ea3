"""Spark reads the journal, whose commits no engine writes, as it reads any table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakemq
from lakemq.tables.specs.journal import JOURNAL

CONFIG = {"checkpoint.interval": 7, "compact.min.files": 5, "project.interval.ms": 0}


def test_spark_reads_entries_and_the_checkpoints_over_them(spark: SparkSession, tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "ns"), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("t", partitions=2)
            for number in range(30):
                mq.publish("t", pa.table({"value": [f"{number}"]}))
        handle = mq.namespace.store.open(JOURNAL)
        expected = handle.read().sort_by([("step", "ascending"), ("position", "ascending")])
        log = tmp_path / "ns" / "journal" / "_delta_log"
        assert any(log.glob("*.checkpoint*.parquet")), "no checkpoint was made"
        assert any("remove" in entry.read_text() for entry in log.glob("*.json")), "nothing was merged"
        journal = spark.read.format("delta").load(mq.namespace.store.uri(JOURNAL))
        # of statistics alone, where they are exact
        assert journal.agg(F.min("step"), F.max("step"), F.count("*")).first() == (
            expected["step"][0].as_py(),
            expected["step"][-1].as_py(),
            expected.num_rows,
        )
        seen = journal.orderBy("step", "position").toArrow()
        assert seen.select(expected.column_names).cast(expected.schema).equals(expected)
        assert journal.where("kind = 'produced'").selectExpr("sum(size(segments))").first()[0] == 30
        half = handle.version - 3
        before = spark.read.format("delta").option("versionAsOf", half).load(mq.namespace.store.uri(JOURNAL))
        assert before.count() < expected.num_rows
