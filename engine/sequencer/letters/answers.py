"""Answers on their way back: on lines, in the mailbox, and hints of new steps to clients that follow them.

The steps have the truth, so an answer that cannot be written stops no step. Rows of docs/architecture.md: publish 11.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import Executor
from typing import Any

from lakemq.tables.storage.coordination.mailbox import Mailbox

from ...namespace import crash
from ...namespace.clock import Clock
from ...namespace.line_frames import FrameKind, encode_number_frame
from ...protocol.codec.letter import encode_answer
from ...protocol.values.clients import Answer, Answered
from ...protocol.values.journal import JournalEntry
from ...protocol.values.kinds import AnyResult
from ...protocol.values.state import State
from .intake import Intake, StepLetters
from .line_table import Line, LineTable

log = logging.getLogger("lakemq.serve")

MailboxAnswer = tuple[str, int, list[AnyResult]]
"""Client id, number of its letter, results."""

SWEEP_MS = 3_600_000
"""Time between two searches for answers that will not be fetched."""

UNFETCHED_MS = 86_400_000
"""Age by the store's times after which no client fetches an answer: the longest request.timeout.ms."""

MAX_SWEPT = 10_000
"""Clients that one sweep looks at."""

Pace = Callable[[Iterable[Any]], Iterator[Any]]
"""Yields the items one by one, and does other urgent work in between."""


