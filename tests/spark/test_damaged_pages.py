"""A bit that flips in a page of a data file: Spark and the executors of the format refuse it, as every reader does."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakemq

pytestmark = pytest.mark.slow


@pytest.mark.extended
def test_spark_verifies_the_checksums_of_pages(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "damaged_pages"
    with lakemq.connect(path, create=True, spark=spark, config={"inline.max.bytes": 0}) as mq, mq.serving():
        mq.topics.create("t", 1)
        mq.publish("t", pa.table({"value": [f"message {n}" for n in range(500)]}))
        (file,) = (path / "messages").glob("*.parquet")
        footer = pq.read_metadata(file).row_group(0)
        (column,) = (c for c in map(footer.column, range(footer.num_columns)) if c.path_in_schema == "value")
        content = bytearray(file.read_bytes())
        content[content.rindex(b"message", 0, column.data_page_offset + column.total_compressed_size)] ^= 1
        file.write_bytes(content)
        with pytest.raises((PySparkException, Py4JJavaError), match=rf"FAILED_READ_FILE.*{file.stem}"):
            mq.fetch("t").to_spark().collect()
        with pytest.raises(PySparkException, match=f"{file.stem} is damaged.*CRC"):
            spark.read.format("lakemq").option("path", str(path)).option("subscribe", "t").load().collect()
    spark.sql("USE default")
    spark.sql("DROP DATABASE damaged_pages CASCADE")
