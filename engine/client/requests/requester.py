"""Send requests to the sequencer in letters, one at a time, and return results.

A letter goes on the line to the leader, if there is one, and else into the mailbox. If the line fails, the same letter
goes into the mailbox under the same number, so that it is decided once. It does so only while the sequencer surely
knows the client. After a sleep of the machine, the sequencer may have decided the letter and forgotten the client: the
outcome is unknown, and the letter is not put again.

While a letter is on its way, further requests gather and travel together in the next one. So a process with a thousand
waiting threads costs one object per step. Because there is one letter at a time, the sequencer needs to keep only the
last answer per client. Each request is encoded in the call that makes it, so an invalid one does not affect others.
Rows of docs/architecture.md: publish 6, 12; end of a transaction 6.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from lakemq.tables.storage.coordination.mailbox import MAX_LETTER_BYTES, LetterExists, LetterName, Mailbox, MailboxFull
from lakemq.tables.storage.object_stores.objects import MaybeThere, RootGone

from ...namespace import crash, process
from ...namespace.at_exit import HOOKS
from ...namespace.clock import LOOK_MS, Clock, FolderWaiter, Stopwatch
from ...namespace.process import start_thread
from ...namespace.store_errors import build_removal_error
from ...protocol.codec.few_rows import Rows, concatenate_rows
from ...protocol.codec.letter import MAX_REQUESTS, decode_answer, encode_letter, encode_request
from ...protocol.errors import (
    ClientEnded,
    IllegalState,
    InconsistentClusterId,
    InvalidRequest,
    LakeMQError,
    MailboxFullError,
    MissingTopic,
    Refusal,
    RequestTimedOut,
    StaleApplicationVersion,
    StaleTopicMetadata,
    StorageError,
    TransactionAbortable,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_from_refusal,
    storage_error,
)
from ...protocol.values.kinds import AnyRequest, AnyResult
from .direct_line import DirectLine

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20
"""Bytes of requests that share a letter. A larger request travels alone."""

MAX_REQUEST_BYTES = MAX_LETTER_BYTES - (1 << 20)
"""Bytes of a request with its rows. The rest of the letter is for its envelope."""

IDLE_MS = 30_000
"""Idle time after which a client gives up its line and thread, and later takes a new id. It is half of the shortest
client.expiration.ms: after that the sequencer has forgotten the client, and would wait for its first letters. A letter
that was sent is not put again after this time either."""

_QUIET_MS = 10_000
"""Waiting time after which a warning is logged. A lease of ten seconds may have to run out before a take-over."""

_POLL_MS = (0.5, 1, 2, 4, 8, 16)
"""Pauses between polls for an answer where the file system does not notify us. The pause grows after every 20 polls."""

_UNSEEN_SHARE = 0.75
"""Share of the expected time to an answer before the first poll for it, where each poll is a request to a store."""

_NOT_SENT = "The request was not sent."
_AFTER_SERVING = (
    "This call comes after the sequencer of this process has ended with the interpreter, so nobody may answer."
    " Register an atexit handler that uses LakeMQ after lakemq.connect(...): then it runs before that end."
)
_NO_SEQUENCER = "Requests wait until a sequencer runs: start one with `lakemq serve`, or call mq.serving()."
_UNKNOWN = "The outcome is unknown: the request may still take effect."

_QUICK_LOOKS = 4
"""Polls without extra pauses, because the answer is due. After these, polls take at most half of the time: where each
is a request to a store, an answer that does not come should not cost many."""


@dataclass
class PendingRequest:
    """A request that waits to be sent, as JSON, and its rows."""

    request: bytes
    rows: Rows | None
    future: Future[AnyResult]
    size_bytes: int

    @classmethod
    def of(cls, request: AnyRequest, rows: Rows | None) -> PendingRequest:
        """Encode a request. Raises InvalidRequest if it cannot be encoded or is too large."""
        text = encode_request(request)
        pending = cls(text, rows, Future(), len(text) + (0 if rows is None else rows.nbytes))
        if pending.size_bytes > MAX_REQUEST_BYTES:
            raise InvalidRequest(
                f"{type(request).__name__} is too large for a letter.",
                found=f"{pending.size_bytes} bytes",
                expected=f"at most {MAX_REQUEST_BYTES} with the rows that travel with it",
            )
        return pending


class Requester:
    """A client of a namespace: it has a new id, and numbers its letters from 1. Thread-safe.

    It belongs to the process that created it. A forked process gets IllegalState.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        clock: Clock,
        new_id: Callable[[], str],
        timeout_ms: int,
        crash_point: crash.CrashPoint = crash.nowhere,
        namespace_id: str = "",
        line: DirectLine | None = None,
        explain_silence: Callable[[], str | None] = lambda: None,
    ) -> None:
        """namespace_id: a sequencer of another namespace at this path refuses the letters. line: to the leader; None:
        all letters go through the mailbox. explain_silence: returns why no answer comes, if the store shows it, and
        raises InconsistentClusterId if another namespace is there.
        """
        self._mailbox, self._clock, self._new_id, self._timeout_ms = mailbox, clock, new_id, timeout_ms
        self._crash_point, self.namespace_id = crash_point, namespace_id
        self._explain_silence, self._pid = explain_silence, os.getpid()
        self._client_id, self._number, self._since_use = new_id(), 0, Stopwatch(clock)
        self._line, self._has_used_mailbox = line, False
        self._read_numbers: list[int] = []
        """Numbers of the letters whose answers were read and are still stored."""
        self._waiter = self._new_waiter()
        self._expected_wait_ms = 0
        """How long an answer takes in the mailbox: as long as the last one, but at most twice the value before."""
        self._queue: deque[PendingRequest] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waits_since_ms: float | None = None
        """Since when no letter was answered, over all attempts; None: the last letter was answered."""
        self._has_warned = False
        self._unanswered: dict[Future[AnyResult], float] = {}
        """When each request was submitted, the oldest first."""
        self.explain: Callable[[MissingTopic], MissingTopic] = lambda error: error
        """Returns the error with when and by whom the topic was deleted, as `Fetcher.explain_missing`."""

    def ask(self, request: AnyRequest, rows: Rows | None = None, timeout_ms: float | None = None) -> AnyResult:
        """Send a request, and wait for its result.

        Args:
            request, rows: as of `submit`.
            timeout_ms: how long to wait, if that is shorter than request.timeout.ms.

        Raises:
            InvalidRequest, MailboxFullError, StorageError: the request was not sent.
            RequestTimedOut: the outcome is unknown.
            LakeMQError: the sequencer refused the request.
        """
        future = self.submit(request, rows)
        try:
            return future.result(None if timeout_ms is None else max(0, timeout_ms) / 1000)
        except FutureTimeoutError:
            if future.done():
                return future.result()
            raise RequestTimedOut(
                f"No answer in {timeout_ms:.0f} ms; the outcome is unknown. {self._advise()}"
            ) from None
        except (UnknownTopicOrPartition, UnknownTopicId) as error:
            raise self.explain(error) from None
        except (KeyboardInterrupt, SystemExit):
            log.warning("Interrupted while waiting for an answer. %s", _NOT_SENT if future.cancel() else _UNKNOWN)
            self._unanswered.pop(future, None)  # nobody waits for it any more
            raise
        finally:
            future.cancel()  # if it still waits for other letters, it is not sent any more

    def submit(self, request: AnyRequest, rows: Rows | None = None) -> Future[AnyResult]:
        """Send a request without waiting. rows: columns of a message body, which travel in the letter."""
        return self.submit_all([(request, rows)])[0]

    def submit_all(self, requests: Sequence[tuple[AnyRequest, Rows | None]]) -> list[Future[AnyResult]]:
        """Send requests in this order without waiting, in one letter if they fit.

        Raises:
            InvalidRequest, IllegalState, UnknownServerError (no thread can be started): none of them is sent.
        """
        if process.current_id != self._pid:
            raise process.build_fork_error("This connection")
        waiting = [PendingRequest.of(request, rows) for request, rows in requests]
        futures = [pending.future for pending in waiting]
        with self._wake:
            if self._closed:
                raise IllegalState("This connection is closed.")
            if HOOKS.has_ended_serving:
                log.warning(_AFTER_SERVING)
            if self._thread is None:
                self._thread = start_thread(self._run, "lakemq-requester")
            for future in futures:
                future.add_done_callback(lambda answered: self._unanswered.pop(answered, None))
            self._wake.notify()
            self._queue.extend(waiting)
            self._unanswered.update(dict.fromkeys(futures, self._clock.steady_ms()))
        return futures

    def waited_ms(self) -> float | None:
        """Return how long the oldest unanswered request has waited; None: all are answered."""
        oldest = min(list(self._unanswered.values()), default=None)
        return None if oldest is None else self._clock.steady_ms() - oldest

    def close(self) -> None:
        """Send the waiting requests, then end. In a forked process do nothing."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._waiter.close()
        self._forget_answers()
        if self._line is not None:
            self._line.close()

    def _run(self) -> None:
        with self._wake:
            if self._thread is not threading.current_thread():
                return  # the call that started this thread was interrupted; the next call starts another
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    if not self._wake.wait(IDLE_MS / 1000) and not self._queue and not self._closed:
                        self._thread = None  # a connection that was dropped without `close` keeps none for long
                        if self._line is not None:
                            self._line.close()
                        return
                if not self._queue:
                    return
                batch = self._gather()
            try:
                if batch:
                    self._exchange(batch)
            except BaseException as error:  # every future must get a result, or its thread would wait without an end
                for pending in batch:
                    if not pending.future.done():
                        pending.future.set_exception(error)

    def _gather(self) -> list[PendingRequest]:
        batch: list[PendingRequest] = []
        room = MAX_BYTES
        while self._queue and len(batch) < MAX_REQUESTS and (not batch or self._queue[0].size_bytes <= room):
            pending = self._queue.popleft()
            if pending.future.set_running_or_notify_cancel():
                room -= pending.size_bytes
                batch.append(pending)
        return batch

    def _exchange(self, batch: list[PendingRequest]) -> None:
        if self._number and self._since_use.elapsed_ms() > IDLE_MS:
            self._start_over()
        deadline_ms, since_sent = self._clock.steady_ms() + self._timeout_ms, Stopwatch(self._clock)
        body = build_letter(self._client_id, self._number + 1, batch, self._clock.now_ms(), self.namespace_id)
        self._number += 1
        was_sent, results = self._ask_on_line(body)
        if results is None:
            if was_sent and since_sent.elapsed_ms() > min(self._timeout_ms, IDLE_MS):
                raise self._lose_sent_letter("the request is too old to be sent again")
            results = self._ask_by_mailbox(body, was_sent, deadline_ms)
            if was_sent and _is_client_ended(results):  # it may have been decided before the client was forgotten
                raise self._lose_sent_letter("the sequencer has forgotten this client")
        self._since_use = Stopwatch(self._clock)
        self._waits_since_ms, self._has_warned = None, False
        self._deliver(batch, results)

    def _ask_on_line(self, body: bytes) -> tuple[bool, list[AnyResult] | None]:
        """Send the letter on the line. Return whether it may have arrived, and the results; None: no answer."""
        if self._line is None:
            return False, None
        try:
            was_sent, answer = self._line.exchange(
                self._client_id, self._number, body, self._timeout_ms, lambda: self._crash_point("publish.letter_put")
            )
        except BaseException:
            self._start_over()
            raise
        return was_sent, None if answer is None else answer.results

    def _ask_by_mailbox(self, body: bytes, was_sent: bool, deadline_ms: float) -> list[AnyResult]:
        """Put the letter into the mailbox, and wait for its results. was_sent: it may have arrived already."""
        name = self._put_letter(body, was_sent)
        try:
            results = self._wait_for_results(self._number, deadline_ms)
            if results is None:
                raise RequestTimedOut(
                    f"No answer in {self._timeout_ms} ms (request.timeout.ms); the outcome is unknown. {self._advise()}"
                )
        except (RequestTimedOut, InconsistentClusterId):
            with suppress(OSError):
                self._mailbox.withdraw(name)
            self._start_over()
            raise
        return results

    def _put_letter(self, body: bytes, was_sent: bool) -> str:
        """Put the letter of the last number into the mailbox, and return its name.

        The number is used again only if it is certain that no sequencer can have the letter.
        """
        now_ms, self._has_used_mailbox = self._clock.now_ms(), True
        try:
            name = self._mailbox.put(self._client_id, self._number, body, now_ms)
        except MailboxFull as full:
            if was_sent:
                raise self._lose_sent_letter(f"the mailbox does not take the request ({full})") from full
            self._number -= 1
            raise MailboxFullError(str(full)) from full
        except (MaybeThere, LetterExists):  # the letter may be stored and decided: wait for an answer
            name = LetterName.of(self._client_id, self._number, now_ms).name
        except OSError as error:
            if was_sent:
                raise self._lose_sent_letter(f"the mailbox does not take the request ({error})") from error
            self._start_over()
            if isinstance(error, RootGone):
                raise build_removal_error(error.filename) from error
            raise storage_error("The request could not be put into the mailbox: nothing was sent.", error) from error
        except BaseException:
            self._start_over()
            raise
        self._crash_point("publish.letter_put")
        return name

    def _lose_sent_letter(self, why: str) -> RequestTimedOut:
        self._start_over()
        return RequestTimedOut(f"The line to the sequencer broke, and {why}; the outcome is unknown.")

    def _wait_for_results(self, number: int, deadline_ms: float) -> list[AnyResult] | None:
        polls, begun_ms = 0, self._clock.steady_ms()
        self._waiter.reset()
        self._forget_read_answers()
        if self._waiter.watch is None:
            passed_ms = self._clock.steady_ms() - begun_ms
            self._clock.sleep(max(0, _UNSEEN_SHARE * self._expected_wait_ms - passed_ms))
        while True:
            self._waiter.reset()
            looked_at_ms = self._clock.steady_ms()
            if (results := self._poll(number)) is not None:
                self._waiter.note_arrival()
                self._note_wait(self._clock.steady_ms() - begun_ms)
                return results
            self._warn_of_silence()
            now_ms = self._clock.steady_ms()
            left_ms = deadline_ms - now_ms
            if left_ms < 0:
                return self._poll(number)  # the process may have been suspended since the last look
            pause_ms = _POLL_MS[min(polls // 20, len(_POLL_MS) - 1)]
            if polls >= _QUICK_LOOKS:
                pause_ms = max(pause_ms, now_ms - looked_at_ms)
            self._waiter.wait(pause_ms, min(LOOK_MS, left_ms + 1))
            polls += 1

    def _advise(self) -> str:
        return self._explain_silence() or "Is a sequencer running (lakemq serve)?"

    def _note_wait(self, waited_ms: int) -> None:
        # After a long wait, such as for a take-over, the next answer may come fast again. A wait may double each time.
        longest_ms = min(LOOK_MS, 2 * self._expected_wait_ms or LOOK_MS)
        self._expected_wait_ms = min(waited_ms, longest_ms)

    def _warn_of_silence(self) -> None:
        """Log once per silence that no answer comes: callers that retry may wait for minutes."""
        now_ms = self._clock.steady_ms()
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        waited_ms = now_ms - self._waits_since_ms
        if waited_ms >= _QUIET_MS and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No answer for %.0f s. %s This process goes on waiting.",
                waited_ms / 1000,
                self._explain_silence() or _NO_SEQUENCER,
            )

    def _poll(self, number: int) -> list[AnyResult] | None:
        """Return the results; None if there is no answer yet, or a loss of power has damaged it."""
        try:
            answer = self._mailbox.poll_answer(self._client_id, number)
            if answer is None:
                return None
            results = decode_answer(answer).results
        except (OSError, ValueError):  # keep waiting: the letter ends with an answer or with the deadline
            return None
        self._read_numbers.append(number)
        return results

    def _deliver(self, batch: list[PendingRequest], results: list[AnyResult]) -> None:
        if len(results) != len(batch) or _is_client_ended(results):
            # the letter was refused as a whole
            self._start_over()
            results = [results[0] if results else InvalidRequest("An empty answer.").refusal()] * len(batch)
        for pending, result in zip(batch, results, strict=True):
            if isinstance(result, Refusal):
                pending.future.set_exception(error_from_refusal(result))
            else:
                pending.future.set_result(result)

    def _start_over(self) -> None:
        """Become a new client: the last letter's outcome is unknown, or the sequencer soon forgets this client."""
        self._forget_answers()
        self._client_id, self._number = self._new_id(), 0
        self._waiter.close()
        self._waiter = self._new_waiter()

    def _forget_read_answers(self) -> None:
        """Delete the answers that were read, except the newest. This thread waits for an answer anyway.

        The newest stays, because gateways to disks remove an empty folder, maybe while the next answer is put into it.
        """
        for number in self._read_numbers[:-1]:
            with suppress(OSError):
                self._mailbox.forget_answer(self._client_id, number)
        del self._read_numbers[:-1]

    def _forget_answers(self) -> None:
        self._read_numbers.clear()
        if self._has_used_mailbox:
            self._has_used_mailbox = False
            with suppress(OSError):
                self._mailbox.forget_client(self._client_id)

    def _new_waiter(self) -> FolderWaiter:
        """Watch the folder of answers, which exists from the first answer on."""
        client_id = self._client_id
        return FolderWaiter(lambda: self._mailbox.watch_answers(client_id), self._clock)


