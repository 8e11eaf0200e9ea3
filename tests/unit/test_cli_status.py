"""`lakemq status`: its figures are those of the commands, and the live page follows the namespace."""

import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.served import Lakemq, new_name, new_topic, read_objects, run_lakemq, served, until, values

from lakemq.engine.client.connection import Connection
from lakemq.jobs.commands import status as status_command
from lakemq.jobs.commands.shared.message_format import parse_format
from lakemq.jobs.status import read_status, take_sample, topic_rows
from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.leader_locks import StandbySigns

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "_REFRESH_S", 0.05)


def read_json(path: str) -> dict[str, Any]:
    (record,) = read_objects(path, "status")
    return record


def test_a_leader_is_not_named_as_its_own_standby(mq: Connection) -> None:
    files, leader = mq.namespace.files, mq.state().leader
    signs = StandbySigns(files)
    for name in (leader, "spare-2-cd"):
        signs.put(name, 2)
    try:
        assert read_json(mq.namespace.path)["standbys"] == ["spare-2-cd"]
    finally:
        for name in (leader, "spare-2-cd"):
            signs.forget(name)
    assert read_json(mq.namespace.path)["standbys"] == []


def test_status_shows_where_clients_connect_and_which_port_is_taken(tmp_path: Path) -> None:
    taken = sockets.listen_tcp("127.0.0.1", 0)
    place = f"127.0.0.1:{taken.getsockname()[1]}"
    with served(tmp_path, **{"line.listen": place}) as mq:
        until(lambda: mq.state().leader != "")
        path = mq.namespace.path
        until(lambda: bool(read_json(path)["lines"]))
        record = read_json(path)
        text = run_lakemq(path, "status", "--once").stdout
    taken.close()
    assert [line.startswith("line/") for line in record["lines"]] == [True]
    assert [f"line.listen {place} cannot be used" in reason for reason in record["missing_lines"]] == [True]
    assert f"{record['lines'][0]}; line.listen {place} cannot be used" in text
    assert "Address already in use), tried again every few seconds" in text


