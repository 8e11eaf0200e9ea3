"""Delayed messages over restarts, in views and for the commands: each has a namespace of its own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result
from unit.served import (
    CONFIG,
    create_quick_topic,
    now_ms,
    run_lakemq,
    run_sql,
    served,
    until,
    values,
    wait_for_messages,
)

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance.housekeeping import _drop_outdated_rows
from lakemq.engine.namespace.load import read_watermark
from lakemq.jobs.cli import app
from lakemq.jobs.release_delayed import release, sentence
from lakemq.tables.specs.messages import DELAYED

SERVED_WITH = {"project.interval.ms": 50}

pytestmark = pytest.mark.slow


@pytest.mark.extended
def test_views_show_waiting_and_ended_delays(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = create_quick_topic(mq)
        mq.publish(topic, pa.table({"value": ["a"]}), delay_ms=0)
        mq.publish(topic, pa.table({"value": ["b"]}), delay_ms=10**9)
        wait_for_messages(mq, topic, 1)
    with served(tmp_path, **SERVED_WITH) as mq:
        rows = mq.namespace.store.open(DELAYED).read().sort_by("step").to_pylist()
        newest = {(row["file_id"], row["first_row"]): row for row in rows}
        states = sorted((row["state"], row["released_count"], row["removed"]) for row in newest.values())
        assert states == [("released", 1, True), ("waiting", 0, False)]
        pending = run_sql(mq, "SELECT topic, state, messages, ranges, first_due >= due_hour FROM pending_delayed")
        assert pending == [(topic, "waiting", 1, 1, True)]
        rows = run_sql(mq, "SELECT topic, partition, key, deliver_at >= timestamp FROM pending_delayed_rows")
        assert rows == [(topic, 0, None, True)]
        history = "SELECT state, messages, late_ms, ended_by FROM delayed_history"
        ((*state_and_count, late_ms, changed_by),) = run_sql(mq, history)
        assert (state_and_count, changed_by) == (["released", 1], None)
        assert late_ms >= 0
        moved = mq.delayed.schedule(topic, "c", delay_ms=10**9)
        mq.delayed.cancel(mq.delayed.reschedule(moved, delay_ms=10**8).receipt or "")
        until(lambda: len(run_sql(mq, history)) == 3)
        ended = [row for row in run_sql(mq, history) if row[0] != "released"]
        assert sorted(row[:3] for row in ended) == [("cancelled", 1, None), ("rescheduled", 1, None)]
        assert all(row[3].startswith(mq.requester._client_id) for row in ended)


@pytest.mark.extended
def test_release_job_releases_due_messages_and_prints_what_is_next(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True, config=CONFIG) as mq, mq.serving():
        topic, padding = create_quick_topic(mq), "x" * 300
        far = [now_ms() + 200 + 50 * i for i in range(20)] + [now_ms() + 30 * 60_000 + i for i in range(3)]
        mq.publish(topic, pa.table({"value": [padding] * 23, "deliver_at": far}))
        mq.delayed.schedule(topic, "soon", delay_ms=100)
    until(lambda: now_ms() > far[19] + 50)

    def run(*arguments: str) -> str:
        return run_lakemq(path, "delayed", "release", *arguments).stdout

    assert "messages released, the first of them 0:00:" in run()
    assert run().startswith("nothing released; next due 2")
    with lakemq.connect(path, config=CONFIG) as mq, mq.serving():
        assert len(values(mq, topic)) == 21
        mq.delayed.schedule(topic, "then", deliver_at=now_ms() + 4_000)
        assert run("--until", str(now_ms() + 4_300)).startswith("1 messages released")
        assert values(mq, topic)[-1] == "then"


@pytest.mark.extended
def test_watching_release_job_prints_each_release_until_stopped(tmp_path: Path) -> None:
    stop, sentences = threading.Event(), list[str]()
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        watching = threading.Thread(
            target=release, args=(mq, None, True, stop, lambda progress: sentences.append(sentence(progress)))
        )
        watching.start()
        topic = create_quick_topic(mq)
        for count in (1, 2):
            mq.publish(topic, pa.table({"value": ["x"]}), delay_ms=50)
            until(lambda count=count: len(sentences) >= count)  # type: ignore[misc]
        stop.set()
        watching.join()
    assert [line.split(",")[0] for line in sentences] == ["1 messages released"] * 2 + ["2 messages released"]
    assert sentences[-1].endswith("none wait")


@pytest.mark.extended
def test_release_job_fails_when_a_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t", config={"delay.slot.ms": 50})
        due_ms = [now_ms() + 3_000, now_ms() + 3_300]  # not before the file has left the folder
        mq.publish("t", pa.table({"value": ["x" * 2000] * 2, "deliver_at": due_ms}))
    (lost,) = (path / "messages").glob("*.parquet")
    lost.unlink()
    result = CliRunner().invoke(app, ["--path", str(path), "delayed", "release", "--until", str(due_ms[1] + 100)])
    assert result.exit_code != 0
    assert "2 messages" in result.stderr


@pytest.mark.extended
def test_outcome_of_a_receipt_is_known_as_long_as_the_history(tmp_path: Path) -> None:
    """The outcome comes from the journal's tail, then from the table, also after a merge. Later it is gone."""
    path, config = (
        str(tmp_path / "mq"),
        {**CONFIG, "compact.min.files": 2, "checkpoint.interval": 5, "project.interval.ms": 50},
    )
    with lakemq.connect(path, create=True, config=config) as mq, mq.serving():
        topic = create_quick_topic(mq)
        ids = [mq.delayed.schedule(topic, f"{i}", delay_ms=10**9 if i < 2 else 0) for i in range(3)]
        wait_for_messages(mq, topic, 1)
        assert mq.delayed.cancel(ids[0]) == "cancelled"
        assert mq.delayed.reschedule(ids[1], delay_ms=0).outcome == "rescheduled"
        wait_for_messages(mq, topic, 2)
        for _ in range(12):
            assert mq.delayed.cancel_all(ids) == ["cancelled", "rescheduled", "released"]
            mq.delayed.cancel(mq.delayed.schedule(topic, "more", delay_ms=10**9))
            step = mq.state().step
            until(lambda step=step: read_watermark(mq.namespace.store).step >= step)  # type: ignore[misc]
    assert count_kept_rows(path, {**config, "delay.history.ms": 10**9}) > 0
    assert count_kept_rows(path, {**config, "delay.history.ms": 0}) == 0


