"""A transactional id in the hands of this process: its producer, its open transaction, and how that ends.

The answer to the end decides. Whatever became of the answers before it, a commit that was accepted counted all parts;
one that was not leaves a transaction that can be ended again, or aborted.

From the moment an end is asked for no part is taken; the parts on their way are waited for, and counted under the lock
that closed the transaction. So nothing is part of a transaction that ended before it, or of the one after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

from ...namespace.clock import Clock
from ...namespace.process import OwnLock
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import (
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    LakeMQError,
    ProducerFenced,
    RequestTimedOut,
    StaleTopicMetadata,
    TransactionAbortable,
    UnknownServerError,
)
from ...protocol.values.deliveries import Acknowledge, Acknowledgement
from ...protocol.values.kinds import AnyRequest, AnyResult
from ...protocol.values.log import Produce, Published
from ...protocol.values.offsets import CommitOffsets, OffsetCommit
from ...protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from ...protocol.values.transactions import EndTransaction, TransactionEnded
from ..arguments import group_name, place_offsets, text
from ..attempts import NOT_DECIDED, until_answered
from ..offsets import ConsumedMessages, ConsumedOffsets, offset_commits
from ..requester import Requester

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset to consume."""

Part = tuple[Produce, Rows | None]
"""A publish that was not sent yet, with the rows that ride in it."""

_AT_AN_END = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)

R = TypeVar("R")


class Phase(Enum):
    """Of a transaction, as this process knows it; what a call finds that comes at the wrong time, and what to do.

    begin: NONE -> OPEN. An end: OPEN or UNANSWERED -> ENDING -> NONE; without success back to OPEN, and to UNANSWERED
    once a commit was sent.
    """

    NONE = ("No transaction is open.", "begin_transaction() first")
    OPEN = ("A transaction is open already.", "commit or abort it first")
    ENDING = ("The transaction is being committed or aborted by another thread.", "another one, once it has ended")
    UNANSWERED = ("A commit was not answered.", "commit again, or abort")

    def refusal(self) -> IllegalState:
        """Of a call that is not for this phase."""
        found, expected = self.value
        return IllegalState(found, expected=expected)


