"""Repeated attempts: once an attempt got no answer, no error claims that nothing was sent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from clocks import ManualClock

from lakemq.engine.client.requests.attempts import NEVER_PUBLISHED, ask_with_retries
from lakemq.engine.protocol.errors import (
    ClientEnded,
    IllegalState,
    InvalidTopic,
    LakeMQError,
    MailboxFullError,
    RequestTimedOut,
    StaleTopicMetadata,
    StorageError,
    TransactionAbortable,
)

UNSENT_ERRORS = [MailboxFullError("full"), StorageError("no space")]


class Clock(ManualClock):
    """A clock on which each attempt takes a second."""

    def __init__(self, outcomes: Iterable[Any]) -> None:
        super().__init__()
        self.ms, self.outcomes = 0, iter(outcomes)

    def now_ms(self) -> int:
        raise AssertionError("may jump")

    def ask(self) -> Any:
        self.ms += 1_000
        outcome = next(self.outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def ask_repeatedly(*outcomes: Any, deadline_ms: int = 100_000) -> Any:
    clock = Clock(outcomes)
    try:
        return ask_with_retries(clock.ask, clock, deadline_ms)
    except LakeMQError as error:
        return error


def test_an_answer_is_an_answer():
    assert ask_repeatedly(7) == 7
    assert ask_repeatedly(RequestTimedOut(), RequestTimedOut(), 7) == 7
    refused = InvalidTopic()
    assert ask_repeatedly(refused) is refused
    assert ask_repeatedly(RequestTimedOut(), refused) is refused


def test_an_error_that_tells_nothing_of_the_attempt_before_is_not_told_as_the_outcome():
    """The producer id of the repeat has expired. The attempt before it may have been decided."""
    clock = Clock([RequestTimedOut("Who knows."), InvalidTopic("gone")])
    with pytest.raises(RequestTimedOut, match=r"Who knows\..*INVALID_TOPIC"):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))
    clock = Clock([RequestTimedOut(), StaleTopicMetadata("anew")])
    with pytest.raises(StaleTopicMetadata):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))


def test_a_transaction_that_can_only_be_aborted_tells_of_all_attempts():
    clock = Clock([RequestTimedOut(), TransactionAbortable("open for too long")])
    with pytest.raises(TransactionAbortable):
        ask_with_retries(clock.ask, clock, 100_000, NEVER_PUBLISHED)


@pytest.mark.parametrize("unsent", UNSENT_ERRORS)
def test_what_was_never_sent_is_told_at_once(unsent: LakeMQError):
    assert ask_repeatedly(unsent, 7) is unsent


@pytest.mark.parametrize("unsent", UNSENT_ERRORS)
def test_an_attempt_that_was_not_sent_says_nothing_of_the_one_before(unsent: LakeMQError):
    assert ask_repeatedly(RequestTimedOut("Who knows."), unsent, unsent, 7) == 7
    error = ask_repeatedly(RequestTimedOut("Who knows."), *[unsent] * 4, deadline_ms=5_000)
    assert type(error) is RequestTimedOut
    assert error.detail == f"Who knows. The last attempt does not clear this up: {unsent}"


def test_the_deadline_ends_it():
    assert type(ask_repeatedly(*[RequestTimedOut()] * 3, deadline_ms=2_500)) is RequestTimedOut


def test_who_asked_again_is_told_for_how_long() -> None:
    """The error of the last attempt alone would name only a quarter of the time that the caller has waited."""
    error = ask_repeatedly(*[RequestTimedOut("No answer in 1000 ms.")] * 3, deadline_ms=2_500)
    assert re.search(r"No answer in 1000 ms\. The request was sent 3 times in 3 s\.", str(error))
    once = ask_repeatedly(RequestTimedOut("No answer in 1000 ms."), deadline_ms=500)
    assert "The request was sent" not in str(once)


def test_a_client_that_ended_starts_over():
    assert ask_repeatedly(ClientEnded(), 7) == 7
    assert ask_repeatedly(RequestTimedOut(), ClientEnded(), 7) == 7
    assert type(ask_repeatedly(ClientEnded(), deadline_ms=500)) is ClientEnded


def test_a_connection_that_was_closed_meanwhile_leaves_the_doubt():
    closed = IllegalState("closed")
    assert ask_repeatedly(closed) is closed
    assert type(ask_repeatedly(RequestTimedOut(), closed)) is RequestTimedOut
