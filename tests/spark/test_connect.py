"""Spark Connect: a client without a JVM publishes, fetches, queries and streams through a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300)]

CLIENT = """
import sys
import lakemq
from lakemq.jobs import microbatch
from lakemq.spark import spark_session

path = sys.argv[1]
spark = spark_session()
config = {"project.interval.ms": 50, "final.interval.ms": 200}
with lakemq.connect(path, spark=spark, create=True, config=config) as mq, mq.serving():
    mq.topics.create("clicks", 2, {"schema": "id BIGINT"})
    mq.topics.create("copy")
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "to_json(struct(id)) AS value")
    assert mq.publish("clicks", rows).record_count == 100
    assert mq.fetch("clicks").to_spark().count() == 100

    read = {"path": path, "subscribe": "clicks"}
    assert spark.read.format("lakemq").options(**read).load().count() == 100
    stream = spark.readStream.format("lakemq").options(**read, startingOffsets="earliest", **{"kafka.group.id": "g"})
    writer = stream.load().select("key", "value").writeStream.format("lakemq").queryName("copy")
    writer = writer.options(path=path, topic="copy", checkpointLocation=sys.argv[2])
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(mq.fetch("copy")) == 100
    with mq.consumer("h", topics=["copy"], auto_offset_reset="earliest") as consumer:
        assert consumer.poll(timeout_ms=10_000).to_spark().count() == 100

    mq.sql("SELECT 1", wait_ms=10_000)
    assert spark.sql("SELECT count(*) FROM connected.log_committed").first()[0] == 200
    assert spark.sql("SELECT count(*) FROM connected_group_state()").first()[0] == 2
    assert mq.put_topic_views() == {"clicks": "connected_topics.clicks"}
    spark.sql("SELECT data.id FROM connected_topics.clicks").collect()
    assert mq.drain_inbox().record_count == 0
    print("done")
sys.exit(microbatch.main(["--path", path]))
"""


def test_client_of_spark_connect_publishes_fetches_and_streams(remote: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLIENT, str(tmp_path / "connected"), str(tmp_path / "checkpoint")]
    environment = {**os.environ, "SPARK_REMOTE": remote}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    lines = ended.stdout.splitlines()
    assert lines[:1] == ["done"], ended.stderr[-2000:]
    refusal = json.loads(lines[-1])
    assert "Found 'Spark Connect'" in refusal["message"], refusal
    assert ended.returncode == refusal["exit_code"] != 0
