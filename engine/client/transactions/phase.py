"""The phases of a transaction in the process that runs it, and the events that change them."""

from __future__ import annotations

from enum import Enum

from ...protocol.errors import IllegalState
from ...protocol.values.transitions import Transitions


class Phase(str, Enum):
    """The phases of a transaction in the process that runs it."""

    NONE = "none"
    OPEN = "open"
    ENDING = "ending"
    """A thread commits or aborts it."""
    UNANSWERED = "unanswered"
    """A commit was sent, and no reply came."""

    def refusal(self) -> IllegalState:
        """Return the error of a call that does not fit this phase."""
        text, expected = _REFUSALS[self]
        return IllegalState(text, expected=expected)


_REFUSALS = {
    Phase.NONE: ("No transaction is open.", "begin_transaction() first"),
    Phase.OPEN: ("A transaction is open already.", "commit or abort it first"),
    Phase.ENDING: (
        "The transaction is being committed or aborted by another thread.",
        "another one, once it has ended",
    ),
    Phase.UNANSWERED: ("A commit was not answered.", "commit again, or abort"),
}
"""What a call at the wrong time finds, and what to do."""


class PhaseEvent(str, Enum):
    """The events that change the phase."""

    BEGIN = "begin"
    END = "end"
    """A thread begins to commit or to abort."""
    FINISH = "finish"
    """The end was accepted, or the id belongs to another process now."""
    REFUSE = "refuse"
    """The end failed, and had no effect. It can be ended again."""
    LOSE_REPLY = "lose reply"
    """The end failed, and a commit may have been decided."""
    RELEASE_ID = "release id"


PHASE_TRANSITIONS = Transitions(
    "A transaction in its process",
    (Phase.NONE,),
    {
        PhaseEvent.BEGIN: ({Phase.NONE}, Phase.OPEN),
        PhaseEvent.END: ({Phase.OPEN, Phase.UNANSWERED}, Phase.ENDING),
        # none: another thread has released the id meanwhile
        PhaseEvent.FINISH: ({Phase.ENDING, Phase.NONE}, Phase.NONE),
        PhaseEvent.REFUSE: ({Phase.ENDING}, Phase.OPEN),
        PhaseEvent.LOSE_REPLY: ({Phase.ENDING}, Phase.UNANSWERED),
        PhaseEvent.RELEASE_ID: ({*Phase}, Phase.NONE),
    },
)
