"""`lakemq.testing`: the fixtures give a namespace and its clock, and helpers say what they wait for."""

# ruff: noqa: F401, F811  # fixtures are imported
import threading

import pyarrow as pa
import pytest
from unit.consuming import read_texts
from unit.pages import read_blocks

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.fetch.fetch_result import Message
from lakemq.errors import LakeMQError
from lakemq.testing import (
    MovableClock,
    _mq_folder,
    mq,
    mq_clock,
    mq_settings,
    read_all,
    read_dead_letters,
    run_in_thread,
    serve,
    wait_until,
    wait_until_idle,
)

pytestmark = pytest.mark.slow
pytest_plugins = ["pytester"]

HOUR_MS = 3_600_000


@pytest.fixture
def orders(mq: Connection) -> str:
    mq.topics.create("orders", 1)
    return "orders"


def take(consumer: QueueConsumer, count: int = 1) -> list[Message]:
    messages: list[Message] = []
    wait_until(lambda: messages.extend(consumer.poll(timeout_ms=50)) or len(messages) >= count, f"{count} messages")
    return messages


def test_delayed_messages_are_there_when_advance_returns(mq: Connection, orders: str, mq_clock: MovableClock) -> None:
    rows = {"value": ["soon", "late"], "delay_ms": [HOUR_MS, 3 * HOUR_MS]}
    mq.publish(orders, pa.table(rows))
    assert read_all(mq, orders) == []
    mq_clock.advance(hours=1)
    assert read_texts(read_all(mq, orders)) == ["soon"]
    mq_clock.advance(hours=2)
    assert read_texts(read_all(mq, orders)) == ["soon", "late"]


def test_delays_of_connections_of_the_application_begin_at_the_clock_of_the_test(
    mq: Connection, orders: str, mq_clock: MovableClock
) -> None:
    mq_clock.advance(days=2)
    with lakemq.connect(mq.namespace.path) as application:
        application.delayed.schedule(orders, "later", delay_ms=HOUR_MS)
    mq_clock.advance(minutes=59)
    assert read_all(mq, orders) == []
    mq_clock.advance(minutes=1)
    assert read_texts(read_all(mq, orders)) == ["later"]


def test_a_lost_member_keeps_its_messages_until_its_session_ends(
    mq: Connection, orders: str, mq_clock: MovableClock
) -> None:
    mq.publish(orders, pa.table({"value": ["a"]}))
    lost = mq.consumer("ship", topics=[orders], session_timeout_ms=45_000)
    take(lost)
    with mq.consumer("ship", topics=[orders]) as other:
        mq_clock.lose(lost)
        mq_clock.advance(seconds=44)
        assert lost.member_id in [member.member_id for member in mq.groups.members("ship")]
        mq_clock.advance(minutes=1)  # also the time in which the group waits for it
        assert [member.member_id for member in mq.groups.members("ship")] == [other.member_id]
        assert read_texts(take(other)) == ["a"]


def test_messages_expire_and_old_ones_are_removed_when_the_clock_advances(
    mq: Connection, orders: str, mq_clock: MovableClock
) -> None:
    mq.topics.alter(orders, {"retention.ms": 24 * HOUR_MS})
    mq.publish(orders, pa.table({"value": ["short", "long"], "ttl_ms": [HOUR_MS, None]}))
    mq_clock.advance(hours=1)
    assert read_texts(read_all(mq, orders)) == ["long"]
    mq_clock.advance(days=1)
    wait_until(lambda: mq.beginning_offsets(orders) == {0: 2}, "the removal of old messages")


def test_dead_letters_come_with_their_reasons(mq: Connection, orders: str) -> None:
    mq.publish(orders, pa.table({"value": ["bad"], "key": ["k"]}))
    with mq.consumer("ship", topics=[orders]) as consumer:
        consumer.reject(take(consumer)[0], error="no such street")
        (letter,) = read_dead_letters(mq, "ship", at_least=1)
    assert (letter.value, letter.key, letter.error) == (b"bad", b"k", "no such street")
    assert (letter.reason, letter.group, letter.topic, letter.delivery_count) == ("rejected", "ship", orders, 1)
    assert read_dead_letters(mq, "other") == []


@pytest.mark.usefixtures("mq")
def test_clock_refuses_to_go_back(mq_clock: MovableClock) -> None:
    with pytest.raises(ValueError, match="found -60 s"):
        mq_clock.advance(minutes=-1)


def test_a_wait_that_times_out_says_what_it_waited_for(mq: Connection, orders: str) -> None:
    with pytest.raises(TimeoutError, match="Waited 0 s for rain"):
        wait_until(lambda: False, "rain", 0)
    with pytest.raises(TimeoutError, match="group 'ship', which does not exist"):
        wait_until_idle(mq, "ship", 0)
    with pytest.raises(TimeoutError, match=r"for 3 dead letters of group 'ship': there are 0.*wait_until_idle first"):
        read_dead_letters(mq, "ship", at_least=3, timeout_s=0)
    mq.publish(orders, pa.table({"value": ["a"]}))
    with mq.consumer("ship", topics=[orders]), pytest.raises(TimeoutError, match="idle: orders-0 has 1 left"):
        wait_until_idle(mq, "ship", 0)


def test_a_thread_that_has_failed_raises_its_error_beside_that_of_the_test() -> None:
    def fail(stop: threading.Event) -> None:
        raise OSError("no printer")

    with pytest.raises(OSError, match="no printer") as raised, run_in_thread(fail):
        raise TimeoutError("Waited 10 s for an order.")
    assert isinstance(raised.value.__context__, TimeoutError)


@pytest.mark.extended
def test_tests_of_the_page_pass_as_they_stand(pytester: pytest.Pytester) -> None:
    shop, *tests = read_blocks("testing.md", "python")
    pytester.makepyfile(shop=shop, test_shop="\n\n".join(tests))
    pytester.makeconftest("import sys; assert not {'pyarrow', 'pyspark'} & sys.modules.keys()")
    result = pytester.runpytest_subprocess("-p", "lakemq.testing", timeout=100)
    result.assert_outcomes(passed=5)
