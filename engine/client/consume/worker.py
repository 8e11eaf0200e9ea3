"""A worker: a handler is called for each message of a queue group, in several threads.

How it works. One thread polls, and puts the messages into [lanes](lanes.py), by their keys. The other threads take a
lane, handle some of its messages one after the other, and put it back. So messages of a key keep their order, and a
slow one holds up its own lane only. The thread that has handled a message also acknowledges it.

Invariants:
- Each message that was handed to a handler gets one outcome. Who takes the message out of the claim of the slot,
  records it: the thread when the handler ends, or the poller when its time is over.
- A message that no handler has got goes back unseen: its delivery does not count.
- After a failure, no later message of the same key is handled before the failed one comes again, if the group keeps
  that order (`nack.order` is `partition`). Polls, failures and putting into lanes hold the consumer's lock, for that.
"""

from __future__ import annotations

import logging
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutinefunction, isgenerator
from itertools import compress
from operator import not_
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...namespace.clock import Clock
from ...namespace.process import start_thread
from ...protocol.errors import FencedMemberEpoch, IllegalState, InvalidRecordState, LakeMQError
from ..arguments import invalid_argument, parse_whole_number
from ..fetch.fetch_result import Message, to_message
from ..offsets import TopicPartition
from ..tracing import find_links, find_tracer, open_span
from .batch import shorten_error
from .lanes import Lane, Lanes
from .options import RebalanceListener
from .queue_consumer import QueueConsumer

if TYPE_CHECKING:
    from asyncio import Task

log = logging.getLogger("lakemq.worker")

Handler = Callable[[Message], object]
"""Handles a message. It may be a coroutine function."""
Errors = type[Exception] | tuple[type[Exception], ...]
Backoff = Sequence[int] | Callable[[Message, Exception], int] | None
"""Milliseconds before each further delivery, the last for all later ones; or a function; None: as the group says."""

BACKOFF_MS = (1_000, 2_000, 4_000, 8_000, 16_000)
MAX_CONCURRENCY = 1_000
_MAX_MS = 2**40
_TURN = 64
"""Messages of a lane that a thread handles before the other lanes get their turn."""
_MOST_WAITING = 5_000
"""Messages that wait in lanes. By default a group lets a member have 10,000."""
_AHEAD_MS = 250
"""For about so long a poll brings work."""
_TICK_MS = 50
"""How often the poller sends acknowledgements and looks at time limits, while it has nothing to poll for."""
_POLL_MS = 250
"""How long a poll waits for messages. A stop waits for the poll."""
_KEEP_UP_MS = 1_000
"""After this time without a poll, the worker looks whether its partitions have changed."""
_SAY_EVERY_MS = 30_000
"""How often a worker that waits says so."""
_FLUSH_MS = 10_000
_DELIVERY_COUNT = Message._fields.index("delivery_count")


class WorkerReport(NamedTuple):
    """How many messages a worker has acknowledged, given back and rejected."""

    acknowledged: int
    given_back: int
    rejected: int


class Stopped(Exception):
    """The worker was stopped before the handler of a message ended."""


@dataclass(frozen=True)
class RetryRule:
    """Says what becomes of a message whose handler has failed.

    Attributes:
        retry_for: after these errors the message is delivered again; after all others it is rejected.
        reject_for: after these it is rejected, although they are in `retry_for`.
    """

    retry_for: Errors = Exception
    reject_for: Errors = ()
    backoff_ms: Backoff = BACKOFF_MS

    def rejects(self, error: BaseException) -> bool:
        """Return whether the message becomes a dead letter at once. What stops the worker rejects nothing."""
        if isinstance(error, Stopped) or not isinstance(error, Exception):
            return False
        return isinstance(error, self.reject_for) or not isinstance(error, self.retry_for)

    def find_delay_ms(self, message: Message, error: BaseException) -> int | None:
        """Return how long the message waits; None: as `nack.backoff.ms` of the group says."""
        if isinstance(error, Stopped):
            return 0
        if self.backoff_ms is None or not isinstance(error, Exception):
            return None
        if callable(self.backoff_ms):
            return parse_whole_number("backoff_ms", self.backoff_ms(message, error), 0, _MAX_MS)
        return self.backoff_ms[min(message.delivery_count, len(self.backoff_ms)) - 1]


