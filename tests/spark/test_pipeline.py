"""The pipeline of `examples/`: a streaming table from a topic, a materialized view, and a sink that publishes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakemq

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parents[2] / "examples/pipeline"


@pytest.fixture
def without_tables(spark: SparkSession) -> Iterator[None]:
    """Drop the tables of the pipeline afterwards: they are in the shared session's catalog."""
    yield
    for table in ("orders", "totals"):
        spark.sql(f"DROP TABLE IF EXISTS default.{table}")


@pytest.mark.usefixtures("without_tables")
def test_pipeline_that_runs_again_publishes_each_order_once(spark: SparkSession, remote: str, tmp_path: Path) -> None:
    path, folder = str(tmp_path / "shop"), tmp_path / "pipeline"
    shutil.copytree(PIPELINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text().replace("file:///tmp/orders-pipeline", (tmp_path / "storage").as_uri())
    spec.write_text(text.replace("data/shop", path))
    # what `spark-pipelines` starts; without a JVM of its own, because a server is there
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)]
    with lakemq.connect(path, create=True) as mq, mq.serving():
        for topic in ("orders", "large_orders"):
            mq.topics.create(topic)
        for run in range(2):
            orders = [{"id": f"{run}-{n}", "customer": f"c{n % 2}", "amount": 90 + n} for n in range(20)]
            mq.publish("orders", pa.table({"value": [json.dumps(order) for order in orders]}))
            environment = {**os.environ, "SPARK_REMOTE": remote}
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
            assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
        large = sorted(json.loads(message.value)["id"] for message in mq.fetch("large_orders"))
        assert large == sorted(f"{run}-{n}" for run in range(2) for n in range(10, 20))
    totals = spark.sql("SELECT customer, amount FROM default.totals ORDER BY customer").collect()
    assert [tuple(row) for row in totals] == [("c0", 2 * sum(range(90, 110, 2))), ("c1", 2 * sum(range(91, 110, 2)))]