def test_status_shows_the_figures_of_the_namespace(mq: Connection) -> None:
    topic, group = new_topic(mq, partitions=2), new_name("status")
    mq.publish(topic, pa.table({"value": [b"x"] * 30}))
    with mq.consumer(group, topics=[topic], protocol="cooperative") as consumer:
        batch = consumer.poll(10, timeout_ms=10_000)
        consumer.commit(batch)
    mq.delayed.schedule(topic, "soon", delay_ms=240_000)
    mq.delayed.schedule(topic, "later", delay_ms=2_400_000)
    with mq.producer("status-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(30)
        record = read_json(mq.namespace.path)
        state = mq.state()
        producer.abort_transaction()
    assert (record["leader"], record["leader_epoch"]) == (state.leader, state.leader_epoch)
    assert record["leader_has_died"] is False
    assert 0 <= record["last_step_age_ms"] < 60_000
    assert record["steps_per_s"] >= 0
    (row,) = [row for row in record["topics"] if row["topic"] == topic]
    assert (row["partitions"], row["offsets"]) == (2, 31)
    (row,) = [row for row in record["groups"] if row["group"] == group]
    assert row["lag"] == 31 - batch.record_count  # the open transaction's message, too
    (row,) = [row for row in record["open_transactions"] if row["transactional_id"] == "status-open"]
    assert (len(row["partitions"]), row["open_ms"] >= 0) == (1, True)
    assert record["due_by_minutes"] == {"1": 0, "5": 1, "60": 2}
    text = run_lakemq(mq.namespace.path, "status", "--once").stdout
    assert f"{state.leader}, epoch {state.leader_epoch}" in text
    assert "1 min: 0; 5 min: 1; 60 min: 2" in text
    assert topic in text
    assert group in text


def test_status_computes_rates_between_two_samples(mq: Connection) -> None:
    quiet, topic = new_topic(mq), new_topic(mq)
    before = take_sample(mq)
    mq.publish(topic, pa.table({"value": [b"x"] * 30}))
    now = replace(take_sample(mq), monotonic_s=before.monotonic_s + 2)
    status = read_status(mq, mq.observer(), before, now)
    assert (status.in_per_s[topic], status.in_per_s[quiet]) == (15, 0)
    assert status.steps_per_s > 0
    assert topic_rows(status)[0]["topic"] == topic, "the busiest topic comes first"


@pytest.mark.extended
def test_status_refreshes_its_page_until_it_is_interrupted(mq: Connection) -> None:
    topic = new_topic(mq)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", mq.namespace.path, "status"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "200"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=CHECKOUT, env=environment)
    os.close(theirs)
    try:
        shown = read_until(ours, topic)
        later = new_topic(mq)
        shown += read_until(ours, later)
    finally:
        process.send_signal(signal.SIGINT)
        while True:  # nobody else empties the terminal's buffer, and the command may wait for room in it
            try:
                os.read(ours, 65536)
            except OSError:
                break
        code = process.wait(60)
        os.close(ours)
    assert code == 0
    assert "delayed, due in" in shown


def read_until(terminal: int, text: str) -> str:
    """Return what the terminal shows until the text comes."""
    shown, deadline_s = "", time.monotonic() + 60
    while text not in shown:
        assert time.monotonic() < deadline_s, shown[-2000:]
        shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


# `lakemq bench`: what it says it sent is there, and what it says it read was there; figures agree with each other.


def bench(mq: Connection, *arguments: str) -> dict[str, Any]:
    (figures,) = read_objects(mq.namespace.path, "bench", *arguments)
    return figures


def test_bench_produce_publishes_its_messages(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    made = bench(mq, "produce", topic, "--messages", "50", "--warmup", "5", "--size", "20", "--keys", "3")
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


def test_bench_produce_sends_lines_of_a_file(mq: Connection, lake: Lakemq, tmp_path: Path) -> None:
    topic, file = new_topic(mq), tmp_path / "payloads.txt"
    file.write_text("one\n\ntwo\n")
    bench(mq, "produce", topic, "--messages", "3", "--payload-file", str(file))
    assert values(mq, topic) == ["one", "two", "one"]
    file.write_text("\n")
    assert "no lines to send" in lake("bench", "produce", topic, "--payload-file", str(file), code=1).stderr


def test_bench_consume_deletes_its_own_group_after_reading_all(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    bench(mq, "produce", topic, "--messages", "40", "--size", "10")
    groups = set(mq.groups.list())
    read = bench(mq, "consume", topic, "--messages", "40")
    assert (read["messages"], read["bytes"]) == (40, 400)
    assert 0 < read["join_ms"] <= read["seconds"] * 1000
    assert read["poll_p50_ms"] <= read["poll_max_ms"]
    assert set(mq.groups.list()) == groups


# -- Format strings and separators of `fetch`, `tail`, `consume` and `publish`, as in kcat ---------------

NOT_UTF8 = b"\xff\x00\x1b[31m"
ROW = (
    "orders",
    3,
    42,
    1_700_000_000_123_456,
    b"k",
    b"value",
    [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
)
NULLS = ("orders", 0, 0, 0, None, None, None)


def render(text: str, row: tuple[object, ...] = ROW, escape: bool = False) -> bytes:
    return b"".join(part(row) for part in parse_format(text, escape))


@pytest.mark.parametrize(
    ("text", "expected", "of_nulls"),
    [
        ("%s", b"value", b""),
        ("%S", b"5", b"-1"),
        ("%R", b"\0\0\0\5", b"\xff\xff\xff\xff"),
        ("%k", b"k", b""),
        ("%K", b"1", b"-1"),
        ("%T", b"1700000000123", b"0"),
        ("%h", b"h=1,n=", b""),
        ("%t", b"orders", b"orders"),
        ("%p", b"3", b"0"),
        ("%o", b"42", b"0"),
        ("100%%", b"100%", b"100%"),
        (r"%k\t%s\n", b"k\tvalue\n", b"\t\n"),
        (r"\x1e%o\\é", b"\x1e42\\\xc3\xa9", b"\x1e0\\\xc3\xa9"),
    ],
)
def test_format_token_prints_what_kcat_prints(text: str, expected: bytes, of_nulls: bytes) -> None:
    assert render(text) == expected
    assert render(text, NULLS) == of_nulls


@pytest.mark.parametrize("text", ["%x", "%", r"\q", r"\x1", "\\"])
def test_invalid_format_of_messages_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_format(text)


def test_consume_prints_no_control_characters_to_a_terminal() -> None:
    row = (*ROW[:5], NOT_UTF8, ROW[6])
    assert render("%s", row) == NOT_UTF8
    assert b"\x1b" not in render("%s", row, escape=True)
    assert render(r"%s\n", (*ROW[:5], "ä\x1b".encode(), None), escape=True) == "ä\\x1b\n".encode()


def test_keys_of_lines_are_published_and_fetched(mq: Connection, lake: Lakemq) -> None:
    topic = new_topic(mq)
    lake("publish", "--topic", topic, "--key-separator", ":", stdin=b"a:1\nno key\nb:2:3\n:4\n")
    rows = mq.fetch(topic).to_arrow()
    assert list(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [
        (b"a", b"1"),
        (None, b"no key"),
        (b"b", b"2:3"),
        (b"", b"4"),
    ]
    assert lake("fetch", topic, "--key-separator", r"%\t").stdout_bytes == b"a%\t1\n%\tno key\nb%\t2:3\n%\t4\n"
    assert lake("tail", topic, "-n", "1", "--print", r"%o/%K\n").stdout_bytes == b"3/0\n"
    group = new_name("format")
    printed = lake("consume", topic, "--group", group, "--limit", "4", "--print", "%s,").stdout_bytes
    assert printed == b"1,no key,2:3,4,"


def test_options_of_formats_that_contradict_are_refused(mq: Connection, lake: Lakemq) -> None:
    topic = new_topic(mq)
    for arguments in (
        ["fetch", topic, "--print", "%s", "--key-separator", ":"],
        ["fetch", topic, "--print", "%s", "--output", "json"],
        ["tail", topic, "--print", "%y"],
        ["publish", "--topic", topic, "--format", "csv", "--key-separator", ":"],
        ["publish", "--topic", topic, "--key-separator", r"\n"],
    ):
        lake(*arguments, code=2)
