"""A group with an unforeseen error stops no other group, and no step."""

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.rules import reconciling
from lakemq.engine.protocol.values.assignments import Group
from lakemq.engine.protocol.values.base import Record
from lakemq.engine.protocol.values.groups import JoinGroup, LeaveGroup
from lakemq.engine.protocol.values.state import State


def _raises_for_bad(state: State, group: Group) -> list[Record]:
    if group.group == "bad":
        raise RuntimeError("not foreseen")
    return []


def test_group_with_an_unforeseen_error_stays_and_others_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    mq = Harness()
    mq.create("t", 2)
    monkeypatch.setattr(reconciling, "SETTLING", (_raises_for_bad, *reconciling.SETTLING))
    machine.begin_step(mq.state, mq.state.now_ms)
    for name in ("bad", "good"):
        join = JoinGroup(name, "m", ["t"], None, None, 6_000, 10_000, "earliest")
        for request in (join, LeaveGroup(name, ["m"])):
            machine.fold(mq.state, list(machine.decide_request(mq.state, request).entries))
    errors: list[str] = []
    machine.decide_group_changes(mq.state, lambda name, error: errors.append(f"{name}: {error}"))
    assert errors == ["bad: not foreseen"]
    assert {name for name, group in mq.state.groups.items() if group.target_epoch == group.group_epoch} == {"good"}
