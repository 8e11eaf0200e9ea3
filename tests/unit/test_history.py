"""`lakemq report`: its figures agree with the namespace, and the page needs no network."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from html_outline import HtmlOutline
from unit.served import read_objects, served, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace import progress
from lakemq.jobs.reports import samples
from lakemq.jobs.reports.history import History, read_history

pytestmark = [pytest.mark.slow, pytest.mark.extended]

MESSAGES = 40


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace with messages, groups of two protocols of which one hands over, and a delayed message.

    Its samples come every tenth of a second.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        served(tmp_path_factory.mktemp("history"), **{"project.interval.ms": 200}) as mq,
    ):
        for module in (progress, samples):
            patch.setattr(module, "MINUTE_MS", 100)
        patch.setattr(samples, "_MOST_POINTS", 10_000)  # else a quick machine does all within the length of one point
        mq.topics.create("orders", 2)
        mq.topics.create("reminders")
        for group, protocol in (("cooperative", "cooperative"), ("queue", "queue")):
            mq.groups.create(group, {"group.protocol": protocol})
            consume(mq, group, protocol, 0)
        mq.publish("orders", pa.table({"value": [b"x"] * MESSAGES}))
        for group, protocol in (("cooperative", "cooperative"), ("queue", "queue")):
            consume(mq, group, protocol, MESSAGES // 2)
        until(lambda: has_sample(mq, "queue", MESSAGES // 2))
        mq.publish("orders", pa.table({"value": [b"x"] * MESSAGES}))
        consume(mq, "queue", "queue", MESSAGES)
        mq.delayed.schedule("reminders", "r", delay_ms=200)
        until(lambda: sum(mq.end_offsets("reminders").values()) == 1)
        wait_for_projection(mq)
        yield mq


def has_sample(mq: Connection, group: str, lag: int) -> bool:
    """Let time pass, and return whether the group has a sample with this lag."""
    mq.topics.alter("orders", {})
    return bool(mq.sql(f"SELECT 1 FROM samples WHERE `group` = '{group}' AND lag = {lag}").num_rows)


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


def test_rates_of_the_history_add_up_to_the_messages_of_the_log(history: History) -> None:
    count = history.samples.count
    assert count([history.produced["orders"]]) == 2 * MESSAGES
    assert count([history.produced["reminders"]]) == 1
    assert history.message_count == 2 * MESSAGES + 1
    assert history.step_count >= 10
    assert count([history.consumed["queue"]]) == MESSAGES, "since its first sample"
    assert 0 <= np.nanmax(history.samples.late_ms) < 600_000


def test_lag_in_time_is_the_age_of_the_oldest_unread_message(history: History) -> None:
    lag_s = history.samples.lag_ms["orders", "cooperative"] / 1000
    assert 0 < lag_s[-1] < 600
    assert np.nanmin(lag_s) >= 0


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
    assert (text.count("<figure data-chart="), text.count('<svg class="chart"')) == (7, 2)
    assert "new uPlot(" in text, "the script that draws the charts"
    assert "<a href" not in text, "a link would lead nowhere"
    assert '>topic_created</td><td data-label="subject">reminders</td>' in text
    assert "NaN" not in text[text.index("<body>") :]


def test_report_in_a_terminal_needs_no_plots(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lakemq.jobs.reports.history_report", None)
    assert read_objects(mq.namespace.path, "report")[0]["messages"] == 2 * MESSAGES + 1
