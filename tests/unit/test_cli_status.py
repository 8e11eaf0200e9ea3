"""`lakemq status`: its figures are those of the commands, and the live page follows the namespace."""

from __future__ import annotations

import json
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
from typer.testing import CliRunner, Result
from unit.consuming import take_messages
from unit.served import new_name, new_topic, served, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.leadership import Leadership
from lakemq.jobs.cli import app
from lakemq.jobs.state.status import read_status, take_sample, topic_rows
from lakemq.tables.storage.coordination import tcp_sockets
from lakemq.tables.storage.coordination.standby_signs import StandbySigns

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]


def run(path: str, *arguments: str) -> Result:
    result = CliRunner().invoke(app, ["--path", path, *arguments])
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def read_json(path: str) -> dict[str, Any]:
    (line,) = run(path, "--output", "json", "status").stdout.splitlines()
    return dict(json.loads(line))


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


def test_leader_is_silent_after_its_lease() -> None:
    leadership = Leadership(
        leader="a",
        epoch=1,
        lease_ms=10_000,
        has_died=False,
        step=7,
        put_ms=0,
        silent_ms=11_999,
        standbys=(),
        lines=(),
        missing_lines=(),
    )
    assert not leadership.is_silent
    assert replace(leadership, silent_ms=12_001).is_silent
    assert not replace(leadership, silent_ms=99_999, leader="").is_silent


def test_the_page_shows_where_clients_connect_and_where_they_cannot(tmp_path: Path) -> None:
    taken = tcp_sockets.listen("127.0.0.1", 0)
    place = f"127.0.0.1:{taken.getsockname()[1]}"
    with served(tmp_path, **{"line.listen": place}) as mq:
        until(lambda: mq.state().leader != "")
        path = mq.namespace.path
        until(lambda: bool(read_json(path)["lines"]))
        record = read_json(path)
        text = run(path, "status", "--once").stdout
    taken.close()
    assert [line.startswith("line/") for line in record["lines"]] == [True]
    assert [f"line.listen {place} cannot be used" in reason for reason in record["missing_lines"]] == [True]
    assert f"{record['lines'][0]}; line.listen {place} cannot be used" in text
    assert "Address already in use), tried again every few seconds" in text


def test_the_figures_are_those_of_the_namespace(mq: Connection) -> None:
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
    text = run(mq.namespace.path, "status", "--once").stdout
    assert f"{state.leader}, epoch {state.leader_epoch}" in text
    assert "1 min: 0; 5 min: 1; 60 min: 2" in text
    assert topic in text
    assert group in text


def test_rates_are_those_between_two_samples(mq: Connection) -> None:
    quiet, topic = new_topic(mq), new_topic(mq)
    before = take_sample(mq)
    mq.publish(topic, pa.table({"value": [b"x"] * 30}))
    now = replace(take_sample(mq), monotonic_s=before.monotonic_s + 2)
    status = read_status(mq, mq.observer(), before, now)
    assert (status.in_per_s[topic], status.in_per_s[quiet]) == (15, 0)
    assert status.steps_per_s > 0
    assert topic_rows(status)[0]["topic"] == topic, "the busiest topic comes first"


_LEAD_AND_DIE = """
import os, signal, sys
import lakemq
mq = lakemq.connect(sys.argv[1], create=True)
assert mq.sequencer().try_lead()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_leader_that_was_killed_is_a_finding(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    subprocess.run([sys.executable, "-c", _LEAD_AND_DIE, path], check=False)
    record = read_json(path)
    assert (record["topics"], record["groups"], record["open_transactions"]) == ([], [], [])
    assert (record["leader_has_died"], record["steps_per_s"]) == (True, 0)
    assert [finding["check"] for finding in record["findings"]] == ["sequencer"]
    assert "has died without handing over its lease" in run(path, "status").stdout


def test_dead_letters_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    with lakemq.connect(tmp_path / "mq", create=True) as mq, mq.serving():
        mq.topics.create("mails")
        mq.publish("mails", pa.table({"value": ["not a mail"]}))
        mq.groups.create("mailer", {"max.redelivery.count": 0})
        with mq.consumer("mailer", topics=["mails"], protocol="queue", auto_offset_reset="earliest") as consumer:
            (message,) = take_messages(consumer, 1)
            consumer.nack(message)
            consumer.flush()
            until(lambda: bool(mq.dead_letters.counts()))
    path = str(tmp_path / "mq")
    assert [row["messages"] for row in read_json(path)["dead_letters"]] == [1]
    for file in (tmp_path / "mq/segments").glob("*.parquet"):
        file.unlink()
    assert read_json(path)["dead_letters"] is None
    assert "Dead letters: unknown" in run(path, "status").stdout


def test_the_live_page_is_refreshed_until_interrupted(mq: Connection) -> None:
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
