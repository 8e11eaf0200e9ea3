"""Topics: created, altered, deleted and truncated, with every refusal."""

from __future__ import annotations

from typing import Any

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, TopicDone


@pytest.fixture
def mq() -> Harness:
    return Harness()


def test_a_new_topic_is_empty_and_has_its_own_id(mq: Harness) -> None:
    assert mq.one(CreateTopic("a", 3, {"retention.ms": "5"}, ["x/>"])) == TopicDone(1, 3)
    assert mq.one(CreateTopic("b", 1)) == TopicDone(2, 1)
    topic = mq.state.topic("a")
    assert (topic.high_watermarks.tolist(), topic.log_starts.tolist()) == ([0, 0, 0], [0, 0, 0])
    assert (topic.config, topic.subscriptions) == ({"retention.ms": 5}, ["x/>"])
    assert topic.setting("retention.ms") == 5
    assert topic.setting("partitioner") == "xxhash64"
    assert mq.state.subscribers == {"a": ["x/>"]}, "of those that have any"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CreateTopic("", 1), "INVALID_TOPIC_EXCEPTION"),
        (CreateTopic("../x", 1), "INVALID_TOPIC_EXCEPTION"),
        (CreateTopic("x" * 250, 1), "INVALID_TOPIC_EXCEPTION"),
        (CreateTopic("a", 1), "TOPIC_ALREADY_EXISTS"),
        (CreateTopic("b_c", 1), "INVALID_TOPIC_EXCEPTION"),
        (CreateTopic("n", 0), "INVALID_PARTITIONS"),
        (CreateTopic("n", -(2**70)), "INVALID_PARTITIONS"),
        (CreateTopic("n", 100_001), "INVALID_PARTITIONS"),
        (CreateTopic("n", 1, {"retention": 1}), "INVALID_CONFIG"),
        (CreateTopic("n", 1, {"retention.ms": "x"}), "INVALID_CONFIG"),
        (CreateTopic("n", 1, {"cleanup.policy": "compact"}), "INVALID_CONFIG"),
        (CreateTopic("n", 1, {}, ["x/>/y"]), "INVALID_TOPIC_EXCEPTION"),
        (AlterTopic("nobody"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (AlterTopic("gone"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (AlterTopic("a", {}, 2), "INVALID_PARTITIONS"),
        (AlterTopic("a", {}, 100_001), "INVALID_PARTITIONS"),
        (AlterTopic("a", {"colour": None}), "INVALID_CONFIG"),
        (AlterTopic("a", {"retention.ms": -2}), "INVALID_CONFIG"),
        (AlterTopic("a", {"partitioner": "murmur2"}), "INVALID_CONFIG"),
        (AlterTopic("kafka", {"partitioner": None}), "INVALID_CONFIG"),
        (AlterTopic("a", {}, None, [""]), "INVALID_TOPIC_EXCEPTION"),
        (DeleteTopic("nobody"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteTopic("gone"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteTopic("x" * 100_000), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteRecords("nobody", {0: 0}), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteRecords("a", {3: 0}), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteRecords("a", {-1: 0}), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteRecords("a", {0: 1, 1: 1}), "OFFSET_OUT_OF_RANGE"),
        (DeleteRecords("a", {0: -2}), "OFFSET_OUT_OF_RANGE"),
        (DeleteRecords("a", {0: 2**70}), "OFFSET_OUT_OF_RANGE"),
        (InitProducer(""), "INVALID_REQUEST"),
        (InitProducer("etl", 0), "INVALID_TRANSACTION_TIMEOUT"),
    ],
)
def test_a_refusal_changes_nothing(mq: Harness, request_: Any, error: str) -> None:
    mq.create("a", 3)
    mq.create("b.c")
    mq.create("gone")
    mq.create("kafka", config={"partitioner": "murmur2"})
    mq.one(DeleteTopic("gone"))
    mq.one(mq.produce({0: 1}, "a"))
    refusal = mq.refused(request_)
    assert refusal.error == error
    assert len(str(refusal)) < 3000


def test_alter_sets_resets_and_adds_partitions(mq: Harness) -> None:
    mq.create("a", 2, config={"retention.ms": 5, "max.message.bytes": 10}, subscriptions=["x"])
    mq.one(mq.produce({0: 4, 1: 2}, "a"))
    altered = AlterTopic("a", {"retention.ms": None, "retention.bytes": "7"}, 4)
    assert mq.one(altered) == TopicDone(1, 4)
    topic = mq.state.topic("a")
    assert topic.config == {"max.message.bytes": 10, "retention.bytes": 7}
    assert topic.high_watermarks.tolist() == [4, 2, 0, 0]
    assert topic.subscriptions == ["x"]
    mq.one(AlterTopic("a", {"partitioner": "xxhash64"}, None, []))
    assert mq.state.topic("a").subscriptions == []
    assert mq.state.topic("a").setting("partitioner") == "xxhash64"


def test_a_name_can_be_used_again_and_is_another_topic(mq: Harness) -> None:
    assert mq.create("a", 2) == 1
    mq.one(mq.produce({1: 3}, "a"))
    assert mq.one(DeleteTopic("a")) == Done()
    assert mq.create("a", 1) == 2
    assert mq.state.topic("a").high_watermarks.tolist() == [0]
    assert list(mq.state.topics) == [2]


def test_a_name_that_clashed_is_free_when_the_other_topic_is_gone(mq: Harness) -> None:
    mq.create("a.b")
    mq.one(DeleteTopic("a.b"))
    mq.create("a_b")


def test_records_are_deleted_up_to_an_offset_and_never_come_back(mq: Harness) -> None:
    mq.create("a", 2)
    mq.one(mq.produce({0: 5, 1: 3}, "a"))
    assert mq.one(DeleteRecords("a", {0: 2, 1: -1})) == Done()
    assert mq.state.topic("a").log_starts.tolist() == [2, 3]
    before = len(mq.steps[-1].entries)
    assert mq.one(DeleteRecords("a", {0: 1, 1: 0})) == Done()
    assert mq.state.topic("a").log_starts.tolist() == [2, 3]
    assert before == 2
    assert [entry.record.kind for entry in mq.steps[-1].entries] == ["answered"]


def test_requests_of_a_letter_are_decided_in_order_each_on_its_own(mq: Harness) -> None:
    results = mq.ask(DeleteTopic("a"), CreateTopic("a", 1), CreateTopic("a", 2), DeleteTopic("a"), CreateTopic("a", 2))
    shown = [getattr(r, "error", None) or type(r).__name__ for r in results]
    expected = ["UNKNOWN_TOPIC_OR_PARTITION", "TopicDone", "TOPIC_ALREADY_EXISTS", "Done", "TopicDone"]
    assert shown == expected
    assert mq.state.topic("a").partition_count == 2


# -- stale routes -------------------------------------------------------------------------------------------


def publish_after(mq: Harness, *changes: Any) -> str:
    """Return the outcome of a publish to `a` whose client knew the topics before the changes."""
    request = mq.produce({0: 1}, "a")
    for change in changes:
        mq.one(change)
    result = mq.one(request)
    return getattr(result, "error", "published")


def test_without_subscriptions_other_topics_concern_nobody(mq: Harness) -> None:
    mq.create("a")
    mq.create("b")
    assert publish_after(mq, CreateTopic("c", 1), AlterTopic("b", {"retention.ms": 1}), DeleteTopic("b")) == "published"


@pytest.mark.parametrize(
    "changes",
    [
        (AlterTopic("a", {}, 2),),
        (AlterTopic("a", {"max.message.bytes": 10}),),
        (DeleteTopic("a"),),
        (DeleteTopic("a"), CreateTopic("a", 1)),
        (CreateTopic("c", 1, {}, ["a"]),),
        (AlterTopic("b", {}, None, ["a"]),),
        (AlterTopic("b", {}, None, [">"]), AlterTopic("b", {}, None, [])),
    ],
)
def test_a_route_that_may_have_changed_is_stale(mq: Harness, changes: tuple[Any, ...]) -> None:
    mq.create("a")
    mq.create("b")
    assert publish_after(mq, *changes) == "STALE_TOPIC_METADATA"


def test_the_last_subscription_going_away_is_a_change(mq: Harness) -> None:
    mq.create("a", subscriptions=["x"])
    assert publish_after(mq, AlterTopic("a", {}, None, [])) == "STALE_TOPIC_METADATA"


def test_a_new_topic_is_a_destination_others_may_have_reached_by_subscription(mq: Harness) -> None:
    mq.create("a", subscriptions=["x"])
    assert publish_after(mq, CreateTopic("x", 1)) == "STALE_TOPIC_METADATA"


def test_settings_alone_leave_routes_as_they_are(mq: Harness) -> None:
    mq.create("a", subscriptions=["x"])
    assert publish_after(mq, AlterTopic("a", {"retention.ms": 1}, None, ["x"])) == "published"
