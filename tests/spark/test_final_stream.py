"""A native stream of `final_messages` into a Delta table has each message once, whoever is killed."""

import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from faults.examples import CONFIG, Program, Shop
from faults.processes import until

import lakemq

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(600)]

QUERY = """
import sys
from lakemq.spark import spark_session
path, folder = sys.argv[1:]
spark = spark_session(master="local[2]")
messages = spark.readStream.format("delta").load(f"{path}/final_messages").where("topic = 'orders'")
writer = messages.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
query = writer.start(f"{folder}/copy")
print("jvm", spark._jvm.java.lang.ProcessHandle.current().pid(), "ready", flush=True)
query.awaitTermination()
"""


def test_native_stream_has_each_message_once_though_query_and_sequencer_are_killed(tmp_path: Path) -> None:
    shop, copy, published = Shop(tmp_path), str(tmp_path / "copy"), Counter[str]()
    (tmp_path / "lakemq.yaml").write_text(
        f"{CONFIG}final.interval.ms: 300\nproject.interval.ms: 100\ncompact.min.files: 2\n"
    )

    def start_query() -> Program:
        return shop._start(["-c", QUERY, shop.path, str(tmp_path)], "query")

    def kill_query(query: Program) -> None:
        """Kill the JVM in which the query runs, and the program that waits for it."""
        query.wait_for("ready")
        os.kill(int(query.text().split("jvm ")[1].split()[0]), signal.SIGKILL)
        query.stop()

    def publish(name: str) -> None:
        values = [f"{name}-{number}" for number in range(100)]
        published.update(values)
        with lakemq.connect(shop.path) as mq:
            mq.publish("orders", pa.table({"key": values, "value": values}))

    def read_copy() -> Counter[str]:
        if not DeltaTable.is_deltatable(copy):
            return Counter()
        column = DeltaTable(copy).to_pyarrow_table(columns=["value"]).column("value")
        return Counter(value.decode() for value in column.to_pylist())

    try:
        leader, query = shop.serve(), start_query()
        for name in ("a", "b"):
            publish(name)
        until(lambda: read_copy().total() >= 100, "copied messages")
        publish("c")
        kill_query(query)
        start_query()
        for name in ("d", "e"):
            publish(name)
            leader.kill()
            leader = shop.serve()
        until(lambda: read_copy().total() >= published.total(), "all messages copied")
        assert read_copy() == published
    finally:
        shop.stop()
