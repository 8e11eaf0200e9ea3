"""Groups that are at rest cost a step nothing, however many there are."""

from typing import Any, NoReturn

from protocol_harness import Harness

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.rules.reconciling import find_groups_without_target
from lakemq.engine.protocol.rules.timers import Time
from lakemq.engine.protocol.values.assignments import Group
from lakemq.engine.protocol.values.groups import (
    Assigned,
    ConfigureGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from lakemq.engine.protocol.values.topics import CreateTopic


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
