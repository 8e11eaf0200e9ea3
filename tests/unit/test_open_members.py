"""Consumers that a program loses without closing them, and several consumers of a group in one process."""

import gc
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clocks import ManualClock
from queue_world import QueueWorld
from targets import extended_but, nightly_but
from unit.consuming import RecordingListener, add, list_partitions, texts
from unit.served import new_name, new_topic, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import PollOutcome
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.consume.queue_poll import ProcessingPace
from lakemq.engine.protocol.values.deliveries import Acknowledge, Acknowledgement, AckOutcome, Acquire, WantedMessages
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.errors import EndNotReached

PROTOCOLS = ["cooperative", "classic", "queue"]
HERE = Path(__file__).name


@pytest.fixture(params=extended_but(["queue"], PROTOCOLS))
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


@pytest.mark.slow
def test_garbage_consumer_leaves_its_group(
    mq: Connection, group: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = RecordingListener()
    consumer = join(mq, group, topic, listener=listener)
    assert read_all(consumer) == ["0.0", "0.1", "1.0", "1.1"]
    assert consumer.member_id in {member.member_id for member in mq.groups.members(group)}
    reference = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert reference() is None
    until(lambda: mq.groups.describe(group).members == 0)
    until(lambda: f"Group {group}: the consumer that was made at" in caplog.text)
    assert f"{HERE}:" in caplog.text
    assert {kind for kind, _ in listener.events} == {"assigned"}, "another thread than the user's would call it"
    with join(mq, group, topic) as following:
        assert read_all(following) == ["0.0", "0.1", "1.0", "1.1"], "nothing was acknowledged"


@pytest.mark.slow
def test_collector_waits_for_no_lock(mq: Connection, group: str, topic: str) -> None:
    consumers, heartbeats = [join(mq, group, topic)], mq._heartbeats
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


# -- two consumers ------------------------------------------------------------------------------------------


@pytest.mark.slow
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
        for _ in range(2):  # a closed static member stays in its group
            join(mq, group, topic, instance_id="static").close()


@pytest.mark.slow
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


# A batch says since when its partitions are owned, and at which offset the ownership began, in all protocols.


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("protocol", ["queue", "cooperative", "classic"])
def test_batch_has_since_when_and_from_which_offset_its_partitions_are_owned(mq: Connection, protocol: Any) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    delays = {"classic": "group.initial.rebalance.delay.ms", "queue": "rebalance.delay.ms"}
    config = {delays[protocol]: 0} if protocol in delays else {}
    mq.groups.create(group, {"group.protocol": protocol, **config})
    add(mq, topic, {0: 3, 1: 2})
    # step time begins with the time of a file, and the kernel's clock for these ticks every 4 to 10 ms
    before_ms = time.time() * 1000 - 12
    options: dict[str, Any] = {"topics": [topic], "auto_offset_reset": "earliest"}
    with mq.consumer(group, **options) as first_consumer:
        batch = first_consumer.poll(timeout_ms=5_000)
        assert {tp: ownership.first_offset for tp, ownership in batch.ownership.items()} == {
            (topic, 0): 0,
            (topic, 1): 0,
        }
        since_ms = [ownership.since_ms for ownership in batch.ownership.values()]
        assert all(before_ms <= ms <= time.time() * 1000 + 1 for ms in since_ms)
        first_consumer.commit(batch)
        with mq.consumer(group, **options) as second_consumer:
            until(
                lambda: (
                    not first_consumer.poll()
                    and not second_consumer.poll()
                    and len(list_partitions(first_consumer)) == len(list_partitions(second_consumer)) == 1
                )
            )
            add(mq, topic, {0: 1, 1: 1})
            (partition,) = list_partitions(second_consumer)
            later = second_consumer.poll(timeout_ms=5_000)
            ownership = later.ownership[topic, partition]
            assert (ownership.first_offset, list(later.ownership)) == ((3, 2)[partition], [(topic, partition)])
            first = batch.ownership[topic, partition]
            assert ownership.since_ms >= first.since_ms
            assert ownership.epoch > first.epoch
            assert ownership.since.timestamp() * 1000 == pytest.approx(ownership.since_ms)
    reader = mq.consumer(new_name("g"), assign=[topic], auto_offset_reset="earliest")
    assert reader.poll(timeout_ms=5_000).ownership == {}


# How long the poll of a consumer that has just started waits for members that may be dead. No real time passes.

SESSION_MS = 60_000
REBALANCE_MS = 30_000


def hold_messages_elsewhere(world: QueueWorld) -> Callable[[], None]:
    """Let a member of another machine acquire all messages. Returns what accepts one of them."""
    world.ask(
        JoinGroup(
            "g",
            "elsewhere-1",
            ["t"],
            session_timeout_ms=SESSION_MS,
            auto_offset_reset="earliest",
            config={"group.protocol": "queue"},
            host="elsewhere",
            process_id=1,
        )
    )
    world.pass_time(1)
    ((topic_partition, assignment),) = world.core.state.groups["g"].assignments.items()
    place = *topic_partition, assignment.epoch
    world.ask(Acquire("g", "elsewhere-1", [WantedMessages(*place, 6)]))

    def accept_first() -> None:
        world.ask(Acknowledge("g", "elsewhere-1", [Acknowledgement(*place, AckOutcome.ACK, [(0, 1)])]))

    return accept_first


def time_poll(world: QueueWorld, consumer: QueueConsumer) -> int:
    """Poll for a second, and return after how many milliseconds the poll has ended without messages."""
    begun_ms = world.clock.ms
    batch = consumer.poll(timeout_ms=1_000)
    assert batch.outcome is PollOutcome.OTHERS_HOLD_THE_REST
    return world.clock.ms - begun_ms


def test_starting_consumer_waits_for_silent_members_until_their_sessions_must_be_over() -> None:
    world = QueueWorld()
    world.publish({0: 6})
    hold_messages_elsewhere(world)
    consumer = world.consumer()
    assert time_poll(world, consumer) == SESSION_MS + REBALANCE_MS
    assert time_poll(world, consumer) == 1_000


def test_starting_consumer_waits_no_longer_for_a_member_that_makes_progress() -> None:
    world = QueueWorld()
    world.publish({0: 6})
    accept_first = hold_messages_elsewhere(world)
    consumer = world.consumer()
    works_at_ms = world.clock.ms + 5_000
    world.after_rest = lambda: accept_first() if world.clock.ms == works_at_ms else None
    assert time_poll(world, consumer) == 5_000


# A queue member takes no more messages than it finishes within `max.handoff.ms`, by its own pace.


def process(consumer: QueueConsumer) -> Iterator[int | None]:
    """Yield the offset of each message when it is done, and None while there is no message."""
    while True:
        for message in (batch := consumer.poll()):
            consumer.ack(message)
            yield message.partition * 10_000 + message.offset
        if not batch:
            yield None


@pytest.mark.parametrize("each_ms", nightly_but([1, 10], [1, 10, 100]))
def test_scale_out_repeats_no_message_of_a_member_with_a_steady_pace(each_ms: int) -> None:
    world = QueueWorld(partitions=4)
    world.publish(dict.fromkeys(range(4), 500))
    done = Counter[int]()
    members = [process(world.consumer(max_handoff_ms=3_000))]
    while done.total() < 2_000:
        if done.total() == 400 and len(members) == 1:
            members.append(process(world.consumer(max_handoff_ms=3_000)))
        world.pass_time(each_ms)
        done.update(offset for offset in map(next, members) if offset is not None)
    assert set(done.values()) == {1}
    assert len(done) == 2_000


def find_limits(each_ms: float, fixed_ms: float, polls: int) -> list[int]:
    """Return the limits of polls by a user who takes this long for a message and for a poll."""
    clock = ManualClock()
    pace, limits = ProcessingPace(), []
    for _ in range(polls):
        limits.append(pace.find_limit(handoff_ms=3_000, most=10_000))
        pace.note(limits[-1], clock.ms)
        clock.ms += int(fixed_ms + each_ms * limits[-1])
        pace.note(0, clock.ms)
    return limits


@pytest.mark.parametrize(
    ("each_ms", "fixed_ms", "limits"),
    [
        (10, 0, [100, 120, 120, 120]),  # a poll takes 1,200 ms, which is 40 % of 3,000
        (1, 0, [100, 200, 400, 800, 1_200, 1_200]),
        (500, 0, [100, 2, 2]),
        (10, 400, [100, 85, 81, 80, 80]),  # 1,200 = 400 + 80 * 10
        (0, 2_000, [100, 60, 120, 240]),  # a smaller poll takes as long, so it would help nobody
        (10, 2_000, [100, 40, 60, 60]),  # the messages get half of the time then
    ],
)
def test_limit_of_a_poll_follows_the_time_of_messages_and_of_polls(
    each_ms: int, fixed_ms: int, limits: list[int]
) -> None:
    assert find_limits(each_ms, fixed_ms, len(limits)) == limits
