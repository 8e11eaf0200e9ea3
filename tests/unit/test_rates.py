"""The rate at which a group consumes, from the table of samples and the newest step."""

from types import SimpleNamespace
from typing import Any

from unit.consuming import add
from unit.served import new_name, new_topic

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.groups.lag import read_consumption
from lakemq.engine.namespace.progress import MINUTE_MS, find_minute
from lakemq.tables.specs.journal import SAMPLES, SampleRow
from lakemq.tables.storage.delta.store import NotATable


def make_store(*rows: SampleRow) -> Any:
    """Return a store whose table of samples has these rows."""
    table = SAMPLES.table(rows)
    return SimpleNamespace(
        open=lambda spec: SimpleNamespace(read=lambda names, where: table.filter(where).select(names))
    )


def test_rate_is_progress_since_the_last_sample_that_is_a_minute_old(mq: Connection) -> None:
    topic, other, group, young = new_topic(mq, 2), new_topic(mq), new_name("g"), new_name("g")
    for name in topic, other:
        add(mq, name, {0: 100})
    for name in group, young:
        with mq.consumer(name, assign=[topic, other]) as consumer:
            consumer.commit({(topic, 0): 80, (other, 0): 10})
    with mq.observer().look() as observation:
        state = observation.state
    begin_ms = find_minute(state.now_ms) - MINUTE_MS

    def make_row(step: int, minute_ms: int, topic: str, group: str, offsets: int | None) -> SampleRow:
        return SampleRow(step=step, minute_ms=minute_ms, topic=topic, group=group, offsets=offsets)

    store = make_store(
        make_row(2, begin_ms - 9 * MINUTE_MS, topic, group, 30),  # the newest one before: it has stood still since
        make_row(1, begin_ms - 10 * MINUTE_MS, topic, group, 20),
        make_row(3, begin_ms, topic, group, 70),  # of the minute that counts
        make_row(3, begin_ms, topic, young, 70),
        make_row(2, begin_ms - MINUTE_MS, other, group, 50),  # a reset backwards
        make_row(2, begin_ms - MINUTE_MS, topic, "", 100),
        make_row(2, begin_ms - MINUTE_MS, "deleted", group, None),
    )
    consumption = read_consumption(store, state)
    assert consumption is not None
    assert consumption.window_ms == state.now_ms - begin_ms
    assert MINUTE_MS <= consumption.window_ms < 2 * MINUTE_MS
    assert consumption.rate(state, group) == round(1000 * 50 / consumption.window_ms, 3)
    assert consumption.rate(state, young) is None
    info = mq.groups.describe(group)  # this namespace is younger than a minute, or its groups are
    assert info.consumption_rate is None
    assert mq.groups.all(rates=False)[0].rate_window_ms is None


def test_lost_table_of_samples_gives_no_rate(mq: Connection) -> None:
    def fail(spec: object) -> None:
        raise NotATable("samples")

    assert read_consumption(SimpleNamespace(open=fail), mq.state()) is None  # type: ignore[arg-type]
