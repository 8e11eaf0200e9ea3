"""Answer the letters of a step, each the way it came: on its line, or by a reply in the mailbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...namespace.processes import crash
from ...protocol.codec.letter import encode_answer
from ...protocol.values.clients import Answer, Answered, ClientRemoved
from ...protocol.values.journal import JournalEntry
from ...protocol.values.state import State
from .intake import Intake, StepLetters
from .line_table import LineTable
from .replies import Replies, Reply

Pace = Callable[[Iterable[Any]], Iterator[Any]]
"""Yields the items one by one, and does other urgent work in between."""


class Answers:
    """Answer letters once their step has landed, and discard those of the mailbox."""

    def __init__(self, intake: Intake, replies: Replies, crash_point: crash.CrashPoint) -> None:
        self._intake, self._replies, self._crash_point = intake, replies, crash_point

    def send(
        self,
        state: State,
        lines: LineTable | None,
        letters: StepLetters,
        entries: Sequence[JournalEntry],
        pace: Pace,
        announce_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer the letters of the last step.

        Args:
            state: after the step.
            lines: on which letters may have come. None: there are no lines.
            entries: of the step.
            pace: yields items, and renews the lease in between: the request for each item may take a while.
            announce_step: tells followers of the step. It comes after the answers on lines, which take no time, and
                before the replies in the mailbox, which may take long.
        """
        answered = set() if lines is None else _answer_on_lines(state, lines, letters)
        announce_step()
        self._replies.send(state.step, pace(_list_replies(state, letters, entries, answered)))
        self._replies.retry_replies(state)
        removed = [entry.record for entry in entries if entry.request_id is None]
        self._replies.forget([record.client_id for record in removed if isinstance(record, ClientRemoved)])
        self._crash_point("sequencer.answered")
        done = [opened.name for opened in letters.taken if opened.on_line is None] + letters.repeated
        if done:
            self._intake.discard(pace(done))
            self._crash_point("sequencer.letters_discarded")


def _list_replies(
    state: State, letters: StepLetters, entries: Sequence[JournalEntry], answered: set[tuple[str, int]]
) -> list[Reply]:
    """Return the replies to write into the mailbox. answered: clients and numbers of letters that came on lines."""
    records = [entry.record for entry in entries]
    replies: list[Reply] = [
        (record.client_id, record.number, record.results)
        for record in records
        if isinstance(record, Answered) and (record.client_id, record.number) not in answered
    ]
    for name in letters.repeated:
        client = state.clients.get(name.client_id)
        if client is not None and client.number == name.number:
            replies.append((name.client_id, name.number, client.results))
    return replies


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
