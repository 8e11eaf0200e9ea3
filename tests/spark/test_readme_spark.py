"""The Spark code and the SQL of README run unchanged after its Python example."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from unit.pages import read_blocks


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The database that the examples make. No other test uses it."""
    monkeypatch.chdir(tmp_path)
    spark.sql("DROP DATABASE IF EXISTS shop CASCADE")
    yield "shop"
    spark.sql("USE default")
    spark.sql("DROP DATABASE IF EXISTS shop CASCADE")


def test_the_spark_example_and_the_sql_run(spark: SparkSession, database: str) -> None:
    python, _, in_spark = read_blocks("README.md", "python")
    output = io.StringIO()
    with redirect_stdout(output):
        names: dict[str, object] = {}
        exec(compile(python, "README.md", "exec"), names)
        exec(compile(in_spark, "README.md", "exec"), names)
    counts = [int(count) for count in re.findall(r"^\|\s+\d+\|\s*(\d+)\|$", output.getvalue(), re.MULTILINE)]
    assert sum(counts) == 101_000

    spark.sql(f"USE {database}")
    rows = spark.sql(read_blocks("README.md", "sql")[0]).collect()
    # 100,000 + 1,000 orders of 7 customers in turn
    assert [(row.customer, row.orders) for row in rows] == [(f"customer-{n}", 14_286 + 143) for n in range(5)]
    newest = [int(row.newest_order.removeprefix("order ")) for row in rows]
    assert all(order > 99_990 and order % 7 == n for n, order in enumerate(newest))
