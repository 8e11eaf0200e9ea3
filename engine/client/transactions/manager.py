"""A transactional id in this process: its producer, its open transaction, and how the transaction ends.

The reply to the end decides. A commit that is accepted includes all parts, whatever became of their own replies. After
a commit that is refused, the transaction is still open: it can be ended again or aborted.

Once an end is requested, no new part is accepted. The end waits for parts in flight; they count under the lock that
closed the transaction. So nothing becomes part of a transaction after its end, or of the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from ...namespace.processes.clock import Clock
from ...namespace.processes.process import OwnLock
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import (
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    LakeMQError,
    ProducerFenced,
    RequestTimedOut,
    StaleTopicMetadata,
    TransactionAbortable,
    UnknownServerError,
)
from ...protocol.values.consuming.offsets import OffsetCommit
from ...protocol.values.kinds import AnyRequest, AnyResult
from ...protocol.values.log import Produce, Published
from ...protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from ...protocol.values.transactions import EndTransaction, TransactionEnded
from ..arguments import parse_group_name, parse_partition_offsets, parse_text
from ..attempts import NO_EFFECT, ask_with_retries
from ..offsets import ConsumedMessages, ConsumedOffsets, build_offset_commits
from ..requester import Requester
from ..tracing.spans import open_span
from .consumed_positions import ConsumedPositions
from .phase import PHASE_TRANSITIONS, Phase, PhaseEvent

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset to consume."""

CheckOffsets = Callable[[Sequence[OffsetCommit]], object]

Part = tuple[Produce, Rows | None]
"""A publish that is not sent yet, with the rows that go in its letter."""

_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)

R = TypeVar("R")


