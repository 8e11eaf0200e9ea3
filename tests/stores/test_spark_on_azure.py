"""Spark reads and writes a namespace in Azure through Hadoop's connector, in a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import azurite
import pytest
from azurite import AzureServer

from lakemq.jobs.azure_jars import AZURE_JARS

TIMEOUT_S = 400
MESSAGES = 1_000

PROGRAM = """
import json, sys
import lakemq, pyarrow as pa
from lakemq.spark import spark_session

path, options, settings, messages = json.load(sys.stdin)
spark = spark_session(master="local[2]", extra=settings)
with lakemq.connect(path, storage_options=options, spark=spark, create=True) as mq:
    with mq.serving():
        mq.topics.create("orders", partitions=3)
        mq.publish("orders", pa.table({"value": [str(number) for number in range(messages)]}))
        # more than a small step holds, so it goes to a data file
        mq.publish("orders", pa.table({"value": ["x" * 10_000] * messages}))
        rows = mq.fetch("orders").to_spark()
        found = [row.value for row in rows.select("value").collect()]
        plan = rows._jdf.queryExecution().toString()

        # the checkpoint and the inbox are written by the connector
        mq.topics.create("copied", partitions=1)
        store = {"path": path, **{f"storage.{key}": value for key, value in options.items()}}
        stream = spark.readStream.format("lakemq").options(**store, subscribe="orders")
        stream = stream.option("startingOffsets", "earliest").load().where("length(value) < 10").select("value")
        writer = stream.writeStream.format("lakemq").options(**store, topic="copied")
        writer = writer.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()
        copied = sorted(int(message.value) for message in mq.fetch("copied"))
        spark.sql("INSERT INTO mq.inbox (topic, value) SELECT 'copied', cast('inserted' AS binary) FROM range(10)")
        drained = mq.drain_inbox().record_count
    # the projections are complete when serving has ended
    table = spark.read.format("delta").load(f"{path}/segments")
    print(json.dumps({
        "numbers": sorted(int(value) for value in found if len(value) < 10),
        "large": sum(len(value) == 10_000 for value in found),
        "copied": copied,
        "drained": drained,
        "segments": table.count(),
        "from": sorted({file.split(":")[0] for file in table.inputFiles()}),
        "shown": plan + str(spark.sparkContext.getConf().getAll()),
    }))
"""


@pytest.mark.skipif(azurite.VARIABLE not in os.environ, reason="runs on Azurite, with make test-stores")
def test_spark_reads_and_writes_in_azure(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Publish, read, stream and insert, in a process of its own. Neither plan nor settings show the secret."""
    azure: AzureServer = request.getfixturevalue("azure")
    path = azure.spark_path(f"{uuid.uuid4().hex}/mq")
    settings = azure.spark_settings | {"spark.jars": ",".join(map(str, AZURE_JARS.resolve()))}
    output, log = tmp_path / "output", tmp_path / "log"
    # a pipe would stay open until the JVM has ended, half a minute after the program
    with output.open("w") as stdout, log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps([path, azure.options, settings, MESSAGES]),
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, log.read_text(errors="replace")[-8_000:]
    answer = json.loads(output.read_text().splitlines()[-1])
    assert answer["numbers"] == list(range(MESSAGES))
    assert answer["large"] == MESSAGES
    assert answer["copied"] == list(range(MESSAGES))
    assert answer["drained"] == 10
    assert answer["segments"] > 0
    assert answer["from"] == [path.split(":")[0]]
    assert azure.secret not in answer["shown"]
