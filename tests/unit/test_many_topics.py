"""A namespace may have very many topics and groups at rest: a request for one costs nothing for each of the others."""

from collections.abc import Iterator
from typing import Any

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rules.reconciling import find_groups_without_target
from lakemq.engine.protocol.rules.timers import Time
from lakemq.engine.protocol.values.groups import Assigned, ConfigureGroup, JoinGroup, LeaveGroup, ReleasePartitions
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic

BY_TOPIC = ("topics", "topic_ids", "unified_names")


class LookupOnlyDict(dict[Any, Any]):
    """A dict that allows lookups, but neither iteration nor copies."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("somebody goes through all topics or groups")

    keys = values = items = copy = __or__ = __iter__  # type: ignore[assignment]


@pytest.fixture
def mq() -> Harness:
    mq = Harness()
    mq.ask(*(CreateTopic(f"topic-{i}", 2) for i in range(20)))
    for name in BY_TOPIC:
        setattr(mq.state, name, LookupOnlyDict(getattr(mq.state, name)))
    return mq


def test_no_request_iterates_over_all_topics(mq: Harness) -> None:
    mq.create("t", 2)
    for request in (
        mq.produce({0: 2, 1: 1}),
        CreateTopic("other", 3, subscriptions=["x/>"]),
        AlterTopic("t", {"retention.ms": 5}, 4, ["y/*"]),
        AlterTopic("t", subscriptions=[]),
        DeleteRecords("t", {0: 1}),
        DeleteTopic("other"),
        CreateTopic("topic.1", 1),
    ):
        result = mq.one(request)
        assert not isinstance(result, Refusal), result
    clash = mq.one(CreateTopic("topic_1", 1))
    assert isinstance(clash, Refusal)
    assert clash.expected == "not to clash with 'topic.1'"
    assert mq.state.subscribers == {}, "of those that are there and have any"


def _join(group: str, member: str) -> JoinGroup:
    return JoinGroup(group, member, ["t"], None, None, 6_000, 10_000, "earliest", {"group.protocol": "cooperative"})


def test_no_step_iterates_over_all_groups() -> None:
    mq = Harness()
    mq.create("t", 2)
    for n in range(3):
        mq.one(ConfigureGroup(f"idle-{n}", {}, create=True))
    mq.state.groups = LookupOnlyDict(mq.state.groups)
    mq.one(_join("g", "C1"))
    assert [group_state.group for group_state in find_groups_without_target(mq.state)] == ["g"]
    mq.assign()
    mq.one(_join("g", "C2"))
    mq.assign()
    paused = sorted(mq.state.groups["g"].paused)
    assert len(paused) == 1
    mq.one(ReleasePartitions("g", "C1", [Assigned(*p, mq.state.groups["g"].assignments[p].epoch) for p in paused]))
    mq.one(LeaveGroup("g", ["C2"]))
    mq.assign()
    mq.one(CreateTopic("another", 1))
    mq.now_ms += 1
    assert machine.find_due(mq.state, Time(mq.now_ms, mq.now_ms), with_expiries=False) == []
    assert (mq.state.groups_with_members, mq.state.waiting_groups) == ({"g"}, set())
