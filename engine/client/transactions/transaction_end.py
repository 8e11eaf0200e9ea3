"""How a transaction ends: the letter of its commit or abort, and what the reply changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...protocol.codec.few_rows import Rows
from ...protocol.errors import InvalidTxnState, TransactionAbortable
from ...protocol.values.kinds import AnyRequest
from ...protocol.values.log import Published
from ...protocol.values.producers import TransactionRef
from ...protocol.values.transactions import EndTransaction
from .end_requests import CommitReply, EndRequests, Part
from .parts import FENCED
from .phase import PhaseEvent
from .state import TransactionState


class TransactionEnder:
    """Commits and aborts the transaction of a state, inside its block `ending`."""

    def __init__(self, state: TransactionState, requests: EndRequests, take_id: Callable[[], TransactionRef]) -> None:
        """take_id: takes the id again, and returns the next transaction."""
        self._state, self._requests, self._take_id = state, requests, take_id

    def commit(self, parts: Sequence[Part], batch_id: int | None) -> list[Published | None]:
        """Send the last parts, acknowledgements and the commit. See `TransactionManager.send_commit`."""
        state = self._state
        with state.lock.own:
            state.parts.wait_until_finished()
            state.parts.check_no_failure()
        assert state.ref is not None
        ref = state.ref
        acknowledgements = state.build_acknowledgements(ref)
        if not (parts or acknowledgements or state.parts.count):
            state.finish(ref)
            return []
        end = EndTransaction(ref, True, state.parts.count + len(parts) + len(acknowledgements), batch_id)
        letter: list[tuple[AnyRequest, Rows | None]] = [
            *parts,
            *((request, None) for request in acknowledgements),
            (end, None),
        ]
        state.fallback = PhaseEvent.LOSE_REPLY
        reply = self._requests.commit(letter)
        state.fallback = PhaseEvent.REFUSE
        if reply.error is not None:
            self._take_refusal(reply, reply.error, len(parts))
        else:
            state.finish(reply.next_ref(ref), batch_id)
        return reply.list_published(len(parts))

    def _take_refusal(self, reply: CommitReply, error: BaseException, part_count: int) -> None:
        """Take in a refused commit. Raises its error, unless all that failed are parts that can be built again."""
        if isinstance(error, FENCED):
            self._state.lose_id(error)
            raise error
        cause = reply.find_cause(part_count)
        with self._state.lock.own:
            if cause is not None:
                self._state.parts.note_failure(cause)
                self._state.parts.check_no_failure()
            # The sequencer has the accepted acknowledgements now.
            self._state.parts.count += sum(answer.exception() is None for answer in reply.other_replies)
            self._state.forget_messages()

    def abort(self) -> None:
        """Send the abort. See `TransactionManager.send_abort`."""
        state = self._state
        with state.lock.own:
            state.parts.wait_until_finished()
        assert state.ref is not None
        ref = state.ref
        try:
            following = self._requests.abort(ref)
        except FENCED as error:
            state.lose_id(error)
            raise
        except InvalidTxnState:
            raise
        except BaseException:
            with state.lock.own:
                state.parts.note_failure(TransactionAbortable("The abort was not answered. Abort again."))
            raise
        if state.parts.has_unanswered and following == ref:
            following = self._take_id()  # nothing had come: should it come yet, it must not find the next transaction
        state.finish(following)
