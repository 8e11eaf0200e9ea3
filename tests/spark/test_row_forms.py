"""Columns of a DataFrame are one more form of rows: tasks store what the table of cases says."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from row_cases import CASES, DESTINATION, NOW_MS, read_rows, stored_row

from lakemq.engine.client.publish.executor import RANGES, Destination, WriteMessages
from lakemq.engine.client.publish.message_rows import select_message_rows
from lakemq.engine.namespace.data_file import file_name
from lakemq.tables.storage.delta.catalog import columns_ddl

_DDL = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp_us bigint, partition bigint, "
    "deliver_at_us bigint, delay_ms bigint, ttl_ms bigint"
)


@pytest.mark.extended
def test_tasks_store_row_forms_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """All cases are rows of one DataFrame. Each is stored once per copy, and counts in the copy of its case."""
    (tmp_path / "messages").mkdir()
    names = ["key", "value", "headers", "timestamp", "partition", "deliver_at", "delay_ms", "ttl_ms"]
    rows = spark.createDataFrame([tuple(case.row.get(name) for name in names) for case in CASES], _DDL).coalesce(1)
    df = rows.selectExpr(
        *("key", "value", "headers", "partition", "delay_ms", "ttl_ms"),
        *("timestamp_micros(timestamp_us) timestamp", "timestamp_micros(deliver_at_us) deliver_at"),
    )
    copies = tuple(dict.fromkeys(case.copy for case in CASES))
    write = WriteMessages(str(tmp_path), {}, (Destination(DESTINATION, copies),), NOW_MS)
    selected = select_message_rows(df, dict.fromkeys(names), None)
    written = selected.mapInArrow(write, columns_ddl(RANGES)).collect()
    (file_id,) = {run.file_id for run in written}
    stored = read_rows(pq.read_table(tmp_path / file_name(file_id)))
    for number, copy in enumerate(copies):
        runs = [run for run in written if run.copy == number]
        in_copy = [row for run in runs for row in stored[run.first_row : run.first_row + run.record_count]]
        assert len(in_copy) == len(CASES)
        for run in runs:
            here = stored[run.first_row : run.first_row + run.record_count]
            assert {row["partition"] for row in here} == {run.partition}
        for case in CASES:
            if case.copy == copy:
                in_copy.remove(stored_row(case))  # ValueError: no row is as the table says
