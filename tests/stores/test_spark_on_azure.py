"""Spark reads a namespace in Azure through Hadoop's connector, in a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import azurite
import pytest
from azurite import ACCOUNT, CONTAINER, AzureServer

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
    # the projections are complete when serving has ended
    table = spark.read.format("delta").load(f"{path}/segments")
    print(json.dumps({
        "numbers": sorted(int(value) for value in found if len(value) < 10),
        "large": sum(len(value) == 10_000 for value in found),
        "segments": table.count(),
        "from": sorted({file.split(":")[0] for file in table.inputFiles()}),
        "shown": plan + str(spark.sparkContext.getConf().getAll()),
    }))
"""


def check_spark_reads(server: AzureServer, path: str, settings: dict[str, str], folder: Path) -> None:
    """Publish and read messages, and a table, in a process of its own. Neither plan nor settings show the secret."""
    settings = {f"spark.hadoop.{key}": value for key, value in settings.items()}
    settings["spark.jars"] = ",".join(map(str, AZURE_JARS.resolve()))
    output, log = folder / "output", folder / "log"
    # a pipe would stay open until the JVM has ended, half a minute after the program
    with output.open("w") as stdout, log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps([path, server.options, settings, MESSAGES]),
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
    assert answer["segments"] > 0
    assert answer["from"] == [path.split(":")[0]]
    assert server.secret not in answer["shown"]


@pytest.mark.skipif(azurite.VARIABLE not in os.environ, reason="runs on Azurite, with make test-stores")
def test_spark_reads_messages_and_tables_in_azure(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    azure: AzureServer = request.getfixturevalue("azure")
    host = f"{ACCOUNT}.dfs.core.windows.net"
    # what an emulator needs, and an account of Azure does not
    settings = {
        # Azurite has no DFS endpoint. With an account that has none either, the connector takes that of blobs.
        f"fs.azure.fns.account.service.type.{host}": "BLOB",
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.abfs.endpoint": azure.url.removeprefix("http://"),
        "fs.azure.always.use.https": "false",
        # the default one cannot do without TLS
        "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    path = f"abfs://{CONTAINER}@{host}/{uuid.uuid4().hex}/mq"
    check_spark_reads(azure, path, settings, tmp_path)
