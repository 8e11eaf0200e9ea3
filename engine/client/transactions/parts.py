"""The parts of a transaction in this process: which were accepted, which are on their way, and which have failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...namespace.processes.process import OwnLock
from ...protocol.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    LakeMQError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnknownServerError,
)

FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
"""Errors which say that the transactional id belongs to another process now."""


class TransactionParts:
    """The parts of one transaction after the other. Call its methods under the lock, unless they say otherwise.

    Attributes:
        count: parts that were accepted.
        has_unanswered: a request of the transaction was sent and not answered.
        fatal_error: the error with which the id was lost; None: the id is ours.
    """

    def __init__(self, lock: OwnLock, changed: threading.Condition) -> None:
        """changed: a condition of the lock. It is notified when a part is no longer on its way."""
        self._lock, self._changed = lock, changed
        self.count = self._in_flight = 0
        self.has_unanswered = False
        self._failure: LakeMQError | None = None
        self._groups: set[str] = set()
        """Groups whose offsets were accepted. Each counts as one part, however often its offsets are sent."""
        self.fatal_error: LakeMQError | None = None

    def start_again(self) -> None:
        """Count from zero, for the next transaction."""
        self.forget_failure()
        self.has_unanswered = False

    def forget_failure(self) -> None:
        """Forget the parts of a transaction that has ended. Answers that did not come may still matter."""
        self.count, self._failure = 0, None
        self._groups.clear()

    def start_part(self) -> None:
        """Count a part that is on its way."""
        self._in_flight += 1

    @contextmanager
    def finish_part(self, group: str | None = None) -> Iterator[None]:
        """Send a part in this block, without the lock. An exception makes the transaction abort-only.

        group: whose offsets are sent.
        """
        try:
            yield
        except BaseException as error:
            self._finish(error, group)
            raise
        self._finish(None, group)

    def _finish(self, error: BaseException | None, group: str | None) -> None:
        with self._lock.own:
            if error is not None:
                self.note_failure(error)
            elif group not in self._groups:
                self.count += 1
                self._groups |= set() if group is None else {group}
            self._in_flight -= 1
            self._changed.notify_all()

    def wait_until_finished(self) -> None:
        """Wait for parts on their way. Each ends with its request."""
        self._changed.wait_for(lambda: self._in_flight == 0)

    def note_failure(self, error: BaseException) -> None:
        """Make the transaction abort-only: a part was refused, or its outcome is unknown."""
        if isinstance(error, FENCED):
            self.fatal_error = self.fatal_error or error
        self.has_unanswered |= isinstance(error, RequestTimedOut)
        failure = (
            error
            if isinstance(error, LakeMQError)
            else UnknownServerError("A part could not be sent.", found=type(error).__name__)
        )
        self._failure = self._failure or failure

    def check_no_failure(self) -> None:
        """Raise ProducerFenced if the id was lost, and else TransactionAbortable if a part has failed."""
        self.check_not_fenced()
        if self._failure is not None:
            raise TransactionAbortable(found=str(self._failure)) from self._failure

    def check_not_fenced(self) -> None:
        """Raise ProducerFenced if the id was lost."""
        if (error := self.fatal_error) is not None:
            raise ProducerFenced(found=f"{error.name}: {error.detail}") from error
