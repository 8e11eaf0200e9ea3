"""What a streaming source has is published once, whatever becomes of the checkpoint, the run or the batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.errors import IllegalState, InvalidRecord, InvalidRequest, MessageTooLarge, UnknownTopicOrPartition


class Source:
    """A folder of JSON lines, and a stream of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._count = spark, folder, 0
        folder.mkdir()

    def add(self, *values: str) -> None:
        lines = [json.dumps({"k": f"key-{value}", "v": value}) for value in values]
        # named and moved, so that no listing sees a part of a file
        draft = self._folder / f".{self._count}"
        draft.write_text("\n".join(lines))
        draft.rename(self._folder / f"{self._count}.json")
        self._count += 1

    def stream(self, **options: object) -> DataFrame:
        return self._spark.readStream.schema("k string, v string").options(**options).json(str(self._folder))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def values(mq: Connection, topic: str) -> list[str]:
    return sorted(m.value.decode() for m in mq.fetch(topic) if m.value is not None)


def test_a_stream_is_published_once_with_and_without_its_checkpoint(
    mq: Connection, topic: str, source: Source, tmp_path: Path
) -> None:
    mq.topics.create(topic, partitions=3)
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> tuple[int, int]:
        done = mq.publish_stream(topic, source.stream(), query=topic, checkpoint=checkpoint, key="k", value="v")
        return done.batch_count, done.record_count

    source.add("a", "b")
    assert run() == (1, 2)
    assert run() == (0, 0)
    source.add("c")
    assert run() == (1, 1)
    shutil.rmtree(checkpoint)
    assert run() == (0, 0)
    source.add("d")
    assert run() == (1, 1)
    shutil.rmtree(checkpoint)
    source.add("e")
    assert run() == (1, 1)
    assert values(mq, topic) == ["a", "b", "c", "d", "e"]


def test_a_checkpoint_need_not_be_named(mq: Connection, topic: str, source: Source) -> None:
    mq.topics.create(topic, partitions=3)
    for value in ("a", "b"):
        source.add(value)
        assert mq.publish_stream(topic, source.stream(), query=topic, key="k", value="v").record_count == 1
    assert values(mq, topic) == ["a", "b"]


def test_a_stream_goes_on_over_many_batches(mq: Connection, topic: str, source: Source, path: Path) -> None:
    mq.topics.create(topic, partitions=1)
    for number in range(12):  # Structured Streaming merges its list of files at the tenth
        source.add(str(number))
    stream = source.stream(maxFilesPerTrigger=1)
    assert mq.publish_stream(topic, stream, query=topic, key="k", value="v").batch_count == 12
    source.add("more")
    assert mq.publish_stream(topic, stream, query=topic, key="k", value="v").record_count == 1
    assert mq.fetch(topic).record_count == 13


@pytest.mark.extended
def test_two_runs_that_claim_one_batch_cannot_both_have_it(
    mq: Connection, topic: str, source: Source, tmp_path: Path
) -> None:
    mq.topics.create(topic, partitions=1)
    source.add("a")
    old, new = tmp_path / "old", tmp_path / "new"
    mq.publish_stream(topic, source.stream(), query=topic, checkpoint=str(old), value="v")
    shutil.copytree(old, new)
    source.add("b")
    mq.publish_stream(topic, source.stream(), query=topic, checkpoint=str(new), value="v")
    source.add("c")
    with pytest.raises(IllegalState, match="other rows"):
        mq.publish_stream(topic, source.stream(), query=topic, checkpoint=str(old), value="v")
    assert mq.publish_stream(topic, source.stream(), query=topic, checkpoint=str(new), value="v").record_count == 1
    assert values(mq, topic) == ["a", "b", "c"]


@pytest.mark.extended
def test_notes_that_are_gone_altogether_end_the_stream_rather_than_skip_rows(
    mq: Connection, topic: str, source: Source, path: Path, projected: Callable[[], None]
) -> None:
    mq.topics.create(topic, partitions=1)
    source.add("a")
    mq.publish_stream(topic, source.stream(), query=topic, value="v")
    projected()
    shutil.rmtree(path / "streams" / topic)
    source.add("b")
    with pytest.raises(IllegalState, match="another name"):
        mq.publish_stream(topic, source.stream(), query=topic, value="v")
    assert values(mq, topic) == ["a"]


@pytest.mark.extended
def test_foreach_batch_with_publish_alone_follows_the_rule_of_delta(
    mq: Connection, topic: str, source: Source, tmp_path: Path
) -> None:
    mq.topics.create(topic, partitions=2)

    def run(checkpoint: str) -> None:
        def publish(batch: DataFrame, batch_id: int) -> None:
            mq.publish(topic, batch, key="k", value="v", txn_app_id="plain", txn_version=batch_id)

        writer = source.stream(maxFilesPerTrigger=1).writeStream.foreachBatch(publish)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    source.add("a")
    source.add("b")
    run("first")
    run("first")
    source.add("c")
    run("second")  # one file a batch: the same files make the same batches, only the new one is published
    assert values(mq, topic) == ["a", "b", "c"]


def test_an_error_of_a_batch_comes_out_as_it_is_and_the_batch_is_tried_again(
    mq: Connection, topic: str, source: Source
) -> None:
    mq.topics.create(topic, partitions=1, config={"max.message.bytes": 10})
    source.add("a", "far too long a value")
    with pytest.raises(MessageTooLarge):
        mq.publish_stream(topic, source.stream(), query=topic, value="v", on_error="fail")
    assert mq.fetch(topic).record_count == 0
    done = mq.publish_stream(topic, source.stream(), query=topic, value="v")
    assert (done.batch_count, done.record_count, done.refused_count) == (1, 1, 1)


def test_what_cannot_be_published_is_refused_before_the_stream_starts(
    spark: SparkSession, mq: Connection, topic: str, source: Source, path: Path
) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        mq.publish_stream(topic, source.stream(), query=topic, value="v")
    mq.topics.create(topic, partitions=1)
    with pytest.raises(InvalidRecord, match="nope"):
        mq.publish_stream(topic, source.stream(), query=topic, value="nope")
    with pytest.raises(InvalidRequest, match=r"mq\.publish"):
        mq.publish_stream(topic, spark.range(1).selectExpr("'v' AS value"), query=topic)
    for name in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(InvalidRequest, match="name"):
            mq.publish_stream(topic, source.stream(), query=name, value="v")
    assert not (path / "streams" / topic).exists()


def test_a_stream_with_state_is_refused(mq: Connection, topic: str, source: Source) -> None:
    mq.topics.create(topic, partitions=1)
    source.add("a", "a")
    once = (
        source.stream()
        .withColumn("at", F.current_timestamp())
        .withWatermark("at", "1 hour")
        .dropDuplicates(["v", "at"])
    )
    with pytest.raises(IllegalState, match="state"):
        mq.publish_stream(topic, once, query=topic, value="v")
