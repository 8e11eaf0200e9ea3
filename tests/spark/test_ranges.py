"""docs/sql.md: the format as a table reads only the files that hold a range. The views of the log read all files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.data_file import file_name

pytestmark = pytest.mark.extended

PAGE = (Path(__file__).parents[2] / "docs/sql.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## A range of offsets") : PAGE.index("## As of a step")]
NAME, FILES, ROWS = "ranges", 8, 500


@pytest.fixture(scope="module")
def ranges(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A topic of two partitions in eight files. All are damaged except the third and fourth, with offsets from 1000
    on.
    """
    path = tmp_path_factory.mktemp("ranges") / NAME
    with lakemq.connect(path, create=True, config={"inline.max.bytes": 0}) as mq, mq.serving():
        mq.topics.create("clicks", 2)
        for _ in range(FILES):
            mq.publish("clicks", pa.table({"value": ["v"] * 2 * ROWS, "partition": [0, 1] * ROWS}))
        plan = mq.fetch("clicks", start=1000, end=2000).plan.segments
        whole = {Path(file_name(file_id)).name for file_id in plan.column("file_id").to_pylist()}
    assert len(whole) == 2
    for file in (path / "messages").glob("*.parquet"):
        if file.name not in whole:
            file.write_bytes(bytes(file.stat().st_size))
    with lakemq.connect(path, spark=spark) as mq:
        yield mq
    spark.catalog.dropTempView("part")
    spark.sql("USE default")
    spark.sql(f"DROP DATABASE {NAME} CASCADE")


def test_options_of_the_format_read_only_the_files_of_the_range(spark: SparkSession, ranges: Connection) -> None:
    (statement,) = re.findall(r"^(CREATE OR REPLACE TEMPORARY VIEW part .*?);$", SECTION, re.DOTALL | re.MULTILINE)
    spark.sql(statement.replace("data/mq", ranges.namespace.path).replace("2001", "2000"))
    rows = spark.sql("SELECT partition, min(offset), max(offset), count(*) FROM part GROUP BY partition").collect()
    assert [tuple(row) for row in rows] == [(1, 1000, 1999, 1000)]


def test_spark_views_of_the_log_read_all_files(spark: SparkSession, ranges: Connection) -> None:
    query = f"SELECT value FROM {NAME}.log WHERE topic = 'clicks' AND partition = 1 AND offset BETWEEN 1000 AND 1999"
    read = [file for file in spark.sql(query).inputFiles() if "/messages/" in file]
    assert len(read) == FILES
