"""The client's side of the mailbox: requests in, results out, one letter on the way at a time.

While a letter is on the way, further requests gather and travel together in the next one: a process with a thousand
threads that wait costs one object per step. One letter at a time is what lets the sequencer keep just the last answer.
Each request is encoded in the call that makes it, so that a bad one never meets the others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from lakemq.tables.storage.mailbox import MAX_LETTER_BYTES, LetterExists, LetterName, Mailbox, MailboxFull
from lakemq.tables.storage.objects import MaybeThere

from ..namespace import crash
from ..namespace.bell import LOOK_MS, Bell
from ..namespace.clock import Clock
from ..namespace.process import same_process, started_thread
from ..protocol.codec.few_rows import Rows, joined
from ..protocol.codec.letter import MAX_REQUESTS, decode_answer, encode_letter
from ..protocol.codec.request import encode_request
from ..protocol.errors import (
    ClientEnded,
    IllegalState,
    InvalidRequest,
    MailboxFullError,
    Refusal,
    RequestTimedOut,
    StorageError,
    error_of,
)
from ..protocol.values.kinds import AnyRequest, AnyResult

MAX_BYTES = 8 << 20
"""Of requests that share a letter; a larger one travels alone."""

MAX_REQUEST_BYTES = MAX_LETTER_BYTES - (1 << 20)
"""With its rows. The rest of the letter is for what is put around them."""

IDLE_MS = 30_000
"""Silence after which a client counts as a new one: half of the shortest client.expiration.ms, after which the
sequencer knows nothing of its letters and would wait for the first ones."""

_POLL_MS = (0.5, 1, 2, 4, 8, 16)
"""Between looks for an answer where nobody tells of it."""


@dataclass
class Waiting:
    """A request that was not sent yet, as JSON, and its rows."""

    request: bytes
    rows: Rows | None
    future: Future[AnyResult]
    size_bytes: int

    @classmethod
    def of(cls, request: AnyRequest, rows: Rows | None) -> Waiting:
        """Raises InvalidRequest."""
        text = encode_request(request)
        one = cls(text, rows, Future(), len(text) + (0 if rows is None else rows.nbytes))
        if one.size_bytes > MAX_REQUEST_BYTES:
            found, expected = f"{one.size_bytes} bytes", f"at most {MAX_REQUEST_BYTES} with the rows that ride in it"
            raise InvalidRequest(f"{type(request).__name__} is too large for a letter.", found=found, expected=expected)
        return one


class Requester:
    """One client of a namespace; its id is new, its letters are numbered from 1. Thread-safe.

    It belongs to the process that made it, with its id: one that was forked from that is refused (IllegalState).
    """

    def __init__(
        self,
        mailbox: Mailbox,
        clock: Clock,
        new_id: Callable[[], str],
        timeout_ms: int,
        reached: crash.Reached = crash.nowhere,
        namespace_id: str = "",
    ) -> None:
        """namespace_id: of the namespace whose mailbox it is; a sequencer of another one at its path refuses all."""
        self._mailbox, self._clock, self._new_id, self._timeout_ms = mailbox, clock, new_id, timeout_ms
        self._reached, self.namespace_id = reached, namespace_id
        self._pid = os.getpid()
        self._client_id, self._number, self._used_at_ms = new_id(), 0, clock.steady_ms()
        self._bell = self._new_bell()
        self._queue: deque[Waiting] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._unanswered: dict[Future[AnyResult], float] = {}
        """When each was given, the oldest first."""

    def ask(self, request: AnyRequest, rows: Rows | None = None) -> AnyResult:
        """The result of one request.

        Raises the error it was refused with; InvalidRequest, MailboxFullError, StorageError: it was not sent;
        RequestTimedOut: its outcome is unknown.
        """
        return self.submit(request, rows).result()

    def submit(self, request: AnyRequest, rows: Rows | None = None) -> Future[AnyResult]:
        """Send without waiting. `rows` (columns of a message body) ride in the letter."""
        return self.submit_all([(request, rows)])[0]

    def submit_all(self, requests: Sequence[tuple[AnyRequest, Rows | None]]) -> list[Future[AnyResult]]:
        """Send in this order, without waiting; in one letter as long as they fit.

        Raises InvalidRequest, IllegalState, UnknownServerError (there is no thread to send them): none of them is sent.
        """
        same_process(self._pid, "This connection")
        waiting = [Waiting.of(request, rows) for request, rows in requests]
        with self._wake:
            if self._closed:
                raise IllegalState("This connection is closed.")
            if self._thread is None:
                self._thread = started_thread(self._run, "lakemq-requester")
            now_ms = self._clock.steady_ms()
            for one in waiting:
                one.future.add_done_callback(lambda answered: self._unanswered.pop(answered, None))
            self._wake.notify()
            self._queue.extend(waiting)
            self._unanswered.update(dict.fromkeys([one.future for one in waiting], now_ms))
        return [one.future for one in waiting]

    def waited_ms(self) -> float | None:
        """For how long the oldest request without an answer has waited; None: all are answered."""
        oldest = min(list(self._unanswered.values()), default=None)
        return None if oldest is None else self._clock.steady_ms() - oldest

    def close(self) -> None:
        """Send what waits, then end. In a forked process nothing is there to be ended."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._bell.close()
        with suppress(OSError):
            self._mailbox.forget_client(self._client_id)

    def _run(self) -> None:
        with self._wake:
            if self._thread is not threading.current_thread():
                return  # the call that started it was interrupted: the next one starts another
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

    def _gather(self) -> list[Waiting]:
        batch: list[Waiting] = []
        room = MAX_BYTES
        while self._queue and len(batch) < MAX_REQUESTS and (not batch or self._queue[0].size_bytes <= room):
            one = self._queue.popleft()
            room -= one.size_bytes
            batch.append(one)
        return batch

    def _exchange(self, batch: list[Waiting]) -> None:
        if self._number and self._clock.steady_ms() - self._used_at_ms > IDLE_MS:
            self._start_over()
        name = self._put(batch)
        results = self._await(self._number)
        if results is None:
            with suppress(OSError):
                self._mailbox.withdraw(name)
            self._start_over()
            raise RequestTimedOut(
                f"No answer in {self._timeout_ms} ms (request.timeout.ms); the outcome is unknown. "
                "Is a sequencer running (lakemq serve)?"
            )
        self._used_at_ms = self._clock.steady_ms()
        with suppress(OSError):
            self._mailbox.forget_reply(self._client_id, self._number)
        self._deliver(batch, results)

    def _put(self, batch: list[Waiting]) -> str:
        """The name of the letter with these requests, which has the next number: no number is used twice."""
        now_ms = self._clock.now_ms()
        body = letter_of(self._client_id, self._number + 1, batch, now_ms, self.namespace_id)
        self._number += 1
        try:
            name = self._mailbox.put(self._client_id, self._number, body, now_ms)
        except MailboxFull as full:
            self._number -= 1
            raise MailboxFullError(str(full)) from full
        except (MaybeThere, LetterExists):  # it may be decided: only an answer, or none, can tell
            name = LetterName.of(self._client_id, self._number, now_ms).name
        except OSError as error:
            self._start_over()
            raise StorageError(
                "The request could not be put into the mailbox: nothing was sent.", found=str(error)
            ) from error
        except BaseException:
            self._start_over()
            raise
        self._reached("publish.letter_put")
        return name

    def _await(self, number: int) -> list[AnyResult] | None:
        deadline_ms, polls = self._clock.steady_ms() + self._timeout_ms, 0
        while True:
            self._bell.clear()
            if (results := self._poll(number)) is not None:
                self._bell.found()
                return results
            left_ms = deadline_ms - self._clock.steady_ms()
            if left_ms < 0:
                return self._poll(number)  # this process may have been stopped since the last look
            self._bell.wait(_POLL_MS[min(polls // 20, len(_POLL_MS) - 1)], min(LOOK_MS, left_ms + 1))
            polls += 1

    def _poll(self, number: int) -> list[AnyResult] | None:
        """The answer; None where there is none (yet), or only what a loss of power has left of one."""
        try:
            answer = self._mailbox.poll_reply(self._client_id, number)
            return None if answer is None else decode_answer(answer).results
        except (OSError, ValueError):  # the letter is on its way: it ends with an answer or with the deadline
            return None

    def _deliver(self, batch: list[Waiting], results: list[AnyResult]) -> None:
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
        self._bell.close()
        self._bell = self._new_bell()

    def _new_bell(self) -> Bell:
        """Of the folder of replies, which is there from the first one on."""
        client_id = self._client_id
        return Bell(lambda: self._mailbox.watch_replies(client_id), self._clock)


def letter_of(client_id: str, number: int, batch: Sequence[Waiting], now_ms: int, namespace_id: str = "") -> bytes:
    """A letter with these requests, and all their rows one after the other."""
    requests: list[tuple[int, bytes]] = []
    rows = joined([one.rows for one in batch if one.rows is not None])
    first_row = 0
    for one in batch:
        requests.append((first_row if one.rows is not None else 0, one.request))
        first_row += 0 if one.rows is None else one.rows.num_rows
    return encode_letter(client_id, number, requests, now_ms, rows, namespace_id)
