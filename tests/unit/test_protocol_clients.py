"""Clients and their turns, letters, and time."""

import pytest
from protocol_harness import HOUR_MS, Harness

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import ClientEnded, InvalidRequest, Refusal
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.rules.clients import Turn, find_turn
from lakemq.engine.protocol.rules.timers import Time
from lakemq.engine.protocol.values.decision import Limits
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic


@pytest.fixture
def mq() -> Harness:
    return Harness()


# -- turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "waited_ms", "turn"),
    [
        (1, 0, Turn.REPEAT),
        (3, 0, Turn.REPEAT),
        (3, 10**9, Turn.REPEAT),
        (4, 0, Turn.DECIDE),
        (4, 10**9, Turn.DECIDE),
        (5, 0, Turn.WAIT),
        (5, 100, Turn.WAIT),
        (5, 101, Turn.REFUSE),
        (10**9, 101, Turn.REFUSE),
    ],
)
def test_number_of_a_letter_decides_its_turn(mq: Harness, number: int, waited_ms: int, turn: Turn) -> None:
    for n in (1, 2, 3):
        mq.ask(client="c", number=n)
    assert find_turn(mq.state, "c", number, waited_ms, 100) is turn


def test_first_letter_of_a_client_has_number_one(mq: Harness) -> None:
    assert find_turn(mq.state, "new", 1, 0, 100) is Turn.DECIDE
    assert find_turn(mq.state, "new", 2, 0, 100) is Turn.WAIT


# -- letters ------------------------------------------------------------------------------------------------


def test_every_decision_names_the_letter_that_asked(mq: Harness) -> None:
    mq.ask(InitProducer(), CreateTopic("t", 1), client="c", number=1)
    assert [(entry.record.kind, entry.request_id) for entry in mq.steps[-1].entries] == [
        ("producer_initialized", "c/1"),
        ("topic_created", "c/1"),
        ("answered", "c/1"),
    ]


def test_letter_after_an_unreadable_one_is_decided(mq: Harness) -> None:
    machine.begin_step(mq.state, 5)
    entries = machine.refuse_letter(mq.state, "c", 1, InvalidRequest("unreadable"))
    assert [entry.record.kind for entry in entries] == ["answered"]
    assert mq.state.clients["c"].results == [Refusal("INVALID_REQUEST", "unreadable")]
    assert find_turn(mq.state, "c", 2, 0, 0) is Turn.DECIDE


def test_client_that_left_a_gap_is_refused_from_then_on(mq: Harness) -> None:
    mq.ask(client="c", number=1)
    machine.begin_step(mq.state, 5)
    entries = machine.refuse_letter(mq.state, "c", 3, ClientEnded("A letter before this one never came."))
    assert [entry.record.kind for entry in entries] == ["answered", "client_removed"]
    assert [find_turn(mq.state, "c", n, 101, 100) for n in (2, 3, 4)] == [Turn.REFUSE] * 3


# -- time ---------------------------------------------------------------------------------------------------


def test_a_silent_client_is_forgotten_and_not_before_its_time(mq: Harness) -> None:
    mq.ask(client="c")
    mq.now_ms += HOUR_MS
    assert mq.expire() == []
    mq.now_ms += 1
    assert mq.expire() == ["client_removed"]
    assert mq.state.clients == {}


def test_client_that_sends_in_the_step_does_not_expire(mq: Harness) -> None:
    """Otherwise an answer that was sent would be forgotten, and a repeat of its letter decided again."""
    mq.create("t")
    mq.ask(InitProducer(), client="early", number=1)
    mq.ask(client="late", number=1)
    mq.now_ms += HOUR_MS + 1
    time = Time(mq.now_ms, limits=Limits(HOUR_MS, HOUR_MS))
    due = machine.find_due(mq.state, time)
    assert {key for _, key in due} == {"early", "late", "client-1", 0}
    mq.ask(mq.produce({0: 1}, producer=(0, 0)), client="early", number=2)
    folded = machine.decide_timers(mq.state, due, time)
    assert "early" in mq.state.clients
    assert 0 in mq.state.producers
    assert "late" not in mq.state.clients
    assert {entry.record.subject for entry in folded} == {"late", "client-1"}


def test_lease_keeps_others_out_until_it_ends_or_is_given_back() -> None:
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
