"""The state of a transactional id in this process: its phase, its open transaction, and what belongs to that."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...namespace.processes.process import OwnLock
from ...protocol.errors import IllegalState, InvalidRequest, LakeMQError
from ...protocol.values.producers import ProducerDone, TransactionRef
from ...protocol.values.queues.deliveries import Acknowledge, Acknowledgement
from .parts import TransactionParts
from .phase import PHASE_TRANSITIONS, Phase, PhaseEvent


class TransactionState:
    """A state machine: PHASE_TRANSITIONS has its phases. This class says which call is allowed in which phase.

    Attributes:
        lock: protects every change.
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
        self._ender: object = None
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

    def get_accepting(self, expected_ref: TransactionRef | None) -> TransactionRef:
        """Return the transaction that accepts parts now. Raises what `TransactionManager.ref` raises."""
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

    def forget_messages(self) -> None:
        """Forget the messages, which the sequencer has now. The groups keep their members."""
        self._messages.clear()

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
    def ending(self, commits: bool, expected_ref: TransactionRef | None) -> Iterator[TransactionRef]:
        """End the transaction in this block. If the block fails, the phase falls back. See `TransactionManager`."""
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
                self.fallback = PhaseEvent.LOSE_REPLY if is_unanswered else PhaseEvent.REFUSE
                self._move(PhaseEvent.END)
                self._ender = me
            yield self.ref
        finally:
            with self.lock.own:
                if self._phase is Phase.ENDING and self._ender is me:
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