class Answers:
    """Answer the letters of a step once it has landed, each the way it came, and discard those of the mailbox.

    For the sequencer's thread. Sweeping runs in `executor`.
    """

    def __init__(
        self, mailbox: Mailbox, intake: Intake, clock: Clock, executor: Executor, crash_point: crash.CrashPoint
    ) -> None:
        self._mailbox, self._intake, self._clock = mailbox, intake, clock
        self._executor, self._crash_point = executor, crash_point
        self._sweep_at_ms = clock.steady_ms()
        self._swept_to = ""
        """The last client that a sweep has looked at. The next one goes on after it."""

    def send(
        self,
        state: State,
        lines: LineTable | None,
        letters: StepLetters,
        entries: Sequence[JournalEntry],
        pace: Pace,
        announce_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer the letters of the last step. One whose answer cannot be written stays, and is answered again later.

        Args:
            state: after the step.
            lines: on which letters may have come. None: there are no lines.
            entries: of the step.
            pace: yields items, and renews the lease in between: the request for each item may take a while.
            announce_step: tells followers of the step. It comes after the answers on lines, which take no time, and
                before the answers in the mailbox, which may take long.
        """
        answered = set() if lines is None else _answer_on_lines(state, lines, letters)
        announce_step()
        unwritten = self._write(state.step, pace(_list_mailbox_answers(state, letters, entries, answered)))
        self._crash_point("sequencer.answered")
        decided = [opened.name for opened in letters.taken if opened.on_line is None] + letters.repeated
        done = [
            name
            for name in decided
            if (name.client_id, name.number) not in unwritten or not self._intake.keep_unanswered(name)
        ]
        if done:
            self._intake.discard(pace(done))
            self._crash_point("sequencer.letters_discarded")

    def _write(self, step: int, answers: Iterable[MailboxAnswer]) -> Set[tuple[str, int]]:
        """Write answers. Return client and number of those that cannot be written."""
        unwritten: dict[tuple[str, int], OSError] = {}
        for client_id, number, results in answers:
            try:
                self._mailbox.put_answer(client_id, number, encode_answer(Answer(client_id, number, step, results)))
            except OSError as error:
                unwritten[client_id, number] = error
        if unwritten:
            (client_id, number), reason = next(iter(unwritten.items()))
            text = "%d answers could not be written, such as that to %s/%d (%s). Their requests are decided."
            log.error(text, len(unwritten), client_id, number, reason)
        return unwritten.keys()

    # -- in the background ------------------------------------------------------------------------------

    def sweep_if_due(self, state: State) -> None:
        """Delete answers to unknown clients: they have expired, or left a gap."""
        if self._clock.steady_ms() >= self._sweep_at_ms:
            self._sweep_at_ms = self._clock.steady_ms() + SWEEP_MS
            self._executor.submit(self._sweep, set(state.clients))

    def _sweep(self, known_clients: set[str]) -> None:
        failed: OSError | None = None
        try:
            unknown = sorted(set(self._mailbox.list_answered_clients()) - known_clients)
            at = bisect_right(unknown, self._swept_to)
            unknown = (unknown[at:] + unknown[:at])[:MAX_SWEPT]
            self._swept_to = unknown[-1] if unknown else ""
            now_ms = self._mailbox.store_time_ms() if unknown else 0
            for client_id in unknown:
                if now_ms - (self._mailbox.last_answer_ms(client_id) or 0) > UNFETCHED_MS:
                    try:
                        self._mailbox.forget_client(client_id)
                    except OSError as error:  # the others go all the same
                        failed = error
        except OSError as error:
            failed = error
        if failed is not None:
            log.warning("Answers that no client fetches may be left behind: %s", failed)


def _list_mailbox_answers(
    state: State, letters: StepLetters, entries: Sequence[JournalEntry], answered: set[tuple[str, int]]
) -> list[MailboxAnswer]:
    """Return the answers to write into the mailbox. answered: clients and numbers of letters that came on lines."""
    records = [entry.record for entry in entries]
    answers: list[MailboxAnswer] = [
        (record.client_id, record.number, record.results)
        for record in records
        if isinstance(record, Answered) and (record.client_id, record.number) not in answered
    ]
    for name in letters.repeated:
        client = state.clients.get(name.client_id)
        if client is not None and client.number == name.number:
            answers.append((name.client_id, name.number, client.results))
    return answers


def _answer_on_lines(state: State, lines: LineTable, letters: StepLetters) -> set[tuple[str, int]]:
    """Answer the letters that came on lines. Return client and number of those that this step has decided."""
    decided = [opened.on_line for opened in letters.taken if opened.on_line is not None]
    for on_line in decided:
        name = on_line.name
        client = state.clients.get(name.client_id)
        if client is None or client.number != name.number:
            lines.refuse(on_line)
            continue
        answer = Answer(name.client_id, name.number, state.step, client.results)
        lines.answer(on_line, encode_answer(answer))
    return {(on_line.name.client_id, on_line.name.number) for on_line in decided}


# The lines whose clients wait for a step, and the steps that they are told of.
#
# A hint only says that there is a new step. The client then reads the step from the store, as it would without a hint.
# So a hint that is late, lost or from a former leader does no harm.
#
# The sequencer's thread notes steps that are decided. The reading thread sends the hints, one per request of a client:
# a client that reads slowly asks rarely, and never has more than one hint in its way.


class Followers:
    """The waiting followers of one term. Thread-safe."""

    def __init__(self, send: Callable[[Line, bytes], None], wake_reader: Callable[[], None]) -> None:
        """Create them for a term.

        Args:
            send: sends a frame on a line without waiting.
            wake_reader: called when the reading thread has hints to send.
        """
        self._send, self._wake_reader = send, wake_reader
        self._lock = threading.Lock()
        self._waiting: dict[Line, int] = {}
        """Line -> the last step that its client has read."""
        self._newest_step = self._announced_step = 0

    # -- the sequencer's thread -------------------------------------------------------------------------

    def note_step(self, step: int) -> None:
        """Note a step that is decided: its put succeeded, and the look afterwards found the step before unchanged."""
        self._newest_step = step

    def announce(self) -> None:
        """Have the followers told of the newest step. Its letters must be answered before."""
        with self._lock:
            is_new = self._announced_step != self._newest_step
            self._announced_step = self._newest_step
            has_hints = is_new and bool(self._waiting)
        if has_hints:
            self._wake_reader()

    # -- the reading thread -----------------------------------------------------------------------------

    def add(self, line: Line, step: int) -> None:
        """Tell the client once of a step after this one: now, or when there is one."""
        with self._lock:
            newest = self._announced_step
            if step >= newest:
                self._waiting[line] = step
                return
            self._waiting.pop(line, None)
        self._send(line, encode_number_frame(FrameKind.STEP, newest))

    def send_hints(self) -> None:
        """Tell the clients that wait for a step that is there now."""
        with self._lock:
            newest = self._announced_step
            behind = [line for line, step in self._waiting.items() if step < newest]
            for line in behind:
                del self._waiting[line]
        if behind:
            frame = encode_number_frame(FrameKind.STEP, newest)
            for line in behind:
                self._send(line, frame)

    def forget(self, line: Line) -> None:
        with self._lock:
            self._waiting.pop(line, None)
