"""Retries of a request.

An attempt without an answer leaves its outcome unknown: the sequencer may have decided it, or may still decide it. A
later attempt clears this up only if its own answer says what became of the earlier ones. An attempt that never reached
the mailbox says nothing about them. So `ask_with_retries` remembers the first attempt without an answer, and raises
RequestTimedOut ("the outcome is unknown") unless a conclusive answer follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...namespace.processes.clock import Clock
from ...protocol.errors import (
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

NO_EFFECT = (MailboxFullError, StorageError, ClientEnded, IllegalState)
"""Errors after which the attempt is known to have had no effect, now or later.

The letter was not stored (MailboxFullError, StorageError, or IllegalState of a closed connection), or the sequencer
refused it (ClientEnded unread, IllegalState as its answer). Such an error says nothing about earlier attempts.
"""

NEVER_PUBLISHED = (StaleTopicMetadata, StaleApplicationVersion, TransactionAbortable)
"""Errors which prove that no attempt of a publish has become or will become visible.

If an earlier attempt had been accepted, its repeat would be answered as a duplicate, not refused. If an earlier one is
still in the mailbox, it carries the same stale metadata or version and will be refused, too. After
TransactionAbortable the transaction can only be aborted.
"""

PAUSE_MS = 50
"""Pause after an attempt that had no effect."""

R = TypeVar("R")


def ask_with_retries(
    ask: Callable[[], R], clock: Clock, deadline_ms: int, conclusive: tuple[type[LakeMQError], ...] = (LakeMQError,)
) -> R:
    """Call `ask` until it is answered or the deadline is over, and return its result.

    Args:
        ask: sends the request and waits for the answer. A repeat must be harmless.
        clock: for the deadline, and for pauses.
        deadline_ms: time of the steady clock after which no further attempt is made.
        conclusive: errors of a repeat that also say what became of the attempts before it.

    Raises:
        RequestTimedOut: an attempt was not answered, and no later answer was conclusive: the outcome is unknown.
        LakeMQError: what `ask` raises.
    """
    in_doubt: RequestTimedOut | None = None
    begun_ms, unanswered_count = clock.steady_ms(), 0
    while True:
        last: LakeMQError | None = None  # the error of this attempt, if the attempt had no effect
        try:
            return ask()
        except RequestTimedOut as unanswered:
            in_doubt, unanswered_count = unanswered, unanswered_count + 1
        except NO_EFFECT as error:
            last = error
            # after ClientEnded the requester starts over as a new client, so the next attempt arrives
            if in_doubt is None and not isinstance(error, ClientEnded):
                raise
        except LakeMQError as error:
            if in_doubt is None or isinstance(error, conclusive):
                raise
            raise _unknown_outcome_error(in_doubt, error) from error
        now_ms = clock.steady_ms()
        if in_doubt is not None and last is None and unanswered_count > 1 and now_ms >= deadline_ms:
            # the detail names the time of one attempt, but the caller has waited for all of them
            total = f"The request was sent {unanswered_count} times in {(now_ms - begun_ms) / 1000:.0f} s."
            raise RequestTimedOut(f"{in_doubt.detail} {total}") from in_doubt
        pause_ms = 0 if last is None else PAUSE_MS
        if now_ms + pause_ms >= deadline_ms or isinstance(last, IllegalState):  # closed meanwhile
            raise _unknown_outcome_error(in_doubt, last) from last
        clock.sleep(pause_ms)


def _unknown_outcome_error(in_doubt: RequestTimedOut | None, last: LakeMQError | None) -> LakeMQError:
    if in_doubt is not None and last is not None:
        return RequestTimedOut(f"{in_doubt.detail} The last attempt does not clear this up: {last}")
    error = in_doubt or last
    assert error is not None
    return error
