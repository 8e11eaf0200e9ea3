"""The Python producer: records and Arrow tables in, sent in the background, each exactly once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from ...namespace import process
from ...namespace.clock import Clock
from ...namespace.process import started_thread
from ...protocol.errors import (
    BufferFull,
    IllegalState,
    InvalidRecord,
    LakeMQError,
    RequestTimedOut,
    StorageError,
    UnknownProducerId,
    UnknownServerError,
)
from ...protocol.values.log import Published
from ...protocol.values.producers import InitProducer, ProducerDone
from ..attempts import until_answered
from ..requester import Requester
from .arrow import ArrowPublisher, Asked, Body, Prepared
from .buffer import Buffer
from .delivery import Batch, OnDelivery, Outcome, Outcomes, Placement, RecordFuture, call_all
from .few import few_of_table
from .options import ProducerOptions
from .publication import OnRefusal, Publication, Sequences
from .record import MAX_BYTES, Header, check_callback, check_size, checked_bytes, checked_destination, checked_extras
from .request import body_of
from .told import Acknowledged, Failures, Flushed

log = logging.getLogger("lakemq.producer")

_RECORD_BYTES = 32
"""What a record takes beside its key, value and headers, about."""

_MAX_KNOWN = 10_000
"""Names that are not checked again."""


class Producer:
    """Sends what it is given in the order given, per destination. Use it as a context manager.

    Thread-safe: a flush waits for all that any thread gave before it, and raises what of that has failed. What fails
    while nobody flushes is raised by the next `send`, `flush` or `close` of each thread that uses the producer.
    """

    _takes_quickly = True
    """Once it is known that it takes records, it does until it is closed."""

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        options: ProducerOptions,
        closed: Callable[[Producer], object] = lambda _: None,
        lock: Any = None,
    ) -> None:
        """closed: told when it is closed; lock: an RLock to share."""
        self._publisher, self._requester, self._clock, self._options = publisher, requester, clock, options
        self._tell_closed = closed
        self._sequences: Sequences | None = None
        self._lock = lock or threading.RLock()
        self._outcomes = Outcomes(self._lock)
        self._buffer = Buffer(options, clock, self._outcomes, self._takes_quickly)
        self._pid = process.current_id
        self._destinations: set[str] = set()
        self._timed_out_ms = -1
        self._is_closed = False
        self._failures, self._acknowledged = Failures(), Acknowledged()
        self._thread = started_thread(self._run, "lakemq-producer")

    # -- giving -----------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Sequence[Header] | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Give one record to be sent. Its future says where it is; on_delivery is called with (error, metadata).

        deliver_at: the time (or epoch milliseconds) before which it is in no log; delay_ms: how long after its
        timestamp that is; ttl_ms: how long after it came into the log it expires. Raises
        InvalidTopic, InvalidRecord, InvalidTimestamp, MessageTooLarge, BufferFull, IllegalState, and an error of what
        was given before that this thread was not told of; nothing is sent then.
        """
        if type(topic) is not str or topic not in self._destinations:
            topic = self._known_destination(topic)
        if type(value) is not bytes:
            value = checked_bytes("value", value)
        if type(key) is not bytes:
            key = checked_bytes("key", key)
        size = (len(value) if value else 0) + (len(key) if key else 0) + _RECORD_BYTES
        extras = None
        timed = deliver_at is not None or delay_ms is not None or ttl_ms is not None
        if timed or headers is not None or partition is not None or timestamp_ms is not None:
            extras, more = checked_extras(headers, partition, timestamp_ms, deliver_at, delay_ms, ttl_ms)
            size += more
        if on_delivery is not None:
            check_callback("on_delivery", on_delivery)
        if size > MAX_BYTES:
            check_size(size)
        if process.current_id != self._pid:
            self._outcomes.check_process()
        with self._lock:
            if extras is None and on_delivery is None and self._failures.is_told:
                quick = self._buffer.add_quickly(topic, size, key, value)
                if quick is not None:
                    return quick
            self._make_room(size)
            future = RecordFuture(*self._buffer.add_record(topic, size, key, value, extras))
            if on_delivery is not None:
                future.on_delivery(on_delivery)
        return future

    def send_arrow(self, topic: str, table: pa.Table) -> None:
        """Give a table: `value`, and optionally `key`, `headers`, `timestamp`, `partition`, `deliver_at`, `delay_ms`,
        `ttl_ms`.

        Raises as `send`.
        """
        self._outcomes.check_process()
        topic = self._known_destination(topic)
        if not isinstance(table, pa.Table):
            raise InvalidRecord("This is no table.", found=type(table).__name__, expected="a pyarrow.Table")
        now_ms = self._clock.now_ms()
        body, asked = few_of_table(table, topic, now_ms) or body_of(table, topic, now_ms)
        size = body.nbytes
        with self._lock:
            self._make_room(size)
            if body.num_rows == 0:
                return
            self._buffer.add_table(topic, size, body, asked)

    def _known_destination(self, topic: object) -> str:
        name = checked_destination(topic)
        if len(self._destinations) < _MAX_KNOWN:
            self._destinations.add(name)
        return name

    def _make_room(self, size: int) -> None:
        """Whether something may be given now; room for it is waited for. The lock is held."""
        self._check_takes()
        if not self._buffer.has_room(size):
            self._wait_for_room(size)

    def _check_takes(self) -> None:
        self._check_open()
        self._failures.raise_untold()

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalState("The producer is closed.")

    def _wait_for_room(self, size: int) -> None:
        """What it is given for may end meanwhile, so all is looked at again."""
        self._outcomes.check_may_wait()
        deadline_ms = self._clock.steady_ms() + self._options.max_block_ms
        while not self._buffer.has_room(size):
            left_ms = deadline_ms - self._clock.steady_ms()
            if left_ms <= 0:
                raise BufferFull(
                    f"The buffer did not drain in {self._options.max_block_ms} ms.",
                    found=f"{self._buffer.held_bytes} bytes waiting",
                    expected=f"room for {size} within {self._options.buffer_memory}",
                )
            self._outcomes.changed.wait(left_ms / 1000)
            self._check_takes()

    # -- waiting ----------------------------------------------------------------------------------------

    def flush(self) -> Flushed:
        """Wait until all that was given before, by whichever thread, is acknowledged; not for what comes later.

        Raises the first error of what was waited for, and of what has failed since this thread's last call. What it
        returns was acknowledged since the flush before, of any thread; where each record is its future says.
        """
        self._outcomes.check_may_wait()
        with self._lock:
            self._check_open()
            self._wait_for_given()
            return self._acknowledged.take()

    def _wait_for_given(self) -> None:
        """Until what was given is settled. Raises the first error of it, or one that this thread was not told of."""
        self._failures.meet()
        given, awaited = self._buffer.last_number, self._buffer.want_all()
        waiting = awaited
        while waiting := [one for one in waiting if self._buffer.holds(one) and one.doubt is None]:
            self._outcomes.changed.wait()
        self._failures.raise_untold(given)
        for batch in awaited:
            if error := batch.failure:
                raise error.with_traceback(None)

    def close(self) -> None:
        """Send what was given, then end; what comes later is refused. Raises what `flush` raises."""
        self._outcomes.check_may_wait()
        with self._lock:
            self._failures.meet()
            self.refuse_more()
            self._buffer.end()
        self._thread.join()
        self._tell_closed(self)
        with self._lock:
            self._failures.raise_untold()

    def check_may_wait(self) -> None:
        """Raises IllegalState: it cannot be closed here, in a fork or in a callback of its own."""
        self._outcomes.check_may_wait()

    def refuse_more(self) -> None:
        """From here on nothing is taken; what was taken before is sent."""
        with self._lock:
            self._is_closed = True
            self._buffer.take_no_more_quickly()
            self._outcomes.changed.notify_all()  # who waits for room

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    # -- transactions: those of TransactionalProducer ---------------------------------------------------

    def init_transactions(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        raise IllegalState("This producer has no transactional id.", expected="mq.producer(transactional_id)")

    def begin_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def commit_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def abort_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    # -- sending: in the producer's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                try:
                    outcome = self._deliver(batch)
                except BaseException as error:  # told to who gave it; what else waits is sent all the same
                    outcome = Outcome(error=known(error))
                self._settle([(batch, outcome)])
        except BaseException as error:
            log.exception("the thread of a producer has ended")
            self._thread_failed(known(error))

    def _thread_failed(self, error: LakeMQError) -> None:
        """Nobody sends any more: all that the thread was given fails, and nothing is taken."""
        with self._lock:
            self.refuse_more()
            given = self._buffer.given_to_thread()
        self._settle([(batch, Outcome(error=error)) for batch in given])

    def _next(self) -> Batch | None:
        with self._lock:
            return self._buffer.next()

    def _deliver(self, batch: Batch) -> Outcome:
        now_ms, deadline_ms = self._clock.steady_ms(), batch.given_ms + self._options.delivery_timeout_ms
        try:
            if batch.given_ms <= self._timed_out_ms and now_ms > deadline_ms:
                raise RequestTimedOut("Not sent: nobody answered what was given before, until this was overdue, too.")
            body, asked = batch.rows(self._clock.now_ms())
            return self._outcome(*self._publish(batch, body, asked, deadline_ms))
        except BaseException as error:
            if isinstance(error, RequestTimedOut) and now_ms <= deadline_ms:
                self._timed_out_ms = self._clock.steady_ms()
            self._sending_failed(error)
            raise

    def _publish(self, batch: Batch, body: Body, asked: Asked, deadline_ms: int) -> tuple[Prepared, Published]:
        # of records given one by one a bad one is refused alone; a table is taken as a whole
        alone = batch.records is not None and self._options.on_error == "fail"
        on_error: OnRefusal = "leave_out" if alone else self._options.on_error
        while True:
            is_new = self._sequences is None
            sequences = self._ready(deadline_ms)
            left_ms = max(0, deadline_ms - self._clock.steady_ms())
            try:
                return self._publisher.send(
                    Publication(batch.destination, on_error, sequences=sequences), body, asked, left_ms
                )
            except UnknownProducerId:
                if is_new or not self._options.idempotent:
                    raise
                self._sequences = None  # it idled for too long; of this batch nothing is in doubt

    def _sending_failed(self, error: BaseException) -> None:
        # if it was published after all, its sequences are taken: others with them would pass for repeats
        self._sequences = None

    def _ready(self, deadline_ms: int) -> Sequences | None:
        if self._options.idempotent and self._sequences is None:
            done = self._initialized(deadline_ms)
            self._sequences = Sequences(done.producer_id, done.producer_epoch)
        return self._sequences

    def _initialized(self, deadline_ms: int) -> ProducerDone:
        # an id that nobody uses does no harm
        done = until_answered(lambda: self._requester.ask(InitProducer()), self._clock, deadline_ms)
        assert isinstance(done, ProducerDone)
        return done

    # -- what became of it ------------------------------------------------------------------------------

    def _outcome(self, prepared: Prepared, published: Published) -> Outcome:
        placement = Placement(
            prepared.route.topics[0].topic,
            prepared.partition,
            prepared.timestamps_us,
            published.units,
            prepared.due_ms,
            self._publisher.receipts(prepared, published),
        )
        return Outcome(published, placement, placement.first_refusal() if self._options.on_error == "fail" else None)

    def _settle(self, settled: Sequence[tuple[Batch, Outcome]]) -> None:
        """The outcomes of batches, told to futures, then to callbacks, then to who waits in `flush` or for room.

        What has an outcome keeps it. An interrupt of the main thread leaves nobody waiting.
        """
        calls: list[Callable[[], object]] = []
        try:
            self._note(settled, calls)
            with self._outcomes.calling_back():
                call_all(calls)
        finally:
            self._note(settled, calls)  # for where it was interrupted
            self._release([batch for batch, _ in settled])

    def _release(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            for batch in batches:
                if self._buffer.holds(batch):
                    self._buffer.settled(batch)
            self._outcomes.changed.notify_all()

    def _note(self, settled: Sequence[tuple[Batch, Outcome]], calls: list[Callable[[], object]]) -> None:
        """calls: which are to be called then."""
        with self._lock:
            for batch, outcome in settled:
                if not batch.is_settled:
                    self._note_one(batch, outcome, calls)
            self._outcomes.changed.notify_all()

    def _note_one(self, batch: Batch, outcome: Outcome, calls: list[Callable[[], object]]) -> None:
        calls += batch.settle(outcome)
        if outcome.published is not None:
            self._acknowledged.add(outcome.published)
        if outcome.error is not None and outcome.is_news:
            self._failures.add(batch.number, outcome.error)


def known(error: BaseException) -> LakeMQError:
    """The error as one of ours. What another one says may repeat the payload."""
    if isinstance(error, LakeMQError):
        return error
    if isinstance(error, OSError):
        ours: LakeMQError = StorageError("The rows could not be stored.", found=error.strerror or type(error).__name__)
    else:
        ours = UnknownServerError("The sending failed.", found=type(error).__name__)
    ours.__cause__ = error
    return ours
