"""Groups that are at rest cost a step nothing, however many there are."""

from typing import Any, NoReturn

import pytest
from protocol_harness import Harness
from protocol_reader import FollowedViews

from lakemq.engine.client.consume import membership_view
from lakemq.engine.client.consume.membership_view import ViewBuilder
from lakemq.engine.client.fetch.plan import Bounds, read_bounds
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.rules.reconciling import find_groups_without_target
from lakemq.engine.protocol.rules.timers import Time
from lakemq.engine.protocol.values.assignments import Group
from lakemq.engine.protocol.values.deliveries import Acknowledge, Acknowledgement, AckOutcome, Acquire, WantedMessages
from lakemq.engine.protocol.values.groups import (
    Assigned,
    ConfigureGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
    TargetSet,
)
from lakemq.engine.protocol.values.state import KEPT_CHANGES
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic
from lakemq.engine.protocol.values.transactions import EndTransaction


class NameOnlyDict(dict[str, Group]):
    """A dict of groups that allows access by name only."""

    def _fail(self, *_: Any) -> NoReturn:
        raise AssertionError("a step looked through all groups")

    __iter__ = values = items = keys = _fail  # type: ignore[assignment]


def _join(group: str, member: str) -> JoinGroup:
    return JoinGroup(group, member, ["t"], None, None, 6_000, 10_000, "earliest", {"group.protocol": "cooperative"})


def test_no_step_iterates_over_all_groups() -> None:
    mq = Harness()
    mq.create("t", 2)
    for n in range(3):
        mq.one(ConfigureGroup(f"idle-{n}", {}, create=True))
    mq.state.groups = NameOnlyDict(mq.state.groups)
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


def test_changed_topic_touches_only_groups_that_read_it() -> None:
    mq = Harness()
    mq.create("t", 1)
    mq.create("u", 1)
    mq.one(_join("g", "C1"))
    mq.one(ConfigureGroup("idle", {}, create=True))
    mq.one(AlterTopic("t", partitions=2))
    assert mq.state.touched_groups == {"g"}
    assert len(mq.state.groups["g"].assignments) == 2
    mq.one(DeleteTopic("u"))
    assert mq.state.touched_groups == set()
    mq.one(LeaveGroup("g", ["C1"]))
    mq.one(DeleteTopic("t"))
    assert mq.state.touched_groups == {"g"}
    assert not mq.state.groups["g"].assignments


def test_join_moves_only_the_share_of_the_new_member() -> None:
    """The work of one step is bounded by the partitions that move, not by those that wait."""
    mq, partitions, members = Harness(), 600, 20
    mq.create("t", partitions)
    for n in range(members):
        mq.one(_join("g", f"C{n}"))
        begun = len(mq.steps)
        mq.assign()
        targets = [
            entry.record for step in mq.steps[begun:] for entry in step.entries if isinstance(entry.record, TargetSet)
        ]
        changed = sum(len(topic_partitions) for target in targets for topic_partitions in target.changed.values())
        assert changed <= partitions // (n + 1) + n, "no more than the new one's share"
        mq.now_ms += 1
    group = mq.state.groups["g"]
    assert len(group.paused) == partitions - partitions // members
    assert sum(group.pauses.values()) == len(group.paused)
    assert len(list(machine.find_watched_waits(mq.state))) < members
    released = [Assigned(*tp, group.assignments[tp].epoch) for tp in sorted(group.paused)]
    mq.one(ReleasePartitions("g", "C0", released))
    assert group.is_settled
    assert not group.pauses


def test_member_reads_bounds_of_its_own_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member looks at each poll, and a topic may have thousands of partitions of other members."""
    mq, looked_at = Harness(), list[Bounds]()
    mq.create("t", 30)
    mq.one(mq.produce({partition: 1 + partition for partition in range(30)}))
    for member in ("C1", "C2", "C3"):
        mq.one(_join("g", member))
    mq.assign()

    def note_bounds(*arguments: Any) -> list[Bounds]:
        bounds = read_bounds(*arguments)
        looked_at.extend(bounds)
        return bounds

    monkeypatch.setattr(membership_view, "read_bounds", note_bounds)
    owned = ViewBuilder("g", "read_committed").build("C2", None, mq.state).owned
    assert len(owned) == len(looked_at) == 10
    everything = read_bounds(mq.state.topic("t"), "read_committed")
    assert all(assigned.bounds == everything[partition] for (_, partition), assigned in owned.items())


@pytest.mark.extended
def test_member_builds_again_only_the_partitions_that_a_step_has_changed() -> None:
    """A member looks after each step, and may have a thousand partitions."""
    mq, views = Harness(), FollowedViews("q", ["C1"])
    mq.create("t", 800)
    mq.create("other", 1)
    transaction = mq.begin("tx")
    config = {"group.protocol": "queue", "max.handoff.ms": 0}
    mq.one(JoinGroup("q", "C1", ["t"], None, None, 6_000, 10_000, "earliest", config))
    mq.assign()
    views.check(mq.steps)
    topic_id, before = mq.state.topic_ids["t"], views.last["C1"]
    epoch = mq.state.groups["q"].assignments[topic_id, 5].epoch
    for request, built_count in (
        (mq.produce({0: 1}, "other"), 0),
        (CreateTopic("new", 3), 0),
        (mq.produce({5: 3, 6: 1}), 2),
        (Acquire("q", "C1", [WantedMessages(topic_id, 5, epoch, 2)]), 1),
        (Acknowledge("q", "C1", [Acknowledgement(topic_id, 5, epoch, AckOutcome.ACK, [(0, 1)])]), 1),
        (Acknowledge("q", "C1", [Acknowledgement(topic_id, 5, epoch, AckOutcome.NACK, [(1, 1)])]), 1),
        (DeleteRecords("t", {6: 1}), 1),
        (mq.produce({7: 2}, transaction=transaction), 1),
        (EndTransaction(transaction, False, 1), 1),
        (ConfigureGroup("q", {"isolation.level": "read_uncommitted"}), 800),
        (JoinGroup("q", "C2", ["t"], None, None, 6_000, 10_000, "earliest", {}), 400),
    ):
        assert not isinstance(mq.one(request), Refusal)
        mq.assign()
        views.check(mq.steps)
        after = views.last["C1"]
        assert sum(owned is not before.owned[tp] for tp, owned in after.owned.items()) == built_count, request
        assert (after.owned is before.owned) == (built_count == 0)
        before = after
    # what a reader no longer knows is built again, and no more is kept of topics and groups that are gone
    behind = ViewBuilder("q", "read_committed")
    behind.build("C1", None, views.state)
    for number in range(KEPT_CHANGES + 1):
        mq.one(mq.produce({number: 1}))
        mq.one(DeleteTopic("new") if "new" in mq.state.topic_ids else CreateTopic("new", 3))
    views.check(mq.steps)
    assert behind.build("C1", None, views.state) == views.last["C1"]
    assert len(views.state.recent_changes) == KEPT_CHANGES
