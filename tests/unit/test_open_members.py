"""Consumers that a program loses without closing them, and several consumers of a group in one process."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
from unit.consuming import RecordingListener, add, texts
from unit.served import new_name, new_topic, served, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.listener import RebalanceListener
from lakemq.engine.client.consume.member.member_consumer import MemberConsumer
from lakemq.errors import EndNotReached

pytestmark = pytest.mark.slow

PROTOCOLS = ["cooperative", "classic", "queue"]
HERE = Path(__file__).name


@pytest.fixture(params=PROTOCOLS)
def group(mq: Connection, request: pytest.FixtureRequest) -> str:
    settings = {"group.protocol": request.param, "rebalance.delay.ms": 0, "group.initial.rebalance.delay.ms": 0}
    mq.groups.create(name := new_name("g"), settings)
    return name


@pytest.fixture
def topic(mq: Connection) -> str:
    add(mq, name := new_topic(mq, 2), {0: 2, 1: 2})
    return name


def join(mq: Connection, group: str, topic: str, **options: Any) -> MemberConsumer:
    consumer = mq.consumer(group, topics=[topic], **options)
    assert isinstance(consumer, MemberConsumer)
    return consumer


def read_all(consumer: MemberConsumer) -> list[str]:
    """Return the messages of both partitions."""
    values: list[str] = []
    until(lambda: bool(values.extend(texts(consumer.poll(timeout_ms=100))) or len(values) >= 4))
    return sorted(values)


# -- consumers that are garbage -----------------------------------------------------------------------------


def test_garbage_consumer_leaves_its_group(
    mq: Connection, group: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = join(mq, group, topic)
    assert read_all(consumer) == ["0.0", "0.1", "1.0", "1.1"]
    assert consumer.member_id in {member.member_id for member in mq.groups.members(group)}
    reference = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert reference() is None
    until(lambda: mq.groups.describe(group).members == 0)
    until(lambda: f"Group {group}: the consumer that was made at" in caplog.text)
    assert f"{HERE}:" in caplog.text
    with join(mq, group, topic) as following:
        assert read_all(following) == ["0.0", "0.1", "1.0", "1.1"], "nothing was acknowledged"


def test_listener_that_knows_its_consumer_does_not_keep_it(mq: Connection, group: str, topic: str) -> None:
    class KnowingListener(RebalanceListener):
        consumer: MemberConsumer

    listener = KnowingListener()
    listener.consumer = join(mq, group, topic, listener=listener)
    listener.consumer.poll()
    del listener
    gc.collect()
    until(lambda: mq.groups.describe(group).members == 0)


def test_listener_of_garbage_consumer_is_not_called(mq: Connection, group: str, topic: str) -> None:
    """Another thread than the user's would call it."""
    listener = RecordingListener()
    consumer = join(mq, group, topic, listener=listener)
    assert read_all(consumer)
    del consumer
    gc.collect()
    until(lambda: mq.groups.describe(group).members == 0)
    assert {kind for kind, _ in listener.events} == {"assigned"}


def test_collector_waits_for_no_lock(mq: Connection, group: str, topic: str) -> None:
    consumers, heartbeats = [join(mq, group, topic)], mq._consumers._heartbeats
    has_lock, may_go_on = threading.Event(), threading.Event()

    def hold(*locks: Any) -> None:
        with locks[0], locks[1]:
            has_lock.set()
            may_go_on.wait(60)

    holder = threading.Thread(target=hold, args=(heartbeats._changed, consumers[0]._lock.own))
    holder.start()
    has_lock.wait(60)
    collector = threading.Thread(target=lambda: (consumers.clear(), gc.collect()))
    collector.start()
    collector.join(60)
    assert not collector.is_alive()
    assert mq.groups.describe(group).members == 1
    may_go_on.set()
    holder.join(60)
    until(lambda: mq.groups.describe(group).members == 0)


def test_closed_consumer_is_garbage_without_a_trace(
    mq: Connection, group: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with join(mq, group, topic) as consumer:
        consumer.poll()
    del consumer
    gc.collect()
    assert mq._consumers._heartbeats.abandoned.empty()
    assert "is gone" not in caplog.text


def test_closing_connection_leaves_the_groups_of_garbage_consumers(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = new_topic(mq)
        own = lakemq.connect(mq.namespace.path)
        consumer = join(own, "g", topic)
        own._consumers._heartbeats.stop()  # so that its thread does not close the member
        del consumer
        gc.collect()
        own.close()
        assert mq.groups.describe("g").members == 0


# -- two consumers ------------------------------------------------------------------------------------------


def test_second_consumer_of_a_process_warns(
    mq: Connection, group: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = join(mq, group, topic)
    expected = rf"has 2 open consumers of the group {group}\. The one before was made at .*{HERE}:\d+ \(consumer = mq"
    with pytest.warns(UserWarning, match=expected) as caught, lakemq.connect(mq.namespace.path) as other:
        join(other, group, topic)
    assert caught[0].filename == __file__
    assert "The one before was made at" in caplog.text
    first.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        join(mq, group, topic).close()


def test_empty_batch_names_the_consumer_of_this_process_that_has_the_rest(
    mq: Connection, group: str, topic: str
) -> None:
    first = join(mq, group, topic)
    assert read_all(first) == ["0.0", "0.1", "1.0", "1.1"]
    with join(mq, group, topic) as second:
        (reason,) = second.poll(timeout_ms=200).waits_for
        assert f"made at {__file__}:" in reason
        assert f"(member {first.member_id}), holds {topic}-0, {topic}-1. Poll it, or close it." in reason
        with pytest.raises(EndNotReached, match=f"Another consumer of this process.*{first.member_id}"):
            list(second.until_end(timeout_ms=200))
        first.close()
        assert read_all(second) == ["0.0", "0.1", "1.0", "1.1"]
        assert second.poll().waits_for == []