def parse_retry_rule(retry_for: Any, reject_for: Any, backoff_ms: Any) -> RetryRule:
    """Return the rule of these arguments. Raises InvalidRequest."""
    for name, value in ("retry_for", retry_for), ("reject_for", reject_for):
        kinds = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise invalid_argument(name, value, "a class of exceptions, or a tuple of them")
    if isinstance(backoff_ms, Sequence) and not isinstance(backoff_ms, str) and backoff_ms:
        backoff_ms = [parse_whole_number("backoff_ms", delay_ms, 0, _MAX_MS) for delay_ms in backoff_ms]
    elif not (backoff_ms is None or callable(backoff_ms)):
        raise invalid_argument("backoff_ms", backoff_ms, "milliseconds in a list, a function, or None")
    return RetryRule(retry_for, reject_for, backoff_ms)


def describe_failure(error: BaseException) -> str:
    """Return the exception's type and text, and where it was raised: what a dead letter says."""
    lines = traceback.format_exception_only(error)  # a SyntaxError begins with its place, indented
    line = next((line for line in lines if not line.startswith(" ")), lines[0]).strip()
    if not (frames := traceback.extract_tb(error.__traceback__)):
        return line
    last = frames[-1]
    return f"{line} ({PurePath(last.filename).name}, line {last.lineno}, in {last.name})"


