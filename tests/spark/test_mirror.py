"""Moving from a real Kafka: a mirror that is killed copies all messages once, and groups continue where they were."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.commands import Process
from kafka_broker import Kafka, Record, serve_kafka

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.jars import KAFKA_JARS
from lakemq.jobs.mirror import OFFSET_HEADER
from lakemq.testing import wait_until

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven fetches Kafka"),
]

JOB_TIMEOUT_S = 300
PARTITIONS = {"orders": 4, "payments": 2, "prices": 1}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    KAFKA_JARS.resolve()
    with serve_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    """A served namespace of the test's own."""
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True, config={"final.interval.ms": 1000}) as connection, connection.serving():
        yield connection


def build_command(mq: Connection, kafka: Kafka, *more: str) -> list[str]:
    command = [sys.executable, "-m", "lakemq.jobs.mirror", "--path", mq.namespace.path, "--master", "local[2]"]
    return [*command, "--bootstrap-servers", kafka.address, "--topics", "orders|payments|prices", *more]


def start(mq: Connection, kafka: Kafka, *more: str, **environment: str) -> subprocess.Popen[str]:
    command = build_command(mq, kafka, *more)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=inherited | environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    """Wait for the end of a mirror, and return its last line; empty after a kill."""
    output, errors = process.communicate(timeout=JOB_TIMEOUT_S)
    assert process.returncode == code, errors[-5_000:] + output
    end: dict[str, Any] = json.loads(output.splitlines()[-1]) if output else {}
    return end


def pairs(topic: str, first: int, count: int) -> list[tuple[str, str | None]]:
    """Return keys and values. Each tenth value is a tombstone."""
    return [(f"k{n % 7}", None if n % 10 == 9 else f"{topic}-{n}") for n in range(first, first + count)]


