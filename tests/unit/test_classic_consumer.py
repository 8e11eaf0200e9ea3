"""Consumers in a classic group: all members give up all partitions, and then get theirs again."""

import time
from typing import Any

import pytest
from unit.consuming import RecordingListener, add, list_partitions, new_group, texts
from unit.served import new_topic, until
from unit.test_group_consumer import member, settle

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.errors import UnknownMemberId

pytestmark = pytest.mark.slow


def start_two_members(mq: Connection, partitions: int, **options: Any) -> tuple[str, str, GroupConsumer, GroupConsumer]:
    """Start two members that share a new topic evenly."""
    topic, group = new_topic(mq, partitions), new_group(mq, "classic")
    first, second = member(mq, group, topic, "classic", **options), member(mq, group, topic, "classic", **options)
    settle(first, second, on=lambda: len(list_partitions(first)) == len(list_partitions(second)) == partitions // 2)
    return topic, group, first, second


# -- changing hands -----------------------------------------------------------------------------------------


def test_members_give_up_all_partitions_before_they_get_theirs(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_group(mq, "classic")
    first_listener, second_listener = RecordingListener(), RecordingListener()
    first = member(mq, group, topic, "classic", listener=first_listener)
    settle(first, on=lambda: len(list_partitions(first)) == 4)
    second = member(mq, group, topic, "classic", listener=second_listener)
    settle(first, second, on=lambda: len(list_partitions(first)) == len(list_partitions(second)) == 2)
    assert mq.groups.describe(group).generation == 2
    first_owned, second_owned = list_partitions(first), list_partitions(second)
    assert sorted(first_owned + second_owned) == [0, 1, 2, 3]
    second.close()
    settle(first, on=lambda: len(list_partitions(first)) == 4)
    assert mq.groups.describe(group).generation == 3
    first.close()
    assert first_listener.events == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [0, 1, 2, 3]),
        ("assigned", first_owned),
        ("revoked", first_owned),
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]
    assert second_listener.events == [("assigned", second_owned), ("revoked", second_owned)]


def test_rebalance_waits_for_a_working_member_and_names_it(mq: Connection) -> None:
    topic, group, first, second = start_two_members(mq, 2)
    add(mq, topic, {0: 1, 1: 1})
    assert first.poll(timeout_ms=5_000)
    before = mq.groups.describe(group).generation  # 1 or 2, depending on whether they joined at once
    third = member(mq, group, topic, "classic")
    settle(second, third, on=lambda: list_partitions(second) == [])
    add(mq, topic, {0: 1, 1: 1}, "later ")
    for _ in range(20):
        assert not second.poll()
        assert not third.poll()
    described = mq.groups.describe(group)
    assert (described.state, [stall.member_id for stall in described.stalls]) == (
        "PreparingRebalance",
        [first.member_id],
    )
    settle(first, second, third, on=lambda: mq.groups.describe(group).state == "Stable")
    assert mq.groups.describe(group).waits_for == []
    assert mq.groups.describe(group).generation == before + 1
    for consumer in (first, second, third):
        consumer.close()


def test_slow_member_stops_the_group_until_its_poll_interval_ends(mq: Connection) -> None:
    """The others stand still meanwhile. The slow member learns that its messages do not count."""
    topic, group, listener = new_topic(mq, 2), new_group(mq, "classic"), RecordingListener()
    options = {"heartbeat_interval_ms": 100, "max_poll_interval_ms": 1_500}
    slow = member(mq, group, topic, "classic", listener=listener, **options)
    add(mq, topic, {0: 1, 1: 1})
    batch = slow.poll(timeout_ms=5_000)
    polled_s = time.monotonic()
    quick = member(mq, group, topic, "classic", **options)
    assert texts(quick.poll(timeout_ms=8_000)) == ["0.0", "1.0"]
    assert time.monotonic() - polled_s > 1.5
    with pytest.raises(UnknownMemberId):
        slow.commit(batch)
    settle(slow, quick, on=lambda: list_partitions(slow) == [0] or list_partitions(slow) == [1])
    assert listener.events[:2] == [("assigned", [0, 1]), ("lost", [0, 1])]
    slow.close()
    quick.close()


# -- static members -----------------------------------------------------------------------------------------


def test_rebalance_does_not_wait_for_a_static_member_that_closed(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_group(mq, "classic")
    first = member(mq, group, topic, "classic", instance_id="one")
    settle(first, on=lambda: list_partitions(first) == [0, 1])
    second = member(mq, group, topic, "classic")
    until(lambda: mq.groups.describe(group).state == "PreparingRebalance")
    first.close()
    settle(second, on=lambda: len(list_partitions(second)) == 1)
    assert mq.groups.describe(group).members == 2
    second.close()