def count_kept_rows(path: str, config: dict[str, Any]) -> int:
    """Return how many rows of ended ranges a merge of the whole table keeps."""
    with lakemq.connect(path, config=config) as mq:
        handle = mq.namespace.store.open(DELAYED)
        rows, now = handle.read(), now_ms()
        since_ms = now - mq.namespace.config.ms("delay.history.ms")
        return _drop_outdated_rows(DELAYED, rows, handle.last_step(), whole=True, history_since_ms=since_ms).num_rows


@pytest.mark.extended
def test_delayed_command_lists_reschedules_and_cancels(mq: Connection, lake: Callable[..., Result]) -> None:
    topic = create_quick_topic(mq)
    receipt = mq.delayed.schedule(topic, "v", delay_ms=10**9)

    def run(*arguments: str) -> list[list[str]]:
        return [line.split() for line in lake("delayed", *arguments).stdout.splitlines()[1:]]

    assert [topic, "1", "0", "1"] in [line[:4] for line in run("list")]
    assert [line[:2] for line in run("describe", topic)] == [[topic, "1"]]
    ((outcome, *_, moved),) = run("reschedule", receipt, "--deliver-at", "2200-01-01")
    assert outcome == "rescheduled"
    assert run("cancel", receipt, moved) == [[receipt, "rescheduled"], [moved, "cancelled"]]
    mq.publish(topic, pa.table({"key": ["a", "b", "b"], "value": ["v"] * 3}), delay_ms=10**9)
    assert [line[-1] for line in run("cancel", "--topic", topic, "--key", "b", "--dry-run")] == ["waiting"] * 2
    assert [line[-1] for line in run("cancel", "--topic", topic, "--where", "key = 'a'", "--yes")] == ["cancelled"]
    assert run("purge", topic, "--yes") == [["cancelled", "2"]]
    assert run("describe", topic) == []
    result = lake("publish", "--topic", topic, "--format", "lines", "--delay-ms", "1000000", stdin=b"a\nb\n")
    assert "delayed messages, which wait for their time: 2" in result.stderr
    assert run("purge", topic, "--yes") == [["cancelled", "2"]]
