"""How long the poll of a consumer that has just started waits for members that may be dead. No real time passes."""

from __future__ import annotations

from collections.abc import Callable

from queue_world import QueueWorld

from lakemq.engine.client.consume.outcome import PollOutcome
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.protocol.values.consuming.groups import JoinGroup
from lakemq.engine.protocol.values.queues.deliveries import (
    Acknowledge,
    Acknowledgement,
    AckOutcome,
    Acquire,
    WantedMessages,
)

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
        world.ask(Acknowledge("g", "elsewhere-1", [Acknowledgement(*place, AckOutcome.ACCEPT, [(0, 1)])]))

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
    begun_ms, rest = world.clock.ms, consumer._reader.rest

    def rest_while_the_other_works(poll_ms: int, most_ms: int) -> None:
        rest(poll_ms, most_ms)
        if world.clock.ms == begun_ms + 5_000:
            accept_first()

    consumer._reader.rest = rest_while_the_other_works  # type: ignore[method-assign]
    assert time_poll(world, consumer) == 5_000
