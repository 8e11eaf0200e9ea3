"""The lease: taken, kept and given back. Renewing it changes nothing else."""

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.values.state import State


def test_lease_is_taken_kept_and_given_back() -> None:
    state = State()
    assert clients.may_lead(state, "a", 0)
    machine.fold(state, [clients.decide_take_over(state, "a", 500)])
    assert (state.leader, state.leader_epoch, state.lease_ms) == ("a", 1, 500)
    assert not clients.may_lead(state, "b", 500)
    assert clients.may_lead(state, "b", 501)
    assert clients.may_lead(state, "a", 0)
    machine.fold(state, [clients.decide_renew(state)])
    assert (state.leader, state.leader_epoch) == ("a", 1)
    machine.fold(state, [clients.decide_take_over(state, "b", 700)])
    assert (state.leader, state.leader_epoch, state.lease_ms) == ("b", 2, 700)
    machine.fold(state, [clients.decide_resign(state)])
    assert clients.may_lead(state, "a", 0)
    assert state.leader_epoch == 2
