"""The rate at which a group consumes, from the present and a former version of the table of committed offsets."""

import pytest
from unit.consuming import add
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.groups.lag import WINDOW_MS, Consumption, read_consumption
from lakemq.engine.namespace.load import read_watermark

SERVED_WITH = {"project.interval.ms": 0}


def test_rate_is_progress_in_the_window_divided_by_its_length() -> None:
    progress = Consumption(
        2_000,
        {"g": {(1, 0): 10, (1, 1): 50}, "h": {(1, 0): 0}},
        {"g": {(1, 0): 30, (1, 1): 20, (1, 2): 8, (1, 3): 7}, "h": {(1, 0): 1_000}},
    )
    # 20 of the first; the second was reset; the third began at 2 meanwhile; the fourth has an unknown start
    assert progress.rate("g", {(1, 0): 5, (1, 2): 2}) == (20 + 6) / 2
    assert progress.rate("h", {}) == 500
    assert progress.rate("nobody", {}) == 0
    assert Consumption(0, {}, {"g": {(1, 0): 5}}).rate("g", {(1, 0): 0}) == 0


def settle(mq: Connection) -> int:
    """Wait until the tables hold all decisions, and return a time of the store at which they do."""
    step = mq.state().step
    until(lambda: read_watermark(mq.namespace.store).step >= step)
    now_ms = mq.namespace.files.time_ms()
    until(lambda: mq.namespace.files.time_ms() > now_ms + 2)
    return now_ms + 1


@pytest.mark.slow
def test_rate_counts_only_progress_inside_the_window(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 100, 1: 20})

    def consume(count: int) -> None:
        remaining = count
        while remaining:
            batch = consumer.poll(max_records=remaining, timeout_ms=5_000)
            remaining -= batch.record_count
            consumer.commit(batch)

    with mq.consumer(group, topics=[topic]) as consumer:
        before_ms = settle(mq)
        consume(50)
        middle_ms = settle(mq)
        consume(30)
        after_ms = settle(mq)
        store, now_ms = mq.namespace.store, mq.namespace.files.time_ms() + WINDOW_MS
        assert now_ms > after_ms
        for begin_ms, count in (before_ms, 80), (middle_ms, 30), (after_ms, 0):
            window_ms = now_ms - begin_ms
            progress = read_consumption(store, now_ms, window_ms)
            assert progress is not None
            assert progress.window_ms == window_ms
            starts = {(mq.state().topic_ids[topic], partition): 0 for partition in range(2)}
            assert progress.rate(group, starts) == round(1000 * count / window_ms, 3)
        described = mq.groups.describe(group)
        assert described.consumption_rate is not None
        assert described.rate_window_ms is not None
        assert 0 < described.rate_window_ms <= WINDOW_MS
        if described.rate_window_ms < WINDOW_MS:  # all messages were consumed in the last minute
            assert described.consumption_rate == round(1000 * 80 / described.rate_window_ms, 3)
        for rates in (True, False):
            infos = mq.groups.all(rates=rates)
            assert len(infos) == len(mq.groups.list())
            assert {(info.rate_window_ms is None, info.consumption_rate is None) for info in infos} == {
                (not rates, not rates)
            }


@pytest.mark.slow
def test_removed_version_of_the_table_gives_no_rate(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = new_topic(mq), new_name("g")
    with mq.consumer(group, assign=[topic]) as consumer:
        consumer.commit({(topic, 0): 0})
    settle(mq)

    def fail(*_: object) -> None:
        raise FileNotFoundError("gone")

    monkeypatch.setattr("lakemq.tables.storage.delta.store.Store.open_version", fail)
    described = mq.groups.describe(group)
    assert (described.consumption_rate, described.rate_window_ms) == (None, None)
