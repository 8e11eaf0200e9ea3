"""Fetch in Spark: the files of the plan, and no other. Files of `messages` are joined with its segments.

Rows of docs/architecture.md: fetch 5.
"""

from dataclasses import replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.tables.specs.messages import FINAL_FILES, FINAL_MESSAGES, MESSAGES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.catalog import columns_ddl

from ...namespace.data_file import file_name
from ...namespace.namespace import Namespace
from ...protocol.errors import FileTruncated
from ..schemas import SchemaRule
from ..schemas.ddl import to_ddl
from ..schemas.topic_schema import PARSED, compile_schema
from .arrow import FETCHED, AppendParsed, fetch_arrow
from .plan import FetchPlan
from .rows import OFFSET, build_cause_headers, read_footers

FETCHED_DDL = columns_ddl(FETCHED)

_VERIFYING = {"parquet.page.verify-checksum.enabled": "true"}
"""Option of Parquet's reader in the JVM, which ignores the checksums of pages otherwise."""

_BLOCK_ROWS = 1 << 14
"""Rows of a block. A publish from Spark writes the rows of a partition in runs that lie further apart, so a block of a
file has one of them, and places are distinct: Spark then looks each row up without a loop over candidates. A billion
rows have 61,000 blocks, which is little to send to executors."""

_IN_SEGMENT = f"""
    m.file_id + m.partition + (m.row & -{_BLOCK_ROWS}) = s.place
    AND m.file_id BETWEEN s.file_id AND s.file_id AND m.row >= s.first_row AND m.row < s.end_row"""
"""One bigint is the key, as in the views. Spark makes every equality part of the key, so BETWEEN compares the file."""

_ALIVE = " AND coalesce(coalesce(m.ttl_ms, s.ttl_ms) > s.age_ms, true)"

_COLUMNS = [
    "m.key",
    "m.value",
    "s.partition",
    "m.row + s.row_to_offset AS `offset`",
    "coalesce(timestamp_millis(s.append_time_ms), m.timestamp) AS timestamp",
    "if(s.append_time_ms IS NULL, 0, 1) AS timestampType",
    f"""if(s.cause IS NULL, m.headers, concat(coalesce(m.headers, array()), s.cause, array(named_struct(
        'key', '{OFFSET}', 'value', CAST(CAST(m.row + s.row_to_source AS STRING) AS BINARY))))) AS headers""",
]

_FINAL_COLUMNS = [
    "m.partition",
    "m.offset",
    "m.timestamp",
    "CAST(m.timestamp_type = 'LogAppendTime' AS INT) AS timestampType",
    "m.headers",
]


