"""The state of a transactional id in this process: its phase, its open transaction, and what belongs to that.

Rows of docs/architecture.md: end of a transaction 1.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from ...namespace.process import OwnLock
from ...protocol.errors import (
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    LakeMQError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnknownServerError,
)
from ...protocol.values.base import Transitions
from ...protocol.values.deliveries import Acknowledge, Acknowledgement
from ...protocol.values.producers import ProducerDone, TransactionRef

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


class Phase(StrEnum):
    """The phases of a transaction in the process that runs it."""

    NONE = "none"
    OPEN = "open"
    ENDING = "ending"
    """A thread commits or aborts it."""
    UNANSWERED = "unanswered"
    """A commit was sent, and no answer came."""

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


class PhaseEvent(StrEnum):
    """The events that change the phase."""

    BEGIN = "begin"
    END = "end"
    """A thread begins to commit or to abort."""
    FINISH = "finish"
    """The end was accepted, or the id belongs to another process now."""
    REFUSE = "refuse"
    """The end failed, and had no effect. It can be ended again."""
    LOSE_ANSWER = "lose answer"
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
        PhaseEvent.LOSE_ANSWER: ({Phase.ENDING}, Phase.UNANSWERED),
        PhaseEvent.RELEASE_ID: ({*Phase}, Phase.NONE),
    },
)


class TransactionState:
    """A state machine: PHASE_TRANSITIONS has its phases. This class says which call is allowed in which phase.

    Attributes:
        lock: protects every change. shared_lock is the RLock in it, which a producer shares.
        ref: the open transaction, or the next one; None: the id must be taken first.
        parts: counts the publishes of the transaction.
        fallback: what happens if the end fails now.
        last_batch_id: the last micro-batch that was committed under the id. -1: none.
    """

    def __init__(self) -> None:
        rlock = threading.RLock()
        self.lock = OwnLock("This transaction", rlock)
        self.shared_lock, self._changed = rlock, threading.Condition(rlock)
        self.ref: TransactionRef | None = None
        self.parts = TransactionParts(self.lock, self._changed)
        self._members: dict[str, str | None] = {}
        """By group, the member whose offsets or messages the transaction has."""
        self._messages: dict[str, list[Acknowledgement]] = {}
        """By queue group, the messages that the commit acknowledges."""
        self.fallback = PhaseEvent.REFUSE
        self.last_batch_id = -1
        self._phase = Phase.NONE
        self._ending_call: object = None
        """The block that ends the transaction."""

    def _move(self, event: PhaseEvent) -> None:
        self._phase = PHASE_TRANSITIONS.move(self._phase, event)

    @property
    def is_open(self) -> bool:
        return self._phase in (Phase.OPEN, Phase.UNANSWERED)

    # -- the id -----------------------------------------------------------------------------------------

    def take_id(self, transactional_id: str, done: ProducerDone) -> TransactionRef:
        """Note that the id was taken, and return its next transaction."""
        with self.lock.own:
            self.ref = TransactionRef(transactional_id, done.producer_id, done.producer_epoch)
            self.last_batch_id = done.batch_id
            return self.ref

    def release_id(self) -> None:
        """Give up the id: its transaction may still be open. Taking the id again ends that transaction."""
        with self.lock.own:
            self.ref = None
            self._move(PhaseEvent.RELEASE_ID)

    def lose_id(self, error: LakeMQError) -> None:
        """End for good: the id belongs to another process."""
        with self.lock.own:
            self.parts.fatal_error = error
            self._move(PhaseEvent.FINISH)

    # -- one transaction --------------------------------------------------------------------------------

    def begin(self) -> TransactionRef:
        """Open a transaction. Raises IllegalState, ProducerFenced."""
        with self.lock.own:
            self.parts.check_not_fenced()
            if self.ref is None:
                raise IllegalState(
                    "The outcome of the last transaction under this id is unknown. Take the id again.",
                    expected="mq.transaction(id) again",
                )
            if self._phase is not Phase.NONE:
                raise self._phase.refusal()
            self._move(PhaseEvent.BEGIN)
            self.parts.start_again()
            self._members.clear()
            self._messages.clear()
            return self.ref

    def get_accepting(self, expected_ref: TransactionRef | None = None) -> TransactionRef:
        """Return the transaction that accepts parts now.

        Args:
            expected_ref: the transaction that the part belongs to.

        Raises:
            IllegalState: no transaction is open, or another one.
            TransactionAbortable: a part has failed.
            ProducerFenced: another process has taken the id.
        """
        with self.lock.own:
            self.parts.check_not_fenced()
            if self._phase is not Phase.OPEN or self.ref is None:
                raise self._phase.refusal()
            self._check_same_transaction(expected_ref)
            self.parts.check_no_failure()
            return self.ref

    def note_member(self, group: str, member_id: str | None) -> None:
        """Note who commits offsets of a group. Raises InvalidRequest: another member of it has done so before."""
        with self.lock.own:
            if (other := self._members.setdefault(group, member_id)) != member_id:
                raise InvalidRequest(
                    f"Offsets of two members of the group {group} in one transaction.", found=member_id, expected=other
                )

    def add_messages(
        self, ref: TransactionRef, group: str, member_id: str | None, messages: Iterable[Acknowledgement]
    ) -> None:
        """Add messages of a queue group for the commit. Raises what `note_member` and `get_accepting` raise."""
        with self.lock.own:
            self.get_accepting(ref)
            self.note_member(group, member_id)
            self._messages.setdefault(group, []).extend(messages)

    def build_acknowledgements(self, ref: TransactionRef) -> list[Acknowledge]:
        """Return the requests that make the messages of queue groups part of the transaction."""
        messages = self._messages.items()
        return [Acknowledge(group, self._members[group] or "", listed, ref) for group, listed in messages if listed]

    def get_ref_while_ending(self) -> TransactionRef:
        """Return the transaction of a part that was accepted before the end was requested. The lock is held."""
        self.parts.check_no_failure()
        if self._phase not in (Phase.OPEN, Phase.ENDING) or self.ref is None:
            raise self._phase.refusal()
        return self.ref

    def _check_same_transaction(self, expected_ref: TransactionRef | None) -> None:
        if expected_ref is not None and expected_ref != self.ref:
            raise IllegalState("The transaction is over, and another one is open.", expected="a new one")

    @contextmanager
    def ending(self, commits: bool, expected_ref: TransactionRef | None = None) -> Iterator[TransactionRef]:
        """End the transaction in this block. Meanwhile no part is accepted. If the block fails, the phase falls back.

        Args:
            expected_ref: the transaction to end.

        Raises:
            IllegalState: nothing is open, or another thread is ending it.
            ProducerFenced: another process has taken the id.
            TransactionAbortable: a part has failed; only for a commit.
        """
        me = object()
        try:
            with self.lock.own:
                self.parts.check_not_fenced()
                if not self.is_open or self.ref is None:
                    raise self._phase.refusal()
                self._check_same_transaction(expected_ref)
                if commits:
                    self.parts.check_no_failure()
                is_unanswered = self._phase is Phase.UNANSWERED
                self.fallback = PhaseEvent.LOSE_ANSWER if is_unanswered else PhaseEvent.REFUSE
                self._move(PhaseEvent.END)
                self._ending_call = me
            yield self.ref
        finally:
            with self.lock.own:
                if self._phase is Phase.ENDING and self._ending_call is me:
                    self._move(self.fallback)
                self._changed.notify_all()

    def wait_while_ending(self) -> None:
        """Wait until no thread is ending the transaction."""
        with self.lock.own:
            self._changed.wait_for(lambda: self._phase is not Phase.ENDING)

    def finish(self, following: TransactionRef, batch_id: int | None = None) -> None:
        """Note that the transaction has ended. following: the next one; batch_id: the micro-batch that is committed."""
        with self.lock.own:
            self._move(PhaseEvent.FINISH)
            self.ref = following
            self.parts.forget_failure()
            if batch_id is not None:
                self.last_batch_id = max(self.last_batch_id, batch_id)
