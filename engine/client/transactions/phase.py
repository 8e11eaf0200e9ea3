"""The phases of a transaction in the process that runs it."""

from __future__ import annotations

from enum import Enum

from ...protocol.errors import IllegalState


class Phase(Enum):
    """Phase of a transaction in this process. The value: what a call at the wrong time finds, and what to do.

    begin: NONE -> OPEN. An end: OPEN or UNANSWERED -> ENDING -> NONE. If the end fails: back to OPEN, or to UNANSWERED
    once a commit was sent.
    """

    NONE = ("No transaction is open.", "begin_transaction() first")
    OPEN = ("A transaction is open already.", "commit or abort it first")
    ENDING = ("The transaction is being committed or aborted by another thread.", "another one, once it has ended")
    UNANSWERED = ("A commit was not answered.", "commit again, or abort")

    def refusal(self) -> IllegalState:
        """Return the error of a call that does not fit this phase."""
        text, expected = self.value
        return IllegalState(text, expected=expected)
