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


def test_answer_after_unanswered_attempts_is_the_outcome():
    assert ask_repeatedly(7) == 7
    assert ask_repeatedly(RequestTimedOut(), RequestTimedOut(), 7) == 7
    refused = InvalidTopic()
    assert ask_repeatedly(refused) is refused
    assert ask_repeatedly(RequestTimedOut(), refused) is refused


def test_inconclusive_error_of_a_repeat_is_not_raised_as_the_outcome():
    """The producer id of the repeat has expired. The attempt before it may have been decided."""
    clock = Clock([RequestTimedOut("Who knows."), InvalidTopic("gone")])
    with pytest.raises(RequestTimedOut, match=r"Who knows\..*INVALID_TOPIC"):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))
    clock = Clock([RequestTimedOut(), StaleTopicMetadata("anew")])
    with pytest.raises(StaleTopicMetadata):
        ask_with_retries(clock.ask, clock, 100_000, conclusive=(StaleTopicMetadata,))


def test_transaction_abortable_is_the_outcome_of_all_attempts():
    clock = Clock([RequestTimedOut(), TransactionAbortable("open for too long")])
    with pytest.raises(TransactionAbortable):
        ask_with_retries(clock.ask, clock, 100_000, NEVER_PUBLISHED)


@pytest.mark.parametrize("unsent", UNSENT_ERRORS)
def test_unsent_first_attempt_raises_at_once(unsent: LakeMQError):
    assert ask_repeatedly(unsent, 7) is unsent


@pytest.mark.parametrize("unsent", UNSENT_ERRORS)
def test_unsent_repeat_leaves_the_outcome_unknown(unsent: LakeMQError):
    assert ask_repeatedly(RequestTimedOut("Who knows."), unsent, unsent, 7) == 7
    error = ask_repeatedly(RequestTimedOut("Who knows."), *[unsent] * 4, deadline_ms=5_000)
    assert type(error) is RequestTimedOut
    assert error.detail == f"Who knows. The last attempt does not clear this up: {unsent}"


def test_attempts_end_at_the_deadline():
    assert type(ask_repeatedly(*[RequestTimedOut()] * 3, deadline_ms=2_500)) is RequestTimedOut


def test_timeout_names_the_number_of_attempts_and_their_time() -> None:
    """The error of the last attempt alone would name only a quarter of the time that the caller has waited."""
    error = ask_repeatedly(*[RequestTimedOut("No answer in 1000 ms.")] * 3, deadline_ms=2_500)
    assert re.search(r"No answer in 1000 ms\. The request was sent 3 times in 3 s\.", str(error))
    once = ask_repeatedly(RequestTimedOut("No answer in 1000 ms."), deadline_ms=500)
    assert "The request was sent" not in str(once)


def test_client_that_ended_is_asked_again():
    assert ask_repeatedly(ClientEnded(), 7) == 7
    assert ask_repeatedly(RequestTimedOut(), ClientEnded(), 7) == 7
    assert type(ask_repeatedly(ClientEnded(), deadline_ms=500)) is ClientEnded


def test_connection_closed_between_attempts_leaves_the_outcome_unknown():
    closed = IllegalState("closed")
    assert ask_repeatedly(closed) is closed
    assert type(ask_repeatedly(RequestTimedOut(), closed)) is RequestTimedOut
