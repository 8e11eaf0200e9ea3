"""Asking again: an attempt that nobody answered leaves a doubt, which one that never arrived does not take away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..namespace.clock import Clock
from ..protocol.errors import (
    ClientEnded,
    IllegalState,
    LakeMQError,
    MailboxFullError,
    RequestTimedOut,
    StaleApplicationVersion,
    StaleTopicMetadata,
    StorageError,
    TransactionAbortable,
)

NOT_DECIDED = (MailboxFullError, StorageError, ClientEnded, IllegalState)
"""What an attempt fails with of which nothing was decided, nor will be: it says nothing of the attempt before."""

NEVER_PUBLISHED = (StaleTopicMetadata, StaleApplicationVersion, TransactionAbortable)
"""What refuses all attempts of a publish: one that was accepted would be answered, one still to come is as stale; or
belongs to a transaction that can only be aborted, so that nobody will see it.
"""

PAUSE_MS = 50
"""Between an attempt of which nothing was decided and the next."""

R = TypeVar("R")


def until_answered(
    ask: Callable[[], R], clock: Clock, deadline_ms: int, telling: tuple[type[LakeMQError], ...] = (LakeMQError,)
) -> R:
    """What `ask` returns. It is called again while nobody answers and time is left, so its repeat must be harmless.

    deadline_ms: by the steady clock; telling: errors of a repeat that say what became of the attempts before it.
    Raises what `ask` raises; RequestTimedOut, whatever the last attempt failed with, when an attempt before it was not
    answered and nothing has told of it since: the outcome is unknown.
    """
    in_doubt: RequestTimedOut | None = None
    while True:
        last: LakeMQError | None = None
        try:
            return ask()
        except RequestTimedOut as unanswered:
            in_doubt = unanswered
        except NOT_DECIDED as error:
            last = error
            if in_doubt is None and not isinstance(error, ClientEnded):  # which starts over: the next one arrives
                raise
        except LakeMQError as error:
            if in_doubt is None or isinstance(error, telling):
                raise
            raise _outcome(in_doubt, error) from error
        if clock.steady_ms() >= deadline_ms or isinstance(last, IllegalState):  # closed meanwhile
            raise _outcome(in_doubt, last) from last
        if last is not None:
            clock.sleep(PAUSE_MS)


def _outcome(in_doubt: RequestTimedOut | None, last: LakeMQError | None) -> LakeMQError:
    if in_doubt is not None and last is not None:
        return RequestTimedOut(f"{in_doubt.detail} The last attempt says nothing of it: {last}")
    found = in_doubt or last
    assert found is not None
    return found
