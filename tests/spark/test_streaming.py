"""Rows of a streaming source are published once, by the sink of the format and by a publish in `foreachBatch`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from targets import extended_but

from lakemq.engine.client.connection import Connection


class Source:
    """A folder of JSON lines, and a stream of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._count = spark, folder, 0
        folder.mkdir()

    def add(self, *values: str) -> None:
        lines = [json.dumps({"key": f"key-{value}", "value": value}) for value in values]
        # named and moved, so that no listing sees a part of a file
        draft = self._folder / f".{self._count}"
        draft.write_text("\n".join(lines))
        draft.rename(self._folder / f"{self._count}.json")
        self._count += 1

    def stream(self) -> DataFrame:
        return self._spark.readStream.schema("key string, value string").json(str(self._folder))


Door = Callable[[Connection, str, DataFrame, Path], None]
"""Publishes all rows that a stream has now to a topic, with a checkpoint."""


def publish_by_sink(mq: Connection, topic: str, stream: DataFrame, checkpoint: Path) -> None:
    writer = stream.writeStream.format("lakemq").option("path", mq.namespace.path).option("topic", topic)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def publish_by_function(mq: Connection, topic: str, stream: DataFrame, checkpoint: Path) -> None:
    def publish(batch: DataFrame, number: int) -> None:
        mq.publish(topic, batch, txn_app_id=topic, txn_version=number)

    writer = stream.writeStream.foreachBatch(publish).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


DOORS = [pytest.param(publish_by_sink, id="sink"), pytest.param(publish_by_function, id="foreachBatch")]


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def values(mq: Connection, topic: str) -> list[str]:
    return sorted(m.value.decode() for m in mq.fetch(topic) if m.value is not None)


def forget_last_batch(checkpoint: Path) -> None:
    """Leave the checkpoint as a driver leaves it that is killed before it notes that the last batch is done."""
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.parametrize("publish", extended_but(DOORS[:1], DOORS))
def test_a_stream_is_published_once_though_its_last_batch_is_repeated(
    mq: Connection, topic: str, source: Source, tmp_path: Path, publish: Door
) -> None:
    mq.topics.create(topic, partitions=3)
    checkpoint = tmp_path / "checkpoint"
    source.add("a", "b")
    publish(mq, topic, source.stream(), checkpoint)
    publish(mq, topic, source.stream(), checkpoint)
    assert values(mq, topic) == ["a", "b"]
    forget_last_batch(checkpoint)
    source.add("c")
    publish(mq, topic, source.stream(), checkpoint)
    assert values(mq, topic) == ["a", "b", "c"]
