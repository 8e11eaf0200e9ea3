"""Fetch in Spark: the data files of the plan, joined with its segments. No other file is opened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.tables.specs.messages import MESSAGES, file_stem
from lakemq.tables.storage.delta.catalog import columns_ddl

from ....namespace.data_file import file_name
from ....namespace.namespace import Namespace
from ....protocol.errors import FileTruncated
from ...schemas.ddl import to_ddl
from ...schemas.schema_rule import SchemaRule
from ...schemas.value_schema import PARSED, compile_schema
from ..planning.plan import FetchPlan
from .arrow import fetch_arrow
from .dead_letter_headers import OFFSET, build_cause_headers
from .files import verify_files
from .parsed import AppendParsed

FETCHED_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)

_SEGMENT = [
    "file_id",
    "file_partition",
    "partition",
    "base_offset",
    "first_row",
    "record_count",
    "append_time_ms",
    "source_offset",
    "ttl_from_ms",
    "ttl_ms",
]


def fetch_spark(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    """Return the messages of the plan with the columns of Spark's Kafka source (FETCHED_DDL).

    Raises:
        FileTruncated: a file is gone, or is not the one that was written.
    """
    if plan.segments.num_rows == 0:
        return spark.createDataFrame([], FETCHED_DDL)
    # Rows whose file is not written yet come from the journal, through Arrow. Spark reads all others from files.
    unwritten = [file_id for file_id in plan.journal_parts if namespace.files.size(file_name(file_id)) is None]
    if unwritten:
        is_unwritten = pc.is_in(plan.segments.column("file_id"), pa.array(unwritten, pa.int64()))
        from_journal = replace(plan, segments=plan.segments.filter(is_unwritten))
        from_files = replace(plan, segments=plan.segments.filter(pc.invert(is_unwritten)))
        messages = fetch_arrow(namespace.files, from_journal)
        # `take` copies, because Spark does not take slices of list columns.
        rows = spark.createDataFrame(messages.take(np.arange(messages.num_rows)), FETCHED_DDL)
        return rows.unionByName(_read_files(spark, namespace, from_files)) if from_files.segments.num_rows else rows
    return _read_files(spark, namespace, plan)


def parse_in_spark(messages: DataFrame, rule: SchemaRule) -> DataFrame:
    """Return the messages with a column `parsed`, which executors compute as `append_parsed` does."""
    ddl = to_ddl(compile_schema(rule).parsed_type)
    return messages.mapInArrow(AppendParsed(rule), f"{FETCHED_DDL}, {PARSED} {ddl}")


def _read_files(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    needed = dict(zip(*(plan.segments.column(name).to_pylist() for name in ("file_id", "footer_hash")), strict=True))
    for file_id, flaw in verify_files(namespace.files, needed).items():
        raise FileTruncated(f"Data file {file_stem(file_id)} is {flaw}.")
    paths = [namespace.files.uri(file_name(file_id)) for file_id in sorted(needed)]
    try:
        messages = spark.read.schema(columns_ddl(MESSAGES)).parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        path = (error.getMessageParameters() or {}).get("path")
        raise FileTruncated("A data file is gone.", found=path) from None
    planned = plan.segments.select(_SEGMENT).append_column("cause", build_cause_headers(plan.segments))
    segments = spark.createDataFrame(planned.combine_chunks())
    return visible_messages(messages, segments, plan.topic, plan.now_ms if plan.expirable.num_rows else None)


def visible_messages(messages: DataFrame, segments: DataFrame, topic: str, now_ms: int | None) -> DataFrame:
    """Return the rows of `messages` that lie in a segment and have not expired, with the columns of FETCHED_DDL.

    Args:
        messages: columns of MESSAGES.
        segments: columns file_id, file_partition, partition, base_offset, first_row, record_count, append_time_ms,
            ttl_from_ms, ttl_ms; of dead letters also source_offset, and cause: the headers that say why they are.
        topic: name of the topic.
        now_ms: the time that decides what has expired; None: no message has.
    """
    in_segment = (
        # One bigint as the key of the join, as in the views. Spark makes every equality part of the key, so the file
        # is compared with `between`.
        (F.col("m.file_id") + F.col("m.partition") == F.col("s.file_id") + F.col("s.file_partition"))
        & F.col("m.file_id").between(F.col("s.file_id"), F.col("s.file_id"))
        & (F.col("m.row") >= F.col("s.first_row"))
        & (F.col("m.row") < F.col("s.first_row") + F.col("s.record_count"))
    )
    if now_ms is not None:
        ends_ms = F.col("s.ttl_from_ms") + F.coalesce(F.col("m.ttl_ms"), F.col("s.ttl_ms"))
        in_segment &= F.coalesce(ends_ms > now_ms, F.lit(True))
    appended = F.timestamp_millis(F.col("s.append_time_ms"))
    source_offset = F.col("s.source_offset") + F.col("m.row") - F.col("s.first_row")
    offset_header = F.struct(F.lit(OFFSET).alias("key"), source_offset.cast("string").cast("binary").alias("value"))
    return (
        messages.alias("m")
        .join(F.broadcast(segments.alias("s")), in_segment)
        .select(
            F.col("m.key"),
            F.col("m.value"),
            F.lit(topic).alias("topic"),
            F.col("s.partition"),
            (F.col("s.base_offset") + F.col("m.row") - F.col("s.first_row")).alias("offset"),
            F.coalesce(appended, F.col("m.timestamp")).alias("timestamp"),
            F.when(appended.isNull(), 0).otherwise(1).alias("timestampType"),
            F.when(F.col("s.cause").isNull(), F.col("m.headers"))
            .otherwise(F.concat(F.coalesce(F.col("m.headers"), F.array()), F.col("s.cause"), F.array(offset_header)))
            .alias("headers"),
        )
    )