def fill(kafka: Kafka) -> None:
    """Let topics begin later than at 0, and have the gaps of transactions and of compaction."""
    kafka.create_topic("orders", 3, retention_ms="-1", max_message_bytes="2000000")
    kafka.create_topic("payments", 2)
    kafka.create_topic(
        "prices",
        1,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    kafka.create_topic("else", 1)
    for partition in range(3):
        kafka.send("orders", partition, pairs("orders", 1000 * partition, 200))
    kafka.delete_records("orders", 1, 50)
    for number in range(6):
        kafka.send_in_transaction("payments", number % 2, pairs("payments", 100 * number, 30), commits=number % 3 != 1)
    for number in range(4):
        kafka.send("prices", 0, [(f"k{n % 5}", f"price {number}.{n}") for n in range(50)])
    sent = kafka.end("prices", 0)

    def has_compacted() -> bool:
        kafka.send("prices", 0, [("tick", "t")])  # the newest segment stays, and a message begins the next one
        return len(kafka.read("prices", 0)) < sent / 2

    wait_until(has_compacted, "compaction", JOB_TIMEOUT_S)


def check_copies(mq: Connection, kafka: Kafka) -> None:
    """Check that each partition has Kafka's messages, once, in order, and with Kafka's offsets."""
    for topic, count in PARTITIONS.items():
        for partition in range(count):
            copies = []
            for message in mq.fetch(topic, partitions=[partition]):
                *headers, (name, number) = message.headers
                assert name == OFFSET_HEADER
                timestamp_ms = round(message.timestamp.timestamp() * 1000)
                copies.append(Record(int(number), message.key, message.value, tuple(headers), timestamp_ms))
            expected = kafka.read(topic, partition)
            if topic == "prices":  # both sides may have compacted further
                copies, expected = (sorted({r.key: r for r in records}.values()) for records in (copies, expected))
            assert copies == expected, (topic, partition)


def read_unread(mq: Connection, group: str) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset in Kafka of all messages that a group still gets."""
    with mq.consumer(group, topics=["orders", "payments"], protocol="cooperative") as consumer:
        messages = [message for batch in consumer.until_end() for message in batch]
    return sorted((m.topic, m.partition, int(dict(m.headers)[OFFSET_HEADER])) for m in messages)


def list_uncommitted(kafka: Kafka, offsets: dict[tuple[str, int], int]) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of the messages of Kafka that a group has not committed."""
    return sorted(
        (topic, partition, record.offset)
        for topic in ("orders", "payments")
        for partition in range(PARTITIONS[topic])
        for record in kafka.read(topic, partition)
        if record.offset >= offsets.get((topic, partition), 0)
    )


def test_killed_mirror_copies_all_once_and_groups_continue_where_they_were(kafka: Kafka, mq: Connection) -> None:
    fill(kafka)
    batches = ["--max-records", "300"]
    finish(start(mq, kafka, *batches, LAKEMQ_CRASH_AT="stream.published:1"), -signal.SIGKILL)
    finish(start(mq, kafka, *batches, LAKEMQ_CRASH_AT="publish.file_written:2"), -signal.SIGKILL)
    prices = mq.topics.describe("prices").config
    assert (prices["cleanup.policy"], prices["max.compaction.lag.ms"]) == ("compact", 100)
    orders = mq.topics.describe("orders")
    assert (orders.partitions, orders.config["partitioner"]) == (3, "murmur2")
    assert (orders.config["retention.ms"], orders.config["max.message.bytes"]) == (-1, 2_000_000)

    groups = {
        "behind": {("orders", 0): 120, ("orders", 1): 10, ("orders", 2): 200, ("payments", 0): 31, ("payments", 1): 40},
        "done": {(topic, p): kafka.end(topic, p) for topic, n in (("orders", 3), ("payments", 2)) for p in range(n)},
        "moved": {("orders", 0): 10},
    }
    for group, offsets in groups.items():
        kafka.commit_offsets(group, offsets)
    following = start(mq, kafka, *batches)
    wait_until(
        lambda: "payments" in {t.topic for t in mq.topics.list()} and len(mq.fetch("payments")) >= 120,
        "copies",
        JOB_TIMEOUT_S,
    )
    kafka.add_partitions("orders", 4)
    for partition in (2, 3):
        kafka.send("orders", partition, pairs("orders", 1000 * partition, 50))
    wait_until(
        lambda: list(mq.end_offsets("orders").values())[2:] == [250, 50], "the copies of what came later", JOB_TIMEOUT_S
    )
    following.send_signal(signal.SIGTERM)
    assert finish(following)["groups"] == 3

    kafka.send_in_transaction("payments", 1, pairs("payments", 900, 20), commits=True)
    assert read_unread(mq, "moved")
    with mq.consumer("moved", assign=["orders"]) as consumer:
        consumer.commit({("orders", 0): 150})
    producer = kafka.begin_transaction("payments", 0, pairs("payments", 800, 5))
    options = ["--bootstrap-servers", kafka.address, "--topics", "orders|payments|prices", "--until-caught-up"]
    command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", mq.namespace.path, "mirror", *options]
    done = subprocess.run(
        [*command, "--output", "json"], capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=True
    )
    counts = {"topics": 3, "records": 20, "lag": 5, "groups": 3, "groups_refused": 0, "timestamps_replaced": 0}
    assert json.loads(done.stdout) == counts
    producer.abortTransaction()
    producer.close()
    check_copies(mq, kafka)
    assert read_unread(mq, "behind") == list_uncommitted(kafka, groups["behind"])
    assert read_unread(mq, "done") == list_uncommitted(kafka, groups["done"]) != []
    with mq.consumer("moved", assign=["orders"]) as consumer:
        assert consumer.committed()["orders", 0].offset == 150


def test_times_and_headers_that_would_be_refused_or_delay_a_copy_are_kept_in_other_headers(
    kafka: Kafka, mq: Connection
) -> None:
    kafka.create_topic("clocks", 1, cleanup_policy="", message_timestamp_after_max_ms=str(2**63 - 1))
    begun, seconds, microseconds = time.time(), 1_700_000_000, 1_700_000_000_000_000
    for timestamp_ms in (seconds, None, microseconds):
        kafka.send("clocks", 0, [("k", f"{timestamp_ms}")], timestamp_ms=timestamp_ms)
    kafka.send("clocks", 0, [("k", "later")], more_headers={"DELAY_MS": "600000"})
    once = ["--topics", "clocks", "--until-caught-up"]
    done = finish(start(mq, kafka, *once))
    assert (done["records"], done["lag"], done["timestamps_replaced"]) == (4, 0, 2)
    settings = mq.topics.describe("clocks").config
    assert (settings["cleanup.policy"], settings["retention.ms"], settings["retention.bytes"]) == ("delete", -1, -1)
    first, second, third, last = mq.fetch("clocks")
    for message, timestamp_ms in ((first, seconds), (third, microseconds)):
        assert dict(message.headers)["kafka.timestamp"] == str(timestamp_ms).encode()
        assert begun - 1 < message.timestamp.timestamp() < time.time() + 1
    assert second.headers == (("number", b"0"), (OFFSET_HEADER, b"1"))
    assert last.headers == (("number", b"0"), ("kafka.DELAY_MS", b"600000"), (OFFSET_HEADER, b"3"))

    kafka.delete_topic("clocks")
    kafka.create_topic("clocks", 1)
    kafka.send("clocks", 0, pairs("clocks", 0, 10))
    end = finish(start(mq, kafka, *once), 1)
    assert end["error"] == "ILLEGAL_STATE"
    assert "Topic clocks was deleted in Kafka and created again" in end["message"]


@pytest.mark.nightly
def test_mirror_waits_while_kafka_does_not_answer_and_goes_on_when_another_sequencer_leads(
    kafka: Kafka, mq: Connection, tmp_path: Path
) -> None:
    kafka.create_topic("outages", 1)
    kafka.send("outages", 0, pairs("outages", 0, 10))
    properties = tmp_path / "client.properties"
    properties.write_text("request.timeout.ms=2000\ndefault.api.timeout.ms=3000\n")
    mirror = Process(*build_command(mq, kafka, "--topics", "outages", "--command-config", str(properties)))
    try:
        wait_until(lambda: "outages" in {t.topic for t in mq.topics.list()}, "topic", JOB_TIMEOUT_S)
        wait_until(lambda: mq.end_offsets("outages") == {0: 10}, "copies", JOB_TIMEOUT_S)
        kafka.process.send_signal(signal.SIGSTOP)
        mirror.wait_for_line("Kafka does not answer.*The mirror tries again in 2 s")
        kafka.process.send_signal(signal.SIGCONT)
        mirror.wait_for_line("The mirror goes on")
        (serving,) = mq._open.serving
        serving.close()
        kafka.send("outages", 0, pairs("outages", 10, 10))
        wait_until(lambda: mq.end_offsets("outages") == {0: 20}, "copies after the outage", JOB_TIMEOUT_S)
        mirror.signal(signal.SIGTERM)
        assert mirror.wait_for_exit() == 0, mirror.err
    finally:
        kafka.process.send_signal(signal.SIGCONT)
        mirror.kill()


@pytest.mark.nightly
def test_mirror_waits_for_brokers_whose_name_cannot_be_resolved_at_its_start(
    kafka: Kafka, mq: Connection, tmp_path: Path
) -> None:
    kafka.create_topic("named", 1)
    kafka.send("named", 0, pairs("named", 0, 10))
    hosts, port = tmp_path / "hosts", kafka.address.rpartition(":")[2]
    local = f"127.0.0.1 localhost {socket.gethostname()}\n"
    hosts.write_text(local)
    more = "--topics", "named", "--bootstrap-servers", f"broker.test:{port}", "--until-caught-up"
    mirror = start(mq, kafka, *more, JAVA_TOOL_OPTIONS=f"-Djdk.net.hosts.file={hosts}")
    assert mirror.stderr is not None
    for line in mirror.stderr:
        if "No resolvable bootstrap urls" in line:
            assert "The mirror tries again in 1 s" in line
            break
    hosts.write_text(f"{local}127.0.0.1 broker.test\n")
    assert finish(mirror)["records"] == 10
    end = finish(start(mq, kafka, *more[:2], "--bootstrap-servers", "broker.test:no-port"), 1)
    assert "Failed to create new KafkaAdminClient" in end["message"], "a wrong option is no outage"


PAUSED_BEFORE_READING = """
import pathlib, sys, time
from lakemq.engine.client.format import publishing
from lakemq.jobs import mirror

folder, publish = pathlib.Path(sys.argv.pop(1)), publishing.publish_batch

def pause_and_publish(*arguments):
    (folder / "planned").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    return publish(*arguments)

publishing.publish_batch = pause_and_publish
sys.exit(mirror.main(sys.argv[1:]))
"""
"""A mirror that waits between planning a batch and reading its messages."""


@pytest.mark.nightly
def test_no_message_is_copied_of_a_topic_that_is_created_again_after_a_batch_was_planned(
    kafka: Kafka, mq: Connection, tmp_path: Path
) -> None:
    kafka.create_topic("again", 1)
    kafka.send("again", 0, pairs("before", 0, 10))
    command = build_command(mq, kafka, "--topics", "again", "--until-caught-up")[3:]
    process = Process(sys.executable, "-c", PAUSED_BEFORE_READING, str(tmp_path), *command)
    try:
        wait_until((tmp_path / "planned").exists, "a planned batch", JOB_TIMEOUT_S)
        kafka.delete_topic("again")
        kafka.create_topic("again", 1)
        kafka.send("again", 0, pairs("after", 0, 30))
        (tmp_path / "go").touch()
        assert process.wait_for_exit() == 1, process.err
    finally:
        process.kill()
    assert "Topic again was deleted in Kafka and created again" in "".join([*process.out, *process.err])
    assert len(mq.fetch("again")) == 0