def count_ahead(done_count: int, elapsed_ms: int, thread_count: int, were_idle: bool) -> int:
    """Return how many messages to poll: what the threads handle in `_AHEAD_MS`, at the pace since the last poll.

    were_idle: the threads have waited for messages, so they may be faster: poll at least twice what they have handled.
    """
    count = max(2 * thread_count, done_count * _AHEAD_MS // max(elapsed_ms, 1), 2 * done_count if were_idle else 0)
    return min(count, _MOST_WAITING)


class _Slot:
    """One handler thread.

    Attributes:
        claim: the message that the handler has; empty while it has none. Who removes it records its outcome.
        since_ms: since when the handler has the message, if there is a limit.
        late_since_ms: the same, of a message that the poller has taken away while its handler still runs.
        lane: the lane that the thread has. A handler beyond its limit has none.
        task: the running call of a coroutine function.
        acknowledged: how many messages it has acknowledged.
    """

    def __init__(self) -> None:
        self.claim: list[Message] = []
        self.since_ms = self.acknowledged = 0
        self.late_since_ms: int | None = None
        self.lane: Lane | None = None
        self.task: Task[BaseException | None] | None = None


class HandlerLoop(RebalanceListener):
    """Runs a handler for the messages of a queue group. `run` returns when it was stopped."""

    def __init__(
        self,
        handler: Any,
        join: Callable[[RebalanceListener], QueueConsumer],
        clock: Clock,
        rule: RetryRule,
        concurrency: Any,
        time_limit_ms: Any,
        stop_timeout_ms: Any,
        stop: Any,
    ) -> None:
        """Check the arguments, which are those of `mq.run_worker`. join: returns a new member of the group.

        Raises InvalidRequest.
        """
        if not callable(handler):
            raise invalid_argument("handler", handler, "a function of a message")
        if not (stop is None or isinstance(stop, threading.Event)):
            raise invalid_argument("stop", stop, "a threading.Event")
        thread_count = parse_whole_number("concurrency", concurrency, 1, MAX_CONCURRENCY)
        self._handler: Handler = handler
        self._join, self._clock, self._rule = join, clock, rule
        self._limit_ms = (
            None if time_limit_ms is None else parse_whole_number("time_limit_ms", time_limit_ms, 1, _MAX_MS)
        )
        self._stop_timeout_ms = parse_whole_number("stop_timeout_ms", stop_timeout_ms, 0, _MAX_MS)
        self._stop = stop or threading.Event()
        self._slots = [_Slot() for _ in range(thread_count)]
        self._lanes = Lanes(thread_count, self._stop)
        self._fatal: BaseException | None = None
        self._given_back = self._rejected = self._done_at_poll = 0
        self._were_idle = False
        """Whether the threads had nothing to do when the last poll ended."""
        self._nacked: dict[TopicPartition, int] = {}
        """(topic, partition) -> the lowest offset that was given back since the last poll began."""
        self._lost: set[TopicPartition] = set()
        """Partitions that were lost while lanes had messages of them."""
        now_ms = clock.steady_ms()
        self._polled_ms, self._kept_up_ms, self._said_ms = now_ms, now_ms, now_ms - _SAY_EVERY_MS + 2 * _KEEP_UP_MS

    def run(self) -> WorkerReport:
        """Handle messages until `stop` is set, or an error ends the worker.

        Raises:
            BaseException: what a handler has raised that is no Exception.
            LakeMQError: the consumer cannot go on, or handlers beyond their limit have taken all threads.
        """
        consumer: QueueConsumer | None = None
        with _stop_on_signals(self._stop), _open_binder(self._handler) as self._bind:
            while consumer is None:
                if self._stop.is_set():
                    return WorkerReport(0, 0, 0)
                with self._waits_out_errors():
                    consumer = self._join(self)
            self._consumer = consumer
            try:
                for number, slot in enumerate(self._slots):
                    start_thread(partial(self._work, slot), f"lakemq-worker-{number}")
                log.info("A worker of group %s has started, with %d threads.", consumer.group, len(self._slots))
                while not self._stop.is_set() and self._fatal is None:
                    with self._waits_out_errors():
                        if self._wants_more():
                            self._poll()
                        else:
                            self._keep_up()
            finally:
                self._end()
        if self._fatal is not None:
            raise self._fatal
        return self._report()

    # -- the poller -------------------------------------------------------------------------------------

    @contextmanager
    def _waits_out_errors(self) -> Iterator[None]:
        """Log an error that may pass, and wait for a moment. Other errors end the worker."""
        try:
            yield
        except (InvalidRecordState, FencedMemberEpoch) as error:
            log.warning("Acknowledgements were refused. Their messages are delivered again: %s", error)
        except (LakeMQError, OSError) as error:
            if isinstance(error, LakeMQError) and not error.retriable:
                raise
            self._say_wait([str(error)])
            self._clock.sleep(_POLL_MS)

    def _say_wait(self, reasons: Sequence[str]) -> None:
        """Log why the worker waits, from time to time."""
        now_ms = self._clock.steady_ms()
        if reasons and now_ms - self._said_ms >= _SAY_EVERY_MS:
            self._said_ms = now_ms
            log.warning("The worker waits, and goes on by itself: %s", " ".join(reasons))

    def _wants_more(self) -> bool:
        """Return whether to poll. If not, this has waited for room first, but not longer than a tick.

        Few messages wait while handlers are slow, because messages that wait are delivered again after a rebalance.
        If the waiting ones are all of a few keys, more are polled to find others.
        """
        return self._lanes.wait_for_room(max(20 * len(self._slots), self._count_ahead()), _TICK_MS)

    def _count_ahead(self) -> int:
        elapsed_ms = self._clock.steady_ms() - self._polled_ms
        return count_ahead(self._count_done() - self._done_at_poll, elapsed_ms, len(self._slots), self._were_idle)

    def _count_done(self) -> int:
        return self._lanes.count_taken() - sum(len(slot.claim) for slot in self._slots)

    def _poll(self) -> None:
        """Put the next messages into lanes."""
        consumer, self._nacked = self._consumer, {}
        with consumer._lock.own:
            consumer._ack_sender.refusals.raise_all()
        if not self._lanes.count_waiting():
            self._lost.clear()
        count, self._done_at_poll = self._count_ahead(), self._count_done()
        self._polled_ms = self._kept_up_ms = self._clock.steady_ms()
        try:
            batch = consumer._poll(count, _POLL_MS)
        except IllegalState:
            if consumer._lock.is_closed:
                raise
            return self._keep_up()  # the worker has as many messages as the group lets a member have
        self._were_idle = self._lanes.is_idle()
        self._watch_handlers()
        if not batch:
            return self._say_wait(batch.waits_for)
        try:
            rows = list(batch._rows())
        except BaseException:  # the store failed: the next poll returns them again
            with consumer._lock.own, suppress(LakeMQError, OSError):
                consumer._reader.mark_unseen(batch)
            raise
        with consumer._lock.own:
            if self._nacked:  # put none of those after a message that was given back meanwhile
                nacked = self._nacked
                goes_on = [offset <= nacked.get((topic, number), offset) for topic, number, offset, *_ in rows]
                consumer._member.hide(map(to_message, compress(rows, map(not_, goes_on))))
                rows = list(compress(rows, goes_on))
            self._lanes.put(rows)

    def _keep_up(self) -> None:
        """Watch the handlers, send acknowledgements, and take in what the group has decided, without polling."""
        consumer = self._consumer
        self._watch_handlers()
        with consumer._lock.own:
            if self._clock.steady_ms() - self._kept_up_ms >= _KEEP_UP_MS:
                self._kept_up_ms = self._clock.steady_ms()
                consumer._reader.begin_poll(newest=True)
            consumer._ack_sender.send()

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Let threads check whether the worker still has the messages that wait."""
        self._lost.update(partitions)

    def _watch_handlers(self) -> None:
        """Give up the messages of handlers beyond their limit. Raises IllegalState if these have taken all threads."""
        now_ms, limit_ms = self._clock.steady_ms(), self._limit_ms
        if limit_ms is None:
            return
        for slot in self._slots:
            for message in list(slot.claim):
                if now_ms - slot.since_ms >= limit_ms:
                    error = TimeoutError(f"The handler took longer than its limit of {limit_ms} ms.")
                    self._take_away(slot, message, error)
        late = [now_ms - slot.late_since_ms for slot in self._slots if slot.late_since_ms is not None]
        if len(late) == len(self._slots) and min(late) >= 2 * limit_ms:
            raise IllegalState(
                "No thread of the worker is left: each runs a handler that does not end. Start the process again.",
                found=f"{len(self._slots)} handlers that have run for {2 * limit_ms} ms or longer",
                expected=f"at most {limit_ms} ms, which is time_limit_ms",
            )

    def _take_away(self, slot: _Slot, message: Message, error: Exception) -> None:
        """Record the failure of a handler that still runs. A thread cannot be stopped; a coroutine is cancelled."""
        lane, task = slot.lane, slot.task  # read before the claim is removed: then they are no later message's
        slot.late_since_ms = slot.since_ms  # the thread resets it when its handler ends
        try:
            slot.claim.remove(message)
        except ValueError:  # the handler has just ended
            slot.late_since_ms = None
            return
        # From here on the thread leaves the lane alone, also if its handler ends now.
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._fail(message, lane, error)
        with self._lanes.lock:
            if slot.lane is lane:  # else the thread has gone on, with another one
                slot.lane = None
            if lane is not None:
                self._lanes.put_back(lane)

    def _end(self) -> None:
        """Let handlers end, give back all other messages, and leave the group."""
        self._lanes.close()
        deadline_ms = self._clock.steady_ms() + self._stop_timeout_ms
        while any(slot.lane is not None for slot in self._slots) and self._clock.steady_ms() < deadline_ms:
            self._lanes.wait_for_room(0, _TICK_MS)
            with suppress(LakeMQError, OSError):
                self._keep_up()
        for slot in self._slots:
            for message in list(slot.claim):
                self._take_away(slot, message, Stopped("The handler had not ended in time."))
        consumer = self._consumer
        try:
            with consumer._lock.own:
                consumer._member.hide(map(to_message, self._lanes.list_waiting()))
            consumer.flush(_FLUSH_MS)
        except LakeMQError as error:
            log.warning("Some messages may be delivered again: %s", error)
        consumer.close()
        log.info(
            "The worker of group %s has stopped: %d messages acknowledged, %d given back, %d rejected.",
            consumer.group,
            *self._report(),
        )

    def _report(self) -> WorkerReport:
        return WorkerReport(sum(slot.acknowledged for slot in self._slots), self._given_back, self._rejected)

    # -- the handler threads ----------------------------------------------------------------------------

    def _work(self, slot: _Slot) -> None:
        """Handle messages, lane by lane, until the worker ends."""
        lane: Lane | None = None
        try:
            while (lane := self._next_lane(slot, lane)) is not None:
                lane = self._handle_some(slot, lane)
        except BaseException as error:  # never a silent end
            self._fatal, slot.lane = self._fatal or error, None

    def _next_lane(self, slot: _Slot, lane: Lane | None) -> Lane | None:
        """Give back a lane, and return the next one; None at the end."""
        lanes, sender = self._lanes, self._consumer._ack_sender
        if lane is not None:
            with lanes.lock:
                lanes.put_back(lane)
                slot.lane = None
            # Acknowledgements gather until the poller sends them, but not for long, and not if no more will come.
            if lanes.is_idle() or self._clock.steady_ms() >= sender.sent_at_ms + _TICK_MS:
                with self._consumer._lock.own, suppress(LakeMQError, OSError):
                    sender.send()
        with lanes.lock:
            slot.lane = lanes.take()
            return slot.lane

    def _handle_some(self, slot: _Slot, lane: Lane) -> Lane | None:
        """Handle messages of a lane; return the lane, or None if the poller has taken it away."""
        # This is the fast path: it takes no lock, and reads the clock only for a limit.
        call = self._bind(slot) if find_tracer() is None else partial(self._call_in_span, self._bind(slot))
        lanes, claim, is_stopped, trackers = self._lanes, slot.claim, self._stop.is_set, self._consumer._trackers
        read_ms = None if self._limit_ms is None else self._clock.steady_ms
        for _ in range(_TURN):
            if not lane or is_stopped() or lanes.is_closed:
                break
            row = lane.popleft()
            message = to_message(row)
            if self._lost and not self._has(message):
                continue
            if read_ms is not None:
                slot.since_ms = read_ms()
            claim.append(message)
            try:
                result, failure = call(message), None
            except BaseException as error:
                result, failure = None, error
            if result is not None:
                _check_result(result)
            try:
                claim.pop()
            except IndexError:
                slot.late_since_ms = None
                log.warning("A handler beyond its limit has ended. %s", _name(message))
                return None
            if failure is not None:
                self._fail(message, lane, failure)
                continue
            tracker = trackers.get((row[0], row[1]))  # fields by index are faster: topic, partition, offset
            if tracker is not None and row[_DELIVERY_COUNT] == 1:
                tracker.single_acks.append(row[2])
                slot.acknowledged += 1
                continue
            try:
                self._consumer.ack([message])
                slot.acknowledged += 1
            except LakeMQError as error:
                log.warning("An acknowledgement was refused. The message is delivered again: %s", error)
        return lane

    def _has(self, message: Message) -> bool:
        with self._consumer._lock.own:
            return self._consumer._member.has_open(message)

    def _call_in_span(self, call: Handler, message: Message) -> object:
        group = self._consumer.group
        named = {"consumer.group.name": group, "destination.name": message.topic}
        links = partial(find_links, [list(message.headers)])
        with open_span("process", "process", group, named, "CONSUMER", links):
            return call(message)

    def _fail(self, message: Message, lane: Lane | None, error: BaseException) -> None:
        """Reject the message or give it back. What is no Exception also ends the worker."""
        consumer, text = self._consumer, shorten_error(describe_failure(error))
        rejects, delay_ms = self._rule.rejects(error), self._find_delay_ms(message, error)
        try:
            with consumer._lock.own:
                if rejects:
                    consumer.reject(message, text)
                    self._rejected += 1
                else:
                    consumer.nack(message, delay_ms, text)
                    self._given_back += 1
                    self._hold_back(message, lane)
        except LakeMQError as refusal:
            log.warning("The outcome of a message was refused, so it is delivered again: %s", refusal)
        outcome = "rejected" if rejects else "given back"
        trace = error if error.__traceback__ else None
        log.warning("A handler failed. The message is %s. %s: %s", outcome, _name(message), text, exc_info=trace)
        if not isinstance(error, Exception):
            self._fatal = self._fatal or error

    def _find_delay_ms(self, message: Message, error: BaseException) -> int | None:
        try:
            return self._rule.find_delay_ms(message, error)
        except Exception as failure:
            log.error("backoff_ms failed, so nack.backoff.ms of the group counts: %s", describe_failure(failure))
            return None

    def _hold_back(self, message: Message, lane: Lane | None) -> None:
        """Return the later messages of the lane's partition unseen, if they must not overtake the one given back.

        The consumer's lock is held, and the thread of the lane takes nothing from it meanwhile.
        """
        if not self._consumer._member.keeps_order:
            return
        tp = message.topic, message.partition
        self._nacked[tp] = min(message.offset, self._nacked.get(tp, message.offset))
        is_later = [(topic, number) == tp and offset > message.offset for topic, number, offset, *_ in lane or ()]
        if lane is not None and any(is_later):
            earlier, later = list(compress(lane, map(not_, is_later))), list(compress(lane, is_later))
            lane.clear()
            lane.extend(earlier)
            self._consumer._member.hide(map(to_message, later))


def _check_result(result: object) -> None:
    """Raise IllegalState if the handler has not run: calling a generator, or an unseen coroutine, runs nothing."""
    if isawaitable(result) or isgenerator(result) or isasyncgen(result):
        raise IllegalState(
            "The handler has not handled the message.",
            found=f"a {type(result).__name__}, which it returned",
            expected="a function without yield, or one declared with async def",
        )


def _name(message: Message) -> str:
    return f"{message.topic}-{message.partition}, offset {message.offset}, delivery {message.delivery_count}"


# Around a worker: signals, and the event loop of a coroutine function.


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT set the event, and the second one end the process. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()  # no thread of the worker waits for the event: `set` would take the lock of such a wait

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _open_binder(handler: Handler) -> Iterator[Callable[[_Slot], Handler]]:
    """Yield a function that returns what a thread calls: the handler, or a call that waits for its coroutine."""
    if not (iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)):
        yield lambda slot: handler
        return
    import asyncio  # most handlers do without

    loop = asyncio.new_event_loop()
    thread = start_thread(loop.run_forever, "lakemq-worker-loop")

    async def run(slot: _Slot, message: Message) -> BaseException | None:
        if not slot.claim:  # its time was over before another one let the loop go on
            return None
        slot.task = asyncio.current_task()
        try:
            await cast(Awaitable[object], handler(message))
        except asyncio.CancelledError:
            return TimeoutError("The handler was cancelled.")
        except BaseException as error:  # SystemExit would end the loop
            return error
        return None

    def call(slot: _Slot, message: Message) -> None:
        # A cancelled coroutine may go on. The thread waits for its end: else a blocked loop would get all messages.
        if (error := asyncio.run_coroutine_threadsafe(run(slot, message), loop).result()) is not None:
            raise error

    async def end() -> None:
        """End what handlers have left running, as `asyncio.run` does."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_asyncgens()

    try:
        yield lambda slot: partial(call, slot)
    finally:
        with suppress(TimeoutError):  # a handler blocks the loop, or a task does not end
            asyncio.run_coroutine_threadsafe(end(), loop).result(_KEEP_UP_MS / 1000)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_KEEP_UP_MS / 1000)
        if not loop.is_running():
            loop.close()