def fetch_spark(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    """Return the messages of the plan with the columns of Spark's Kafka source (FETCHED_DDL).

    Raises:
        FileTruncated: a file is gone, or is not the one that was written.
    """
    if plan.segments.num_rows == 0:
        return spark.createDataFrame([], FETCHED_DDL)
    # Rows whose file is not written yet come from steps, through Arrow. Spark reads all others from files.
    unwritten = [file_id for file_id in plan.step_rows if namespace.files.size(file_name(file_id)) is None]
    file_ids = plan.segments.column("file_id")
    is_unwritten = pc.is_in(file_ids, pa.array(unwritten, pa.int64()))
    is_final = pc.greater_equal(file_ids, FINAL_FILES)
    readers = (
        (is_final, _read_final_files),
        (pc.invert(pc.or_(is_final, is_unwritten)), _read_files),
        (is_unwritten, _read_step_rows),
    )
    parts = (
        read(spark, namespace, replace(plan, segments=plan.segments.filter(mask)))
        for mask, read in readers
        if pc.any(mask).as_py()
    )
    return reduce(DataFrame.unionByName, parts)


def _read_step_rows(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    messages = fetch_arrow(namespace.files, plan)
    # `take` copies, because Spark does not take slices of list columns.
    return spark.createDataFrame(messages.take(np.arange(messages.num_rows)), FETCHED_DDL)


def _read_final_files(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    """Return the messages of a plan that reads `final_messages`: all that its files have in a range per partition."""
    footers = read_footers(namespace.files, plan)
    uris = [namespace.files.uri(file_name(file_id, plan.topic)) for file_id in footers]
    messages = _scan(spark, uris, FINAL_MESSAGES).alias("m")
    if plan.record_count < sum(footer.num_rows for footer in footers.values()):
        bounds = plan.segments.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
        bounds = bounds.rename_columns(["partition", "first", "last"])
        ranges = F.broadcast(spark.createDataFrame(bounds).alias("r"))
        first, last = pc.min(bounds.column("first")), pc.max(bounds.column("last"))
        in_range = F.expr("m.partition = r.partition AND m.offset BETWEEN r.first AND r.last")
        messages = messages.where(f"offset BETWEEN {first} AND {last}").join(ranges, in_range)
    if plan.expirable.num_rows:
        messages = messages.where("coalesce(m.ttl_ms, 0) >= 0")
        if plan.now_ms is not None:
            messages = messages.where(f"coalesce(m.expires_at > timestamp_millis({plan.now_ms}), true)")
    return messages.selectExpr("m.key", "m.value", f"'{plan.topic}' AS topic", *_FINAL_COLUMNS)


def parse_in_spark(messages: DataFrame, rule: SchemaRule) -> DataFrame:
    """Return the messages with a column `parsed`, which executors compute as `append_parsed` does."""
    ddl = to_ddl(compile_schema(rule).parsed_type)
    return messages.mapInArrow(AppendParsed(rule), f"{FETCHED_DDL}, {PARSED} {ddl}")


def _read_files(spark: SparkSession, namespace: Namespace, plan: FetchPlan) -> DataFrame:
    uris = [namespace.files.uri(file_name(file_id)) for file_id in sorted(read_footers(namespace.files, plan))]
    messages = _scan(spark, uris, MESSAGES)
    segments = spark.createDataFrame(cut_into_blocks(plan))
    return _join_segments(messages, segments, plan.topic, can_expire=plan.expirable.num_rows > 0)


def _scan(spark: SparkSession, paths: list[str], table: TableSpec) -> DataFrame:
    """Return all rows of some files of a table. Raises FileTruncated: one is gone."""
    try:
        return spark.read.options(**_VERIFYING).schema(columns_ddl(table.stored_schema)).parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        path = (error.getMessageParameters() or {}).get("path")
        raise FileTruncated("A data file is gone.", found=path) from None


def cut_into_blocks(plan: FetchPlan) -> pa.Table:
    """Return the segments of the plan, each once for every block of rows in which it has rows.

    The column `place` is the key that joins rows. A row has the place of the segment to which it belongs.
    """
    segments = plan.segments
    first_row = segments.column("first_row").to_numpy()
    end_row = first_row + segments.column("record_count").to_numpy()
    first_block = first_row // _BLOCK_ROWS
    block_count = (end_row - 1) // _BLOCK_ROWS - first_block + 1
    index = np.repeat(np.arange(segments.num_rows), block_count)
    block = np.arange(len(index)) - np.repeat(np.cumsum(block_count) - block_count - first_block, block_count)
    file_key = segments.column("file_id").to_numpy() + segments.column("file_partition").to_numpy()
    columns = {
        "file_id": segments.column("file_id"),
        "partition": segments.column("partition"),
        "first_row": pa.array(first_row),
        "end_row": pa.array(end_row),
        "row_to_offset": pc.subtract(segments.column("base_offset"), first_row),
        "row_to_source": pc.subtract(segments.column("source_offset"), first_row),
        "append_time_ms": segments.column("append_time_ms"),
        "ttl_ms": segments.column("ttl_ms"),
        "age_ms": pc.subtract(pa.scalar(plan.now_ms, pa.int64()), segments.column("ttl_from_ms")),
        "cause": build_cause_headers(segments),
    }
    cut = pa.table(columns).take(pa.array(index)).combine_chunks()
    return cut.append_column("place", pa.array(file_key[index] + block * _BLOCK_ROWS))


def _join_segments(messages: DataFrame, segments: DataFrame, topic: str, can_expire: bool) -> DataFrame:
    """Return the rows of `messages` that lie in a segment and have not expired, with the columns of FETCHED_DDL.

    The join is written in SQL, which the JVM gets in few calls. Functions of `pyspark.sql.functions` make 800 calls,
    which take 0.1 s. No number of the plan is in the text, so the code that Spark compiles for a fetch serves the next.

    Args:
        messages: columns of MESSAGES.
        segments: columns of `cut_into_blocks`.
        topic: name of the topic. No name has characters that mean something in a literal.
        can_expire: whether messages may have expired.
    """
    in_segment = F.expr(_IN_SEGMENT + _ALIVE if can_expire else _IN_SEGMENT)
    joined = messages.alias("m").join(F.broadcast(segments.alias("s")), in_segment)
    return joined.selectExpr(*_COLUMNS[:2], f"'{topic}' AS topic", *_COLUMNS[2:])