class TransactionManager:
    """One transactional id and at most one open transaction. Thread-safe; calls in the wrong order are refused.

    last_batch_id: the last micro-batch that was committed under the id, -1 before the first; lock: under which its
    phase changes.
    """

    def __init__(
        self, requester: Requester, clock: Clock, transactional_id: str, timeout_ms: int, answer_timeout_ms: int
    ) -> None:
        """timeout_ms: transaction.timeout.ms; answer_timeout_ms: how long an end is asked for before giving up."""
        self._requester, self._clock = requester, clock
        self.transactional_id, self.timeout_ms = transactional_id, timeout_ms
        self._answer_timeout_ms = answer_timeout_ms
        self.lock = threading.RLock()
        self._lock = OwnLock("This transaction", self.lock)
        self._changed = threading.Condition(self.lock)
        self._ref: TransactionRef | None = None
        self._phase = self._falls_back_to = Phase.NONE
        self._ender: object = None
        """Whose block ends the transaction."""
        self._part_count = self._parts_on_their_way = 0
        self._offsets: dict[str, dict[tuple[str, int], OffsetCommit]] = {}
        self._messages: dict[str, list[Acknowledgement]] = {}
        """By queue group, what the commit acknowledges."""
        self._members: dict[str, str | None] = {}
        self._generations: dict[str, int | None] = {}
        """By group, who commits its offsets."""
        self._refused: LakeMQError | None = None
        self._over: LakeMQError | None = None
        self._is_doubtful = False
        """Something of the transaction was sent and not answered."""
        self.last_batch_id = -1

    # -- beginning --------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Take the id: who had it is fenced, and what it left open is aborted. Raises what the request raises."""
        request = InitProducer(self.transactional_id, self.timeout_ms)
        done = self._until_answered(lambda: _result(self._requester.submit(request), ProducerDone))
        with self._lock.own:
            self._ref = TransactionRef(self.transactional_id, done.producer_id, done.producer_epoch)
            self.last_batch_id = done.batch_id

    def begin(self) -> TransactionRef:
        """Open a transaction; nobody hears of it before its first publish. Raises IllegalState, ProducerFenced."""
        with self._lock.own:
            self._raise_if_over()
            if self._ref is None:
                raise IllegalState(
                    "How the last transaction under the id ended is not known: it must be taken anew.",
                    expected="mq.transaction(id) anew",
                )
            if self._phase is not Phase.NONE:
                raise self._phase.refusal()
            self._phase, self._part_count, self._refused, self._is_doubtful = Phase.OPEN, 0, None, False
            self._offsets.clear()
            self._messages.clear()
            self._members.clear()
            self._generations.clear()
            return self._ref

    @property
    def is_open(self) -> bool:
        return self._phase in (Phase.OPEN, Phase.UNANSWERED)

    @property
    def is_initialized(self) -> bool:
        return self._ref is not None

    def let_go(self) -> None:
        """How the transaction ended is not known: the id must be taken anew, which ends what is still open."""
        with self._lock.own:
            self._ref, self._phase = None, Phase.NONE

    # -- its parts --------------------------------------------------------------------------------------

    def ref(self, mine: TransactionRef | None = None) -> TransactionRef:
        """Under which a part is taken now; `mine`: of the transaction it belongs to.

        Raises IllegalState (nothing is open, or not that one), TransactionAbortable, ProducerFenced.
        """
        with self._lock.own:
            self._raise_if_over()
            if self._phase is not Phase.OPEN or self._ref is None:
                raise self._phase.refusal()
            self._check_mine(mine)
            self.raise_if_refused()
            return self._ref

    def _check_mine(self, mine: TransactionRef | None) -> None:
        if mine is not None and mine != self._ref:
            raise IllegalState("The transaction is over, and another one is open.", expected="a new one")

    @contextmanager
    def part(self, mine: TransactionRef | None = None, was_taken: bool = False) -> Iterator[TransactionRef]:
        """While a part is sent: it counts when the block ends, and an exception refuses the transaction.

        was_taken: before the end was asked for, which waits for it. Raises what `ref` raises.
        """
        with self._lock.own:
            ref = self._ref_of_taken() if was_taken else self.ref(mine)
            self._parts_on_their_way += 1
        try:
            yield ref
        except BaseException as error:
            self._part_done(error)
            raise
        self._part_done(None)

    def _ref_of_taken(self) -> TransactionRef:
        self._raise_if_over()
        self.raise_if_refused()
        if self._phase not in (Phase.OPEN, Phase.ENDING) or self._ref is None:
            raise self._phase.refusal()
        return self._ref

    def _part_done(self, error: BaseException | None) -> None:
        with self._lock.own:
            if error is None:
                self._part_count += 1
            else:
                self.refused(error)
            self._parts_on_their_way -= 1
            self._changed.notify_all()

    def refused(self, error: BaseException) -> None:
        """A part was refused, or nobody knows what became of it: the transaction can only be aborted."""
        with self._lock.own:
            if isinstance(error, _AT_AN_END):
                self._over = self._over or error
            self._is_doubtful |= isinstance(error, RequestTimedOut)
            known = (
                error
                if isinstance(error, LakeMQError)
                else UnknownServerError("A part could not be sent.", found=type(error).__name__)
            )
            self._refused = self._refused or known

    def add_offsets(
        self, group: str, offsets: Offsets, metadata: str | None = None, mine: TransactionRef | None = None
    ) -> None:
        """Offsets that the commit carries, of a queue group messages; of a partition named before, these count.

        Raises InvalidRequest, InvalidGroupId, and what `ref` raises; InvalidRecordState: of a queue's batch nothing is
        left to be done with.
        """
        named, metadata = group_name(group), None if metadata is None else text("metadata", metadata)
        places = offsets if isinstance(offsets, ConsumedOffsets) else place_offsets("offsets", offsets)
        if isinstance(places, ConsumedMessages):
            places.check_open()
        with self._lock.own:
            self.ref(mine)
            member_id = getattr(places, "member_id", None)
            if (other := self._members.setdefault(named, member_id)) != member_id:
                raise InvalidRequest(
                    f"Offsets of two members of the group {named} in one transaction.", found=member_id, expected=other
                )
            self._generations[named] = getattr(places, "generation", None)
            if isinstance(places, ConsumedMessages):
                self._messages.setdefault(named, []).extend(places.messages)
                return
            known = self._offsets.setdefault(named, {})
            known.update({(one.topic, one.partition): one for one in offset_commits(places, metadata)})

    # -- ending -----------------------------------------------------------------------------------------

    @contextmanager
    def ending(self, commits: bool, mine: TransactionRef | None = None) -> Iterator[TransactionRef]:
        """From here on no part is taken, until the block has ended the transaction, or has failed to.

        mine: the transaction that is to be ended. Raises IllegalState (nothing is open, or it is being ended),
        ProducerFenced; for a commit TransactionAbortable.
        """
        me = object()
        try:
            with self._lock.own:
                self._raise_if_over()
                if not self.is_open or self._ref is None:
                    raise self._phase.refusal()
                self._check_mine(mine)
                if commits:
                    self.raise_if_refused()
                self._falls_back_to, self._phase, self._ender = self._phase, Phase.ENDING, me
            yield self._ref
        finally:
            with self._lock.own:
                if self._phase is Phase.ENDING and self._ender is me:
                    self._phase = self._falls_back_to
                self._changed.notify_all()

    def current(self) -> TransactionRef:
        """The transaction that is being ended; inside `ending`."""
        assert self._ref is not None
        return self._ref

    @property
    def may_commit_again(self) -> bool:
        """The commit that has failed may be sent once more; inside `ending`."""
        return self._falls_back_to is Phase.UNANSWERED

    def wait_while_ending(self) -> None:
        """Until no thread is ending the transaction."""
        with self._lock.own:
            self._changed.wait_for(lambda: self._phase is not Phase.ENDING)

    def commit(self, batch_id: int | None = None, mine: TransactionRef | None = None) -> None:
        """Commit what was published. Raises what `ending` and `send_commit` raise."""
        with self.ending(commits=True, mine=mine):
            self.send_commit((), batch_id)

    def abort(self, mine: TransactionRef | None = None) -> None:
        """Nothing of the transaction will be seen. Raises what `ending` and `send_abort` raise."""
        with self.ending(commits=False, mine=mine):
            self.send_abort()

    def send_commit(self, parts: Sequence[Part] = (), batch_id: int | None = None) -> list[Published | None]:
        """Send these last parts, the offsets and the commit, in one letter where they fit; inside `ending`.

        Returns what became of the parts, without units where that is not known any more. All is committed, unless there
        is None for some whose topics have changed: they are to be made anew and committed by another call. Raises
        TransactionAbortable, ProducerFenced; RequestTimedOut: the outcome is unknown, the same call may be made again.
        """
        self._wait_for_parts()
        with self._lock.own:
            self._raise_if_over()
            self.raise_if_refused()
        ref = self.current()
        if not (parts or self._offsets or self._messages or self._part_count):
            self._ended(ref)
            return []
        offsets: list[AnyRequest] = [
            CommitOffsets(group, list(mine.values()), ref, self._members.get(group), self._generations.get(group))
            for group, mine in self._offsets.items()
            if mine
        ]
        offsets += [
            Acknowledge(group, self._members.get(group) or "", mine, ref)
            for group, mine in self._messages.items()
            if mine
        ]
        count = self._part_count + len(parts) + len(offsets)
        end = EndTransaction(ref, True, count, batch_id)
        letter: list[tuple[AnyRequest, Rows | None]] = [*parts, *((one, None) for one in offsets), (end, None)]
        self._falls_back_to = Phase.UNANSWERED
        *answers, ended = self._until_answered(lambda: self._sent(letter))
        self._falls_back_to = Phase.OPEN
        error = ended.exception()
        if error is not None:
            return self._after_refusal(answers, len(parts), error)
        self._ended(_next_ref(ref, _result(ended, TransactionEnded)), batch_id)
        # of a commit that is repeated only its end is answered again; where its parts are nobody says
        return [Published([]) if answer.exception() else _result(answer, Published) for answer in answers[: len(parts)]]

    def send_abort(self) -> None:
        """Abort; inside `ending`.

        Raises ProducerFenced, RequestTimedOut; InvalidTxnState: a commit that was not answered has committed it.
        """
        self._wait_for_parts()
        ref = self.current()
        end = EndTransaction(ref, False)
        try:
            done = self._until_answered(lambda: _result(self._requester.submit(end), TransactionEnded))
        except _AT_AN_END as error:
            self._at_an_end(error)
            raise
        except InvalidTxnState:
            raise
        except BaseException:
            self.refused(TransactionAbortable("An abort was not answered: abort again."))
            raise
        following = _next_ref(ref, done)
        if self._is_doubtful and following == ref:
            self.initialize()  # nothing had come: should it come yet, it must not find the transaction that follows
            assert self._ref is not None
            following = self._ref
        self._ended(following)

    def _wait_for_parts(self) -> None:
        """Each ends with its request."""
        with self._lock.own:
            self._changed.wait_for(lambda: self._parts_on_their_way == 0)

    def _sent(self, letter: Sequence[tuple[AnyRequest, Rows | None]]) -> list[Future[AnyResult]]:
        futures = self._requester.submit_all(letter)
        # an unknown outcome is of the letter as a whole, and so is that it was not sent
        if isinstance(error := futures[-1].exception(), (RequestTimedOut, *NOT_DECIDED)):
            raise error
        return futures

    def _after_refusal(
        self, answers: Sequence[Future[AnyResult]], part_count: int, error: BaseException
    ) -> list[Published | None]:
        """What a commit that was refused means for the parts that came with it."""
        errors = [answer.exception() for answer in answers]
        if isinstance(error, _AT_AN_END):
            self._at_an_end(error)
            raise error
        may_be_made_anew = [isinstance(one, StaleTopicMetadata) and i < part_count for i, one in enumerate(errors)]
        cause = next((one for one, anew in zip(errors, may_be_made_anew, strict=True) if one and not anew), None)
        if cause is not None or not any(errors):
            self.refused(cause or error)
            self.raise_if_refused()
        with self._lock.own:
            # the sequencer has the offsets now, as often as they are sent
            self._part_count += sum(one is None for one in errors)
            self._offsets.clear()
            self._messages.clear()
        return [
            None if failed else _result(answer, Published)
            for answer, failed in zip(answers[:part_count], errors, strict=False)
        ]

    def _at_an_end(self, error: LakeMQError) -> None:
        with self._lock.own:
            self._over, self._phase = error, Phase.NONE

    def _ended(self, following: TransactionRef, batch_id: int | None = None) -> None:
        with self._lock.own:
            self._ref, self._phase, self._refused = following, Phase.NONE, None
            self._part_count = 0
            self._offsets.clear()
            self._messages.clear()
            self._members.clear()
            self._generations.clear()
            if batch_id is not None:
                self.last_batch_id = max(self.last_batch_id, batch_id)

    def _until_answered(self, ask: Callable[[], R]) -> R:
        """Ask again when nobody answered: an init or an end that was decided already is answered the same."""

        def noting() -> R:
            try:
                return ask()
            except LakeMQError as error:
                self._is_doubtful |= isinstance(error, RequestTimedOut)
                raise
            except BaseException:
                self._is_doubtful = True
                raise

        return until_answered(noting, self._clock, self._clock.steady_ms() + self._answer_timeout_ms)

    def _raise_if_over(self) -> None:
        if self._over is not None:
            raise ProducerFenced(found=f"{self._over.name}: {self._over.detail}") from self._over

    def raise_if_refused(self) -> None:
        """Raises TransactionAbortable."""
        if self._refused is not None:
            raise TransactionAbortable(found=str(self._refused)) from self._refused


def _result(future: Future[AnyResult], kind: type[R]) -> R:
    result = future.result()
    assert isinstance(result, kind)
    return result


def _next_ref(ref: TransactionRef, done: TransactionEnded) -> TransactionRef:
    return TransactionRef(ref.transactional_id, done.producer_id, done.producer_epoch)
