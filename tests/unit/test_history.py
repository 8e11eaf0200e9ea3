"""`lakemq report`: its figures agree with the namespace, and the page needs no network."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from html_outline import HtmlOutline
from typer.testing import CliRunner
from unit.served import read_objects, served, until

from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app
from lakemq.jobs.reports.history import History, read_history

pytestmark = [pytest.mark.slow, pytest.mark.extended]

MESSAGES = 40


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace with messages, groups of two protocols of which one hands over, and a delayed message."""
    with served(tmp_path_factory.mktemp("history"), **{"project.interval.ms": 200}) as mq:
        mq.topics.create("orders", 2)
        mq.topics.create("reminders")
        for group, protocol in (("cooperative", "cooperative"), ("queue", "queue")):
            mq.groups.create(group, {"group.protocol": protocol})
            consume(mq, group, protocol, 0)
        mq.publish("orders", pa.table({"value": [b"x"] * MESSAGES}))
        for group, protocol in (("cooperative", "cooperative"), ("queue", "queue")):
            consume(mq, group, protocol, MESSAGES // 2)
        mq.publish("orders", pa.table({"value": [b"x"] * MESSAGES}))
        consume(mq, "queue", "queue", MESSAGES)
        mq.delayed.schedule("reminders", "r", delay_ms=200)
        until(lambda: sum(mq.end_offsets("reminders").values()) == 1)
        wait_for_projection(mq)
        yield mq


def wait_for_projection(mq: Connection) -> None:
    """Wait until the tables have all steps up to now."""
    mq.topics.alter("orders", {})
    step = mq.state().step
    until(lambda: mq.sql("SELECT max(step) AS step FROM watermarks").to_pylist()[0]["step"] >= step)


def consume(mq: Connection, group: str, protocol: str, count: int) -> None:
    """Consume exactly so many messages as one member, which leaves afterwards."""
    with mq.consumer(group, topics=["orders"], protocol=protocol) as consumer:
        if not count:
            consumer.poll(1, timeout_ms=0)
        while count > 0:
            batch = consumer.poll(count, timeout_ms=10_000)
            consumer.commit(batch)
            count -= batch.record_count


@pytest.fixture(scope="module")
def history(mq: Connection) -> History:
    now_ms = int(time.time() * 1000) + 1
    wait_for_projection(mq)  # so that later reads of the same time find no more steps
    return read_history(mq, now_ms - 600_000, now_ms)


def total(history: History, rates: np.ndarray) -> float:
    return float(rates.sum() * history.timeline.bucket_ms / 1000)


def test_rates_add_up_to_what_is_in_the_log(history: History) -> None:
    assert total(history, history.appended["orders"]) == pytest.approx(2 * MESSAGES)
    assert total(history, history.appended["reminders"]) == pytest.approx(1)
    assert history.message_count == 2 * MESSAGES + 1
    assert total(history, history.steps) == pytest.approx(history.step_count)
    assert history.step_count >= 10
    assert total(history, history.consumed["queue"]) == pytest.approx(3 * MESSAGES // 2)


def test_lag_ends_with_that_of_the_groups(mq: Connection, history: History) -> None:
    for group in ("cooperative", "queue"):
        assert history.lag[group][-1] == sum(partition.lag for partition in mq.groups.lag(group))
    assert history.lag["queue"][0] == 0, "before the first message"


def test_owners_and_handoffs_are_those_of_the_groups(mq: Connection, history: History) -> None:
    expected = mq.sql("SELECT count(*) AS n FROM handoffs").to_pylist()[0]["n"]
    assert history.handoffs.num_rows == expected > 0
    assert set(history.owners["group"].to_pylist()) == {"cooperative", "queue"}


def test_the_command_writes_one_page_that_loads_nothing(mq: Connection, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    (done,) = read_objects(mq.namespace.path, "report", "--since", "PT10M", "-o", str(file))
    assert done["messages"] == 2 * MESSAGES + 1
    page, text = HtmlOutline(), file.read_text()
    page.feed(text)
    assert page.loads == []
    assert page.headings == [
        "Throughput",
        "Latency of steps",
        "Steps",
        "Lag",
        "Lateness of delayed messages",
        "Ownership: cooperative",
        "Ownership: queue",
        "Hand-offs",
        "Administrative changes",
    ]
    assert text.count("Plotly.newPlot(") == len(page.headings) - 2
    assert "<td>topic_created</td><td>reminders</td><td>" in text
    assert "NaN" not in text[text.index("<body>") :]


def test_report_in_a_terminal_agrees_with_the_history(mq: Connection, history: History) -> None:
    span = [str(history.timeline.since_ms), str(history.timeline.until_ms)]
    arguments = ["--path", mq.namespace.path, "report", "--since", span[0], "--until", span[1], "--output"]
    shown = {
        output: CliRunner().invoke(app, [*arguments, output], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
        for output in ("json", "table")
    }
    assert [done.exit_code for done in shown.values()] == [0, 0]
    report = json.loads(shown["json"].stdout)
    assert (report["messages"], report["steps"]) == (history.message_count, history.step_count)
    lags = {"cooperative": 2 * MESSAGES - MESSAGES // 2, "queue": MESSAGES // 2}
    assert {row["group"]: row["lag_at_end"] for row in report["groups"]} == lags
    assert {row["topic"] for row in report["topics"]} == {"orders", "reminders"}
    assert len(report["handoffs"]) == history.handoffs.num_rows
    created = [row["subject"] for row in report["changes"] if row["kind"] == "topic_created"]
    assert created == ["reminders", "orders"], "newest first"
    assert all(f"-{os.getpid()}-" in row["client"] for row in report["changes"])
    assert (
        len(report["owners"]) == len({(row["group"], row["topic"], row["partition"]) for row in report["owners"]}) == 4
    )
    assert f"cooperative  {lags['cooperative']:>10}" in shown["table"].stdout
    assert "in_per_s_at_most" in shown["table"].stdout


def test_report_in_a_terminal_needs_no_plots(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lakemq.jobs.reports.history_report", None)
    assert read_objects(mq.namespace.path, "report")[0]["messages"] == 2 * MESSAGES + 1
