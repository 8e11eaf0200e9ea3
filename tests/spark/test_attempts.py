"""A task that fails after it wrote leaves a stray file, and no message twice."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.publish import spark as publish_spark
from lakemq.engine.client.publish.executor import WriteMessages
from lakemq.engine.namespace.namespace import open_namespace

pytestmark = pytest.mark.extended


def test_tasks_that_fail_once_publish_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(WriteMessages):
        """A task that dies after it wrote its file, like one whose executor is lost before the driver hears of it."""

        def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            written = list(super().__call__(batches))
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise OSError("the first attempt of every task fails")
            yield from written

    monkeypatch.setattr(publish_spark, "WriteMessages", Fails)
    with Connection(open_namespace(str(tmp_path / "mq"), create=True), spark) as mq, mq.serving():
        mq.topics.create("t", partitions=3)
        df = spark.range(0, 4000, 1, 2).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
        published = mq.publish("t", df)
        values = sorted(int(message.value or b"") for message in mq.fetch("t"))
    assert sum(unit.record_count for unit in published.units) == 4000
    assert values == list(range(4000))
    files = list((tmp_path / "mq" / "messages").glob("*.parquet"))
    assert len(files) == 4  # every task left a file
