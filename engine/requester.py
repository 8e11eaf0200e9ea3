"""The client's side of the mailbox: requests in, results out, one letter on the way at a time.

While a letter is on the way, further requests gather and travel together in the next one: a process with a thousand
threads that wait costs one object per step. One letter at a time is what lets the sequencer keep just the last answer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from lakemq.tables.mailbox import Mailbox, MailboxFull

from . import crash
from .clock import Clock
from .protocol.codec import decode_answer, encode_letter
from .protocol.errors import (
    ClientEnded,
    IllegalState,
    InvalidRequest,
    MailboxFullError,
    Refusal,
    RequestTimedOut,
    StorageError,
    error_of,
)
from .protocol.requests import AnyRequest, AnyResult, Letter, Produce

MAX_REQUESTS = 5000
MAX_BYTES = 8 << 20
IDLE_MS = 30_000
"""Silence after which a client counts as a new one: half of the shortest client.expiration.ms, after which the
sequencer knows nothing of its letters and would wait for the first ones."""

_POLL_MS = (0.5, 1, 2, 4, 8, 16)


@dataclass
class _Waiting:
    request: AnyRequest
    rows: pa.Table | None
    future: Future[AnyResult]


class Requester:
    """One client of a namespace; its id is new, its letters are numbered from 1. Thread-safe."""

    def __init__(
        self,
        mailbox: Mailbox,
        clock: Clock,
        new_id: Callable[[], str],
        timeout_ms: int,
        reached: crash.Reached = crash.nowhere,
    ) -> None:
        self._mailbox, self._clock, self._new_id, self._timeout_ms = mailbox, clock, new_id, timeout_ms
        self._reached = reached
        self._client_id, self._number, self._used_at_ms = new_id(), 0, clock.steady_ms()
        self._queue: deque[_Waiting] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._unanswered: dict[Future[AnyResult], float] = {}
        """When each was given, the oldest first."""

    def ask(self, request: AnyRequest, rows: pa.Table | None = None) -> AnyResult:
        """The result of one request.

        Raises the error it was refused with; MailboxFullError, StorageError: it was not sent; RequestTimedOut: its
        outcome is unknown.
        """
        return self.submit(request, rows).result()

    def submit(self, request: AnyRequest, rows: pa.Table | None = None) -> Future[AnyResult]:
        """Send without waiting. `rows` (columns of a message body) ride in the letter."""
        return self.submit_all([(request, rows)])[0]

    def submit_all(self, requests: Sequence[tuple[AnyRequest, pa.Table | None]]) -> list[Future[AnyResult]]:
        """Send in this order, without waiting; in one letter as long as they fit."""
        waiting = [_Waiting(request, rows, Future()) for request, rows in requests]
        with self._wake:
            if self._closed:
                raise IllegalState("This connection is closed.")
            self._queue.extend(waiting)
            self._unanswered.update({one.future: self._clock.steady_ms() for one in waiting})
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lakemq-requester", daemon=True)
                self._thread.start()
            self._wake.notify()
        for one in waiting:
            one.future.add_done_callback(lambda answered: self._unanswered.pop(answered, None))
        return [one.future for one in waiting]

    def waited_ms(self) -> float | None:
        """For how long the oldest request without an answer has waited; None: all are answered."""
        oldest = min(list(self._unanswered.values()), default=None)
        return None if oldest is None else self._clock.steady_ms() - oldest

    def close(self) -> None:
        """Send what waits, then end."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._mailbox.forget_client(self._client_id)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return
                batch = self._gather()
            try:
                self._exchange(batch)
            except BaseException as error:  # whatever went wrong, nobody may wait for ever
                for one in batch:
                    if not one.future.done():
                        one.future.set_exception(error)

    def _gather(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        room = MAX_BYTES
        while self._queue and len(batch) < MAX_REQUESTS and room > 0:
            one = self._queue.popleft()
            room -= one.rows.nbytes if one.rows is not None else 1000
            batch.append(one)
        return batch

    def _exchange(self, batch: list[_Waiting]) -> None:
        if self._number and self._clock.steady_ms() - self._used_at_ms > IDLE_MS:
            self._start_over()
        number, name = self._put(batch)
        answer = self._await(number)
        if answer is None:
            self._mailbox.withdraw(name)
            self._start_over()
            raise RequestTimedOut(
                f"No answer in {self._timeout_ms} ms; the outcome is unknown. Is a sequencer running (lakemq serve)?"
            )
        self._used_at_ms = self._clock.steady_ms()
        with suppress(OSError):
            self._mailbox.forget_reply(self._client_id, number)
        self._deliver(batch, decode_answer(answer).results)

    def _put(self, batch: list[_Waiting]) -> tuple[int, str]:
        """Number and name of the letter with these requests."""
        number, now_ms = self._number + 1, self._clock.now_ms()
        requests, rows = _placed(batch)
        body = encode_letter(Letter(self._client_id, number, requests, now_ms), rows)
        try:
            name = self._mailbox.put(self._client_id, number, body, now_ms)
        except MailboxFull as full:
            raise MailboxFullError(str(full)) from full
        except OSError as error:
            # should part of it be there after all, the number must not be used twice
            self._start_over()
            raise StorageError(
                "The request could not be put into the mailbox: nothing was sent.", found=str(error)
            ) from error
        self._number = number
        self._reached("publish.letter_put")
        return number, name

    def _await(self, number: int) -> bytes | None:
        deadline_ms, polls = self._clock.steady_ms() + self._timeout_ms, 0
        while (answer := self._poll(number)) is None:
            if self._clock.steady_ms() > deadline_ms:
                return None
            self._clock.sleep(_POLL_MS[min(polls // 20, len(_POLL_MS) - 1)])
            polls += 1
        return answer

    def _poll(self, number: int) -> bytes | None:
        try:
            return self._mailbox.poll_reply(self._client_id, number)
        except OSError:  # the letter is on its way: it ends with an answer or with the deadline
            return None

    def _deliver(self, batch: list[_Waiting], results: list[AnyResult]) -> None:
        only = results[0] if len(results) == 1 else None
        if len(results) != len(batch) or (isinstance(only, Refusal) and only.error == ClientEnded.name):
            # the letter was refused as a whole
            self._start_over()
            results = [results[0] if results else InvalidRequest("An empty answer.").refusal()] * len(batch)
        for one, result in zip(batch, results, strict=True):
            if isinstance(result, Refusal):
                one.future.set_exception(error_of(result))
            else:
                one.future.set_result(result)

    def _start_over(self) -> None:
        """A new client: what happened to the old one's last letter is unknown, or the sequencer forgets it soon."""
        with suppress(OSError):
            self._mailbox.forget_client(self._client_id)
        self._client_id, self._number = self._new_id(), 0


def _placed(batch: list[_Waiting]) -> tuple[list[AnyRequest], pa.Table | None]:
    """The requests of a letter, each told where its rows begin, and all rows one after the other."""
    requests: list[AnyRequest] = []
    tables: list[pa.Table] = []
    total = 0
    for one in batch:
        request = one.request
        if one.rows is not None and isinstance(request, Produce):
            if total:
                request = msgspec.structs.replace(request, first_row=total)
            tables.append(one.rows)
            total += one.rows.num_rows
        requests.append(request)
    return requests, pa.concat_tables(tables) if tables else None