def _is_client_ended(results: Sequence[AnyResult]) -> bool:
    """Return whether the letter was refused as a whole, because one before it is missing."""
    return len(results) == 1 and isinstance(results[0], Refusal) and results[0].error == ClientEnded.name


def build_letter(
    client_id: str, number: int, batch: Sequence[PendingRequest], now_ms: int, namespace_id: str = ""
) -> bytes:
    """Encode a letter with these requests, and all their rows one after the other."""
    requests: list[tuple[int, bytes]] = []
    parts = [pending.rows for pending in batch if pending.rows is not None]
    rows = concatenate_rows(parts) if parts else None
    first_row = 0
    for pending in batch:
        requests.append((first_row if pending.rows is not None else 0, pending.request))
        first_row += 0 if pending.rows is None else pending.rows.num_rows
    return encode_letter(client_id, number, requests, now_ms, rows, namespace_id)


# Retries of a request.
#
# An attempt without an answer leaves its outcome unknown: the sequencer may have decided it, or may still decide it. A
# later attempt clears this up only if its own answer says what became of the earlier ones. An attempt that never
# reached the mailbox says nothing about them. So `ask_with_retries` remembers the first attempt without an answer, and
# raises RequestTimedOut ("the outcome is unknown") unless a conclusive answer follows.


