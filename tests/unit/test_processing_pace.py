"""A queue member takes no more messages than it finishes within `max.handoff.ms`, by its own pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from clocks import ManualClock
from queue_world import QueueWorld

from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.client.consume.queue.queue_poll import FIRST_LIMIT, ProcessingPace


def process(consumer: QueueConsumer) -> Iterator[int | None]:
    """Yield the offset of each message when it is done, and None while there is no message."""
    while True:
        for message in (batch := consumer.poll()):
            consumer.ack(message)
            yield message.partition * 10_000 + message.offset
        if not batch:
            yield None


@pytest.mark.parametrize("each_ms", [1, 10, 100])
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
    pace, limits = ProcessingPace(clock), []
    for _ in range(polls):
        limits.append(pace.find_limit(handoff_ms=3_000, most=10_000))
        pace.note(limits[-1])
        clock.ms += int(fixed_ms + each_ms * limits[-1])
        pace.note(0)
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


def test_limit_recovers_when_the_user_is_fast_again() -> None:
    clock = ManualClock()
    pace = ProcessingPace(clock)
    for each_ms in [1_000] * 5 + [1] * 20:
        limit = pace.find_limit(handoff_ms=3_000, most=10_000)
        pace.note(limit)
        clock.ms += each_ms * limit
        pace.note(0)
    assert limit == 1_200 > FIRST_LIMIT


def test_polls_are_not_limited_without_a_handoff() -> None:
    world = QueueWorld()
    world.publish({0: 500})
    consumer = world.consumer(max_handoff_ms=0)
    assert len(consumer.poll(timeout_ms=20)) == 500
