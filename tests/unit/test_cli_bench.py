"""`lakemq bench`: what it says it sent is there, and what it says it read was there; figures agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result
from unit.served import new_name, new_topic, values

from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.commands.shared.progress import RateMeter

pytestmark = pytest.mark.slow


def run(mq: Connection, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--path", mq.namespace.path, "--output", "json", "bench", *arguments])


def figures(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, (result.stdout, result.stderr)
    (line,) = result.stdout.splitlines()
    return dict(json.loads(line))


def test_bench_produce_publishes_its_messages(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    made = figures(run(mq, "produce", topic, "--messages", "50", "--warmup", "5", "--size", "20", "--keys", "3"))
    rows = mq.fetch(topic).to_arrow()
    assert rows.num_rows == 55
    assert {len(value) for value in rows["value"].to_pylist()} == {20}
    assert {bytes(key) for key in rows["key"].to_pylist()} == {b"0", b"1", b"2"}
    assert (made["messages"], made["bytes"]) == (50, 50 * 21)
    rate, seconds = made["messages_per_s"], made["seconds"]
    assert rate * seconds == pytest.approx(50, abs=0.0006 * rate + 0.06 * seconds)  # rounded to 0.1 and to milliseconds
    latencies = [made[f"latency_{point}_ms"] for point in ("p50", "p95", "p99", "p999", "max")]
    assert 0 < latencies[0] <= (seconds + 0.0005) * 1000
    assert latencies == sorted(latencies)


def test_bench_produce_keeps_its_rate(mq: Connection) -> None:
    topic = new_topic(mq)
    made = figures(run(mq, "produce", topic, "--messages", "50", "--rate", "100", "--config", "linger_ms=0"))
    # The last of 50 messages is due after 490 ms; a busy machine may take longer, but never less.
    assert made["seconds"] >= 0.49


def test_bench_produce_sends_lines_of_a_file(mq: Connection, tmp_path: Path) -> None:
    topic, file = new_topic(mq), tmp_path / "payloads.txt"
    file.write_text("one\n\ntwo\n")
    figures(run(mq, "produce", topic, "--messages", "3", "--payload-file", str(file)))
    assert values(mq, topic) == ["one", "two", "one"]
    file.write_text("\n")
    refused = run(mq, "produce", topic, "--payload-file", str(file))
    assert refused.exit_code == 1
    assert "no lines to send" in refused.stderr


def test_bench_consume_deletes_its_own_group_after_reading_all(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    figures(run(mq, "produce", topic, "--messages", "40", "--size", "10"))
    groups = set(mq.groups.list())
    read = figures(run(mq, "consume", topic, "--messages", "40"))
    assert (read["messages"], read["bytes"]) == (40, 400)
    assert 0 < read["join_ms"] <= read["seconds"] * 1000
    assert read["poll_p50_ms"] <= read["poll_max_ms"]
    assert set(mq.groups.list()) == groups


def test_bench_consume_keeps_a_named_group(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("bench")
    figures(run(mq, "produce", topic, "--messages", "30"))
    read = ("consume", topic, "--group", group, "--protocol", "queue")
    assert figures(run(mq, *read, "--messages", "30"))["messages"] == 30
    again = run(mq, *read, "--messages", "5", "--timeout-ms", "200")
    assert figures(again)["messages"] == 0
    assert "messages that did not come within 200 ms: 5" in again.stderr
    assert group in mq.groups.list()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now_s = [0.0]
    meter = RateMeter(lambda: now_s[0])
    assert meter.per_second() == 0
    for second in range(1, 21):
        now_s[0] = float(second)
        meter.add(1000 if second >= 10 else 100 * second)
    assert meter.per_second() == 0, "nothing has come for ten seconds"
    now_s[0] = 21.0
    meter.add(1600)
    assert meter.per_second() == pytest.approx(100, rel=0.25)