NO_EFFECT = (MailboxFullError, StorageError, ClientEnded, IllegalState)
"""Errors after which the attempt is known to have had no effect, now or later.

The letter was not stored (MailboxFullError, StorageError, or IllegalState of a closed connection), or the sequencer
refused it (ClientEnded unread, IllegalState as its answer). Such an error says nothing about earlier attempts.
"""

NEVER_PUBLISHED = (StaleTopicMetadata, StaleApplicationVersion, TransactionAbortable)
"""Errors which prove that no attempt of a publish has become or will become visible.

If an earlier attempt had been accepted, its repeat would be answered as a duplicate, not refused. If an earlier one is
still in the mailbox, it carries the same stale metadata or version and will be refused, too. After
TransactionAbortable the transaction can only be aborted.
"""

PAUSE_MS = 50
"""Pause after an attempt that had no effect."""

R = TypeVar("R")


def ask_with_retries(
    ask: Callable[[], R], clock: Clock, deadline_ms: int, conclusive: tuple[type[LakeMQError], ...] = (LakeMQError,)
) -> R:
    """Call `ask` until it is answered or the deadline is over, and return its result.

    Args:
        ask: sends the request and waits for the answer. A repeat must be harmless.
        clock: for the deadline, and for pauses.
        deadline_ms: time of the steady clock after which no further attempt is made.
        conclusive: errors of a repeat that also say what became of the attempts before it.

    Raises:
        RequestTimedOut: an attempt was not answered, and no later answer was conclusive: the outcome is unknown.
        LakeMQError: what `ask` raises.
    """
    in_doubt: RequestTimedOut | None = None
    begun_ms, unanswered_count = clock.steady_ms(), 0
    while True:
        last: LakeMQError | None = None  # the error of this attempt, if the attempt had no effect
        try:
            return ask()
        except RequestTimedOut as unanswered:
            in_doubt, unanswered_count = unanswered, unanswered_count + 1
        except NO_EFFECT as error:
            last = error
            # after ClientEnded the requester starts over as a new client, so the next attempt arrives
            if in_doubt is None and not isinstance(error, ClientEnded):
                raise
        except LakeMQError as error:
            if in_doubt is None or isinstance(error, conclusive):
                raise
            raise _unknown_outcome_error(in_doubt, error) from error
        now_ms = clock.steady_ms()
        if in_doubt is not None and last is None and unanswered_count > 1 and now_ms >= deadline_ms:
            # the detail names the time of one attempt, but the caller has waited for all of them
            total = f"The request was sent {unanswered_count} times in {(now_ms - begun_ms) / 1000:.0f} s."
            raise RequestTimedOut(f"{in_doubt.detail} {total}") from in_doubt
        pause_ms = 0 if last is None else PAUSE_MS
        if now_ms + pause_ms >= deadline_ms or isinstance(last, IllegalState):  # closed meanwhile
            raise _unknown_outcome_error(in_doubt, last) from last
        clock.sleep(pause_ms)


def _unknown_outcome_error(in_doubt: RequestTimedOut | None, last: LakeMQError | None) -> LakeMQError:
    if in_doubt is not None and last is not None:
        return RequestTimedOut(f"{in_doubt.detail} The last attempt does not clear this up: {last}")
    error = in_doubt or last
    assert error is not None
    return error
