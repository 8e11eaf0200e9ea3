"""Partitions of a queue that stand still: `groups describe`, the doctor and the poll itself give the reason."""

import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from queue_world import QueueWorld, deliver, take_messages

from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.groups.groups import Groups, Stall
from lakemq.engine.client.groups.stalls import NO_NOTES
from lakemq.errors import IllegalState
from lakemq.jobs.doctor import namespace as doctor


def make_groups(world: QueueWorld) -> Groups:
    core, clock = world.core, world.clock
    return Groups(lambda: core.state, world, None, 1_000_000, lambda: clock.ms, lambda: None, lambda _: NO_NOTES)  # type: ignore[arg-type]


def find_stalls(world: QueueWorld) -> list[Stall]:
    return make_groups(world).stalls("g")


def examine(world: QueueWorld) -> Any:
    files = SimpleNamespace(time_ms=lambda: world.clock.ms)
    connection = SimpleNamespace(namespace=SimpleNamespace(path="p", files=files))
    observer = SimpleNamespace(look=lambda: nullcontext(SimpleNamespace(groups=make_groups(world))))
    return doctor.check_groups(connection, observer)  # type: ignore[arg-type]


def stall_partition(world: QueueWorld) -> tuple[QueueConsumer, list[Any]]:
    """Keep one message without an acknowledgement, while another one waits for its last delivery."""
    world.publish({0: 2, 1: 2})
    consumer = world.consumer(max_redelivery_count=1)
    messages = take_messages(consumer, 4)
    consumer.ack([messages[1], messages[3]])
    consumer.nack(messages[2])
    world.publish({0: 5, 1: 5})
    return consumer, messages


def test_waiting_last_delivery_names_the_member_and_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueWorld(2)
    consumer, messages = stall_partition(world)
    batch = consumer.poll(timeout_ms=100)
    assert not batch
    (stall,) = find_stalls(world)
    assert (stall.kind, stall.member_id, stall.topic, stall.partition, stall.offset) == (
        "last delivery",
        consumer.member_id,
        "t",
        0,
        0,
    )
    assert "t-1, offset 0 waits for its last delivery" in stall.found
    assert f"member {consumer.member_id}" in stall.found
    assert "1 message that it has not acknowledged, the first is t-0, offset 0." in stall.found
    assert make_groups(world).describe("g").waits_for == [str(stall)] == batch.waits_for
    assert examine(world).ok
    world.pass_time(61_000)
    finding = examine(world)
    assert not finding.ok
    assert "t-1, offset 0 waits for its last delivery" in finding.found
    consumer.ack(messages[0])
    (last,) = take_messages(consumer, 1)
    assert (last.partition, last.offset, last.delivery_count) == (1, 0, 2)
    assert not find_stalls(world)


def test_member_at_its_bound_of_messages_is_named() -> None:
    world = QueueWorld()
    world.publish({0: 5})
    consumer = world.consumer(max_delivered_unacked_msgs_per_flow=2)
    messages = take_messages(consumer, 2)
    with pytest.raises(IllegalState, match=r"Acknowledge them.*2, the first is t-0, offset 0"):
        consumer.poll(timeout_ms=30)
    (stall,) = find_stalls(world)
    assert stall.kind == "bound"
    assert "max.delivered.unacked.msgs.per.flow is 2: the first is t-0, offset 0." in stall.found
    consumer.ack(messages)


def test_member_that_never_acknowledges_is_named_after_its_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    world, consumer, messages = deliver({0: 3})
    first, second, _ = messages
    world.pass_time(200_000)
    consumer.ack(first)
    consumer.flush()
    world.pass_time(200_000)
    assert not find_stalls(world), "it has said something since"
    world.pass_time(101_000)
    (stall,) = find_stalls(world)
    assert (stall.kind, stall.offset) == ("silent", 1)
    assert "it has 2 messages of it, the first is offset 1." in stall.found
    assert [list(command[:3]) for command in examine(world).commands] == [["groups", "remove-members", "g"]]
    consumer.nack(second)
    assert not find_stalls(world)


def test_returned_message_with_a_delay_says_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, consumer, messages = deliver({0: 3})
    consumer.nack(messages[0], 600_000)
    consumer.ack(messages[1:])
    (stall,) = find_stalls(world)
    assert (stall.kind, stall.offset) == ("waiting", 0)
    assert "comes again at 2023-11-14T22:23:2" in stall.found
    assert consumer.poll(timeout_ms=20).waits_for == [str(stall)]
    assert examine(world).ok, "it ends by itself"
    world.pass_time(600_000)
    assert not find_stalls(world)


def test_empty_batch_says_that_no_sequencer_answers() -> None:
    world, consumer, messages = deliver({0: 2})
    world.publish({0: 1})
    world.holds_letters = True
    consumer.ack(messages)
    assert not any("No sequencer" in reason for reason in consumer.poll(timeout_ms=500).waits_for)
    world.pass_time(5_000)
    (reason,) = consumer.poll(timeout_ms=500).waits_for
    assert re.match(r"No sequencer has answered this consumer for [5-9] s", reason)
    assert reason.endswith("Start one with `lakemq serve`.")
    world.holds_letters = False
    world.deliver()
    assert [message.offset for message in take_messages(consumer, 1)] == [2]
    assert consumer.poll(timeout_ms=5_000).waits_for == []