class TransactionManager:
    """A transactional id with at most one open transaction. Thread-safe; calls in the wrong order are refused.

    Attributes:
        last_batch_id: the last micro-batch that was committed under the id. -1: none.
        lock: protects changes of the phase.
    """

    def __init__(
        self,
        requester: Requester,
        clock: Clock,
        transactional_id: str,
        timeout_ms: int,
        answer_timeout_ms: int,
        check_offsets: CheckOffsets,
    ) -> None:
        """Create the manager. `initialize` takes the id.

        Args:
            timeout_ms: transaction.timeout.ms.
            answer_timeout_ms: how long an end is tried before giving up.
            check_offsets: raises if the log has no such offsets at present.
        """
        self._requester, self._clock, self._check_offsets = requester, clock, check_offsets
        self.transactional_id, self.timeout_ms = transactional_id, timeout_ms
        self._answer_timeout_ms = answer_timeout_ms
        self.lock = threading.RLock()
        self._lock = OwnLock("This transaction", self.lock)
        self._changed = threading.Condition(self.lock)
        self._ref: TransactionRef | None = None
        self._phase = Phase.NONE
        self._fallback = PhaseEvent.REFUSE
        """What happens if the end fails now."""
        self._ender: object = None
        """The block that ends the transaction."""
        self._part_count = self._parts_in_flight = 0
        self._consumed = ConsumedPositions()
        self._failure: LakeMQError | None = None
        self._fatal_error: LakeMQError | None = None
        self._has_unanswered = False
        """A request of the transaction was sent and not answered."""
        self.last_batch_id = -1

    # -- beginning --------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Take the id: fence its holder, and abort its open transaction. Raises what the request raises."""
        request = InitProducer(self.transactional_id, self.timeout_ms)
        done = self._ask_until_reply(lambda: _result(self._requester.submit(request), ProducerDone))
        with self._lock.own:
            self._ref = TransactionRef(self.transactional_id, done.producer_id, done.producer_epoch)
            self.last_batch_id = done.batch_id

    def begin(self) -> TransactionRef:
        """Open a transaction. Nothing is sent before its first publish. Raises IllegalState, ProducerFenced."""
        with self._lock.own:
            self._raise_if_fatal()
            if self._ref is None:
                raise IllegalState(
                    "The outcome of the last transaction under this id is unknown. Take the id again.",
                    expected="mq.transaction(id) again",
                )
            if self._phase is not Phase.NONE:
                raise self._phase.refusal()
            self._move(PhaseEvent.BEGIN)
            self._part_count, self._failure, self._has_unanswered = 0, None, False
            self._consumed.clear()
            return self._ref

    def _move(self, event: PhaseEvent) -> None:
        self._phase = PHASE_TRANSITIONS.move(self._phase, event)

    @property
    def is_open(self) -> bool:
        return self._phase in (Phase.OPEN, Phase.UNANSWERED)

    @property
    def is_initialized(self) -> bool:
        return self._ref is not None

    def release_id(self) -> None:
        """Give up the id: its transaction may still be open. Taking the id again ends that transaction."""
        with self._lock.own:
            self._ref = None
            self._move(PhaseEvent.RELEASE_ID)

    # -- its parts --------------------------------------------------------------------------------------

    def ref(self, expected_ref: TransactionRef | None = None) -> TransactionRef:
        """Return the transaction that accepts parts now.

        Args:
            expected_ref: the transaction that the part belongs to.

        Raises:
            IllegalState: no transaction is open, or another one.
            TransactionAbortable: a part has failed.
            ProducerFenced: another process has taken the id.
        """
        with self._lock.own:
            self._raise_if_fatal()
            if self._phase is not Phase.OPEN or self._ref is None:
                raise self._phase.refusal()
            self._check_same_transaction(expected_ref)
            self.check_no_failure()
            return self._ref

    def _check_same_transaction(self, expected_ref: TransactionRef | None) -> None:
        if expected_ref is not None and expected_ref != self._ref:
            raise IllegalState("The transaction is over, and another one is open.", expected="a new one")

    @contextmanager
    def add_part(self, expected_ref: TransactionRef | None = None, was_added: bool = False) -> Iterator[TransactionRef]:
        """Send a part in this block. It counts when the block ends; an exception makes the transaction abort-only.

        Args:
            was_added: the part was accepted before the end was requested, and the end waits for it.

        Raises:
            What `ref` raises.
        """
        with self._lock.own:
            ref = self._get_ref_while_ending() if was_added else self.ref(expected_ref)
            self._parts_in_flight += 1
        try:
            yield ref
        except BaseException as error:
            self._finish_part(error)
            raise
        self._finish_part(None)

    def _get_ref_while_ending(self) -> TransactionRef:
        self._raise_if_fatal()
        self.check_no_failure()
        if self._phase not in (Phase.OPEN, Phase.ENDING) or self._ref is None:
            raise self._phase.refusal()
        return self._ref

    def _finish_part(self, error: BaseException | None) -> None:
        with self._lock.own:
            if error is None:
                self._part_count += 1
            else:
                self.note_failure(error)
            self._parts_in_flight -= 1
            self._changed.notify_all()

    def note_failure(self, error: BaseException) -> None:
        """Make the transaction abort-only: a part was refused, or its outcome is unknown."""
        with self._lock.own:
            if isinstance(error, _FENCED):
                self._fatal_error = self._fatal_error or error
            self._has_unanswered |= isinstance(error, RequestTimedOut)
            failure = (
                error
                if isinstance(error, LakeMQError)
                else UnknownServerError("A part could not be sent.", found=type(error).__name__)
            )
            self._failure = self._failure or failure

    def add_offsets(
        self, group: str, offsets: Offsets, metadata: str | None = None, expected_ref: TransactionRef | None = None
    ) -> None:
        """Add offsets for the commit; for a queue group, messages.

        For a partition that was added before, the new ones count. An offset that the log does not have is refused here,
        and the transaction stays usable without it.

        Raises:
            InvalidRequest, InvalidGroupId, UnknownTopicOrPartition, OffsetOutOfRange, OffsetMetadataTooLarge: bad
                arguments.
            InvalidRecordState: the queue's batch has no unsettled messages left.
            What `ref` raises.
        """
        named, metadata = parse_group_name(group), None if metadata is None else parse_text("metadata", metadata)
        places = offsets if isinstance(offsets, ConsumedOffsets) else parse_partition_offsets("offsets", offsets)
        if isinstance(places, ConsumedMessages):
            places.check_has_unacknowledged()
        commits = build_offset_commits(places, metadata)
        self.ref(expected_ref)
        # not under the lock, because it reads the journal. Offsets of our own consumers are in the log
        if not isinstance(places, ConsumedOffsets) or metadata is not None:
            self._check_offsets(commits)
        with self._lock.own:
            self.ref(expected_ref)
            self._consumed.add(named, places, commits)

    # -- ending -----------------------------------------------------------------------------------------

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
            with self._lock.own:
                self._raise_if_fatal()
                if not self.is_open or self._ref is None:
                    raise self._phase.refusal()
                self._check_same_transaction(expected_ref)
                if commits:
                    self.check_no_failure()
                is_unanswered = self._phase is Phase.UNANSWERED
                self._fallback = PhaseEvent.LOSE_REPLY if is_unanswered else PhaseEvent.REFUSE
                self._move(PhaseEvent.END)
                self._ender = me
            yield self._ref
        finally:
            with self._lock.own:
                if self._phase is Phase.ENDING and self._ender is me:
                    self._move(self._fallback)
                self._changed.notify_all()

    def get_ref(self) -> TransactionRef:
        """Return the transaction that is being ended. Only inside `ending`."""
        assert self._ref is not None
        return self._ref

    @property
    def may_commit_again(self) -> bool:
        """Whether the failed commit may be sent once more. Only inside `ending`."""
        return self._fallback is PhaseEvent.LOSE_REPLY

    def wait_while_ending(self) -> None:
        """Wait until no thread is ending the transaction."""
        with self._lock.own:
            self._changed.wait_for(lambda: self._phase is not Phase.ENDING)

    def commit(self, batch_id: int | None = None, expected_ref: TransactionRef | None = None) -> None:
        """Commit everything that was published. Raises what `ending` and `send_commit` raise."""
        named = {"lakemq.transactional_id": self.transactional_id}
        with (
            open_span("commit", "settle", self.transactional_id, named),
            self.ending(commits=True, expected_ref=expected_ref),
        ):
            self.send_commit((), batch_id)

    def abort(self, expected_ref: TransactionRef | None = None) -> None:
        """Abort: no part becomes visible. Raises what `ending` and `send_abort` raise."""
        with self.ending(commits=False, expected_ref=expected_ref):
            self.send_abort()

    def send_commit(self, parts: Sequence[Part] = (), batch_id: int | None = None) -> list[Published | None]:
        """Send the last parts, the offsets and the commit, in one letter if they fit. Only inside `ending`.

        Returns:
            The results of the parts, without units where these are unknown by now. If a result is None, its topic has
            changed and nothing is committed: build these parts again and commit them by another call.

        Raises:
            TransactionAbortable: a part has failed.
            ProducerFenced: another process has taken the id.
            RequestTimedOut: the outcome is unknown. The same call may be made again.
        """
        self._wait_for_parts()
        with self._lock.own:
            self._raise_if_fatal()
            self.check_no_failure()
        ref = self.get_ref()
        if not (parts or self._consumed or self._part_count):
            self._reset(ref)
            return []
        offsets = self._consumed.build_requests(ref)
        count = self._part_count + len(parts) + len(offsets)
        end = EndTransaction(ref, True, count, batch_id)
        letter: list[tuple[AnyRequest, Rows | None]] = [*parts, *((request, None) for request in offsets), (end, None)]
        self._fallback = PhaseEvent.LOSE_REPLY
        *answers, ended = self._ask_until_reply(lambda: self._send_letter(letter))
        self._fallback = PhaseEvent.REFUSE
        error = ended.exception()
        if error is not None:
            return self._handle_refused_commit(answers, len(parts), error)
        self._reset(_next_ref(ref, _result(ended, TransactionEnded)), batch_id)
        # for a repeated commit, only the end gets a reply again; the places of its parts are unknown
        return [Published([]) if answer.exception() else _result(answer, Published) for answer in answers[: len(parts)]]

    def send_abort(self) -> None:
        """Abort the transaction. Only inside `ending`.

        Raises:
            ProducerFenced: another process has taken the id.
            RequestTimedOut: the outcome is unknown.
            InvalidTxnState: an unanswered commit has committed it.
        """
        self._wait_for_parts()
        ref = self.get_ref()
        end = EndTransaction(ref, False)
        try:
            done = self._ask_until_reply(lambda: _result(self._requester.submit(end), TransactionEnded))
        except _FENCED as error:
            self._end_for_good(error)
            raise
        except InvalidTxnState:
            raise
        except BaseException:
            self.note_failure(TransactionAbortable("The abort was not answered. Abort again."))
            raise
        following = _next_ref(ref, done)
        if self._has_unanswered and following == ref:
            self.initialize()  # nothing had come: should it come yet, it must not find the transaction that follows
            assert self._ref is not None
            following = self._ref
        self._reset(following)

    def _wait_for_parts(self) -> None:
        """Wait for parts in flight. Each ends with its request."""
        with self._lock.own:
            self._changed.wait_for(lambda: self._parts_in_flight == 0)

    def _send_letter(self, letter: Sequence[tuple[AnyRequest, Rows | None]]) -> list[Future[AnyResult]]:
        futures = self._requester.submit_all(letter)
        # a timeout and "not sent" hold for the letter as a whole
        if isinstance(error := futures[-1].exception(), (RequestTimedOut, *NO_EFFECT)):
            raise error
        return futures

    def _handle_refused_commit(
        self, answers: Sequence[Future[AnyResult]], part_count: int, error: BaseException
    ) -> list[Published | None]:
        """Return what a refused commit means for the parts that came with it."""
        errors = [answer.exception() for answer in answers]
        if isinstance(error, _FENCED):
            self._end_for_good(error)
            raise error
        may_be_made_anew = [
            isinstance(failure, StaleTopicMetadata) and i < part_count for i, failure in enumerate(errors)
        ]
        cause = next(
            (failure for failure, anew in zip(errors, may_be_made_anew, strict=True) if failure and not anew), None
        )
        if cause is not None or not any(errors):
            self.note_failure(cause or error)
            self.check_no_failure()
        with self._lock.own:
            # the sequencer has the offsets now; sending them again changes nothing
            self._part_count += sum(failure is None for failure in errors)
            self._consumed.forget_sent()
        return [
            None if failed else _result(answer, Published)
            for answer, failed in zip(answers[:part_count], errors, strict=False)
        ]

    def _end_for_good(self, error: LakeMQError) -> None:
        with self._lock.own:
            self._fatal_error = error
            self._move(PhaseEvent.FINISH)

    def _reset(self, following: TransactionRef, batch_id: int | None = None) -> None:
        with self._lock.own:
            self._move(PhaseEvent.FINISH)
            self._ref, self._failure, self._part_count = following, None, 0
            self._consumed.clear()
            if batch_id is not None:
                self.last_batch_id = max(self.last_batch_id, batch_id)

    def _ask_until_reply(self, ask: Callable[[], R]) -> R:
        """Send again while no reply comes: an init or end that was decided already gets the same reply."""

        def noting() -> R:
            try:
                return ask()
            except LakeMQError as error:
                self._has_unanswered |= isinstance(error, RequestTimedOut)
                raise
            except BaseException:
                self._has_unanswered = True
                raise

        return ask_with_retries(noting, self._clock, self._clock.steady_ms() + self._answer_timeout_ms)

    def _raise_if_fatal(self) -> None:
        if self._fatal_error is not None:
            raise ProducerFenced(found=f"{self._fatal_error.name}: {self._fatal_error.detail}") from self._fatal_error

    def check_no_failure(self) -> None:
        """Raise TransactionAbortable if a part has failed."""
        if self._failure is not None:
            raise TransactionAbortable(found=str(self._failure)) from self._failure


def _result(future: Future[AnyResult], kind: type[R]) -> R:
    result = future.result()
    assert isinstance(result, kind)
    return result


def _next_ref(ref: TransactionRef, done: TransactionEnded) -> TransactionRef:
    return TransactionRef(ref.transactional_id, done.producer_id, done.producer_epoch)
