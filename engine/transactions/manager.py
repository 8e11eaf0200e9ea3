"""A transactional id in the hands of this process: its producer, its open transaction, and how that ends.

The answer to the end decides. Whatever became of the answers before it, a commit that was accepted counted all parts;
one that was not leaves a transaction that can be ended again, or aborted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import pyarrow as pa

from ..clock import Clock
from ..consume.offsets import offset_commits
from ..protocol.errors import (
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    LakeMQError,
    ProducerFenced,
    RequestTimedOut,
    StaleTopicMetadata,
    TransactionAbortable,
)
from ..protocol.requests import (
    AnyRequest,
    AnyResult,
    CommitOffsets,
    EndTransaction,
    InitProducer,
    OffsetCommit,
    Produce,
    ProducerDone,
    TransactionEnded,
    TransactionRef,
)
from ..requester import Requester

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset to consume."""

Part = tuple[Produce, pa.Table | None]
"""A publish that was not sent yet, with the rows that ride in it."""

_AT_AN_END = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)

R = TypeVar("R")


class TransactionManager:
    """One transactional id and at most one open transaction. Thread-safe; calls in the wrong order are refused.

    last_batch_id: the last micro-batch that was committed under the id, -1 before the first.
    """

    def __init__(
        self, requester: Requester, clock: Clock, transactional_id: str, timeout_ms: int, answer_timeout_ms: int
    ) -> None:
        """timeout_ms: transaction.timeout.ms; answer_timeout_ms: how long an end is asked for before giving up."""
        self._requester, self._clock = requester, clock
        self.transactional_id, self._timeout_ms = transactional_id, timeout_ms
        self._answer_timeout_ms = answer_timeout_ms
        self._lock = threading.RLock()
        self._ref: TransactionRef | None = None
        self._open = False
        self._part_count = 0
        self._offsets: dict[str, dict[tuple[str, int], OffsetCommit]] = {}
        self._refused: LakeMQError | None = None
        self._over: LakeMQError | None = None
        self._is_doubtful = False
        """Something of the transaction was sent and not answered."""
        self.last_batch_id = -1

    # -- beginning --------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Take the id: who had it is fenced, and what it left open is aborted. Raises what the request raises."""
        request = InitProducer(self.transactional_id, self._timeout_ms)
        done = self._until_answered(lambda: _result(self._requester.submit(request), ProducerDone))
        with self._lock:
            self._ref = TransactionRef(self.transactional_id, done.producer_id, done.producer_epoch)
            self.last_batch_id = done.batch_id

    def begin(self) -> TransactionRef:
        """Open a transaction; nobody hears of it before its first publish. Raises IllegalState, ProducerFenced."""
        with self._lock:
            self._raise_if_over()
            if self._ref is None:
                raise IllegalState("The transactional id was not initialized.", expected="init_transactions() first")
            if self._open:
                raise IllegalState("A transaction is open already.", expected="commit or abort it first")
            self._open, self._part_count, self._refused, self._is_doubtful = True, 0, None, False
            self._offsets.clear()
            return self._ref

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def is_initialized(self) -> bool:
        return self._ref is not None

    def let_go(self) -> None:
        """How the transaction ended is not known: the id must be taken anew, which ends what is still open."""
        with self._lock:
            self._ref, self._open = None, False

    # -- its parts --------------------------------------------------------------------------------------

    def ref(self) -> TransactionRef:
        """Under which a part is sent. Raises IllegalState (nothing is open), TransactionAbortable, ProducerFenced."""
        with self._lock:
            self._raise_if_over()
            if not self._open or self._ref is None:
                raise IllegalState("No transaction is open.", expected="begin_transaction() first")
            self._raise_if_refused()
            return self._ref

    def accepted(self) -> None:
        """A part was accepted: a commit must find it."""
        with self._lock:
            self._part_count += 1

    def refused(self, error: BaseException) -> None:
        """A part was refused, or nobody knows what became of it: the transaction can only be aborted."""
        with self._lock:
            if isinstance(error, _AT_AN_END):
                self._over = error
            self._is_doubtful |= isinstance(error, RequestTimedOut)
            known = error if isinstance(error, LakeMQError) else LakeMQError(str(error))
            self._refused = self._refused or known

    def add_offsets(self, group: str, offsets: Offsets, metadata: str | None = None) -> None:
        """Offsets that the commit carries; of a partition that was named before, these count."""
        self.ref()
        with self._lock:
            mine = self._offsets.setdefault(group, {})
            mine.update({(one.topic, one.partition): one for one in offset_commits(offsets, metadata)})

    # -- ending -----------------------------------------------------------------------------------------

    def commit(self, parts: Sequence[Part] = (), batch_id: int | None = None) -> list[int]:
        """Send these last parts, the offsets and the commit, in one letter where they fit.

        Returns the indexes of parts whose topics have changed: to be made anew and committed by another call; none
        when all is committed. Raises TransactionAbortable, ProducerFenced, IllegalState; RequestTimedOut: the outcome
        is unknown, the same call may be made again.
        """
        ref = self.ref()
        if not (parts or self._offsets or self._part_count):
            self._ended(ref)
            return []
        offsets = [CommitOffsets(group, list(mine.values()), ref) for group, mine in self._offsets.items() if mine]
        count = self._part_count + len(parts) + len(offsets)
        end = EndTransaction(ref, True, count, batch_id)
        letter: list[tuple[AnyRequest, pa.Table | None]] = [*parts, *((one, None) for one in offsets), (end, None)]
        *answers, ended = self._until_answered(lambda: self._sent(letter))
        error = ended.exception()
        if error is None:
            self._ended(_next_ref(ref, _result(ended, TransactionEnded)), batch_id)
            return []
        return self._after_refusal(answers, len(parts), error)

    def abort(self) -> None:
        """Nothing of the transaction will be seen.

        Raises ProducerFenced, IllegalState, RequestTimedOut; InvalidTxnState: a commit that was not answered has
        committed it.
        """
        with self._lock:
            self._raise_if_over()
            if not self._open or self._ref is None:
                raise IllegalState("No transaction is open.", expected="begin_transaction() first")
            ref = self._ref
        end = EndTransaction(ref, False)
        try:
            done = self._until_answered(lambda: _result(self._requester.submit(end), TransactionEnded))
        except _AT_AN_END as error:
            self._over, self._open = error, False
            raise
        following = _next_ref(ref, done)
        if self._is_doubtful and following == ref:
            self.initialize()  # nothing had come: should it come yet, it must not find the transaction that follows
            assert self._ref is not None
            following = self._ref
        self._ended(following)

    def _sent(self, letter: Sequence[tuple[AnyRequest, pa.Table | None]]) -> list[Future[AnyResult]]:
        futures = self._requester.submit_all(letter)
        # an unknown outcome is of the letter as a whole
        if isinstance(error := futures[-1].exception(), RequestTimedOut):
            self._is_doubtful = True
            raise error
        return futures

    def _after_refusal(self, answers: Sequence[Future[AnyResult]], part_count: int, error: BaseException) -> list[int]:
        """What a commit that was refused means for the parts that came with it."""
        errors = [answer.exception() for answer in answers]
        if isinstance(error, _AT_AN_END):
            self._over, self._open = error, False
            raise error
        if isinstance(error, LakeMQError) and error.retriable:
            raise error  # it was not sent: the same call may be made again
        cause = next((one for one in errors if one is not None and not isinstance(one, StaleTopicMetadata)), None)
        if cause is not None or not any(errors):
            self.refused(cause or error)
            self._raise_if_refused()
        with self._lock:
            # the sequencer has the offsets now, as often as they are sent
            self._part_count += sum(one is None for one in errors)
            self._offsets.clear()
        return [i for i in range(part_count) if errors[i] is not None]

    def _ended(self, following: TransactionRef, batch_id: int | None = None) -> None:
        with self._lock:
            self._ref, self._open, self._refused = following, False, None
            self._part_count = 0
            self._offsets.clear()
            if batch_id is not None:
                self.last_batch_id = max(self.last_batch_id, batch_id)

    def _until_answered(self, ask: Callable[[], R]) -> R:
        """Ask again when nobody answered: an init or an end that was decided already is answered the same."""
        deadline_ms = self._clock.steady_ms() + self._answer_timeout_ms
        while True:
            try:
                return ask()
            except RequestTimedOut:
                if self._clock.steady_ms() > deadline_ms:
                    raise

    def _raise_if_over(self) -> None:
        if self._over is not None:
            raise ProducerFenced(found=f"{self._over.name}: {self._over.detail}") from self._over

    def _raise_if_refused(self) -> None:
        if self._refused is not None:
            raise TransactionAbortable(found=str(self._refused)) from self._refused


def _result(future: Future[AnyResult], kind: type[R]) -> R:
    result = future.result()
    assert isinstance(result, kind)
    return result


def _next_ref(ref: TransactionRef, done: TransactionEnded) -> TransactionRef:
    return TransactionRef(ref.transactional_id, done.producer_id, done.producer_epoch)
