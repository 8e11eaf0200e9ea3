"""What a step takes from lines beside the mailbox: each letter once, and neither carrier shuts the other one out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol_harness import letter_bytes
from unit.test_intake import NAMESPACE_ID, Office, list_numbers

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.sequencer.letters.intake import StepLetters
from lakemq.engine.sequencer.letters.line_table import Line, LineLetter, LineTable
from lakemq.tables.storage.coordination.mailbox import LetterName


class LineOffice(Office):
    """An intake with lines whose reading thread is the test: a letter has arrived when the test says so."""

    def __init__(self, folder: Path, most: int = 50) -> None:
        super().__init__(folder, most)
        self.table = LineTable(self.clock, lambda: None)
        self._sockets: list[socket.socket] = []

    def connect(self, client_id: str) -> Line:
        client_end, end = socket.socketpair()
        end.setblocking(False)
        self._sockets += [client_end, end]
        line = Line(end, self.clock.steady_ms())
        self.table.add(line)
        self.table.welcome(line, client_id)
        line.output.clear()
        return line

    def receive(self, line: Line, client_id: str, number: int) -> None:
        """Let the reading thread read a letter that the client has sent."""
        body = letter_bytes(Letter(client_id, number, [InitProducer()], 0))
        self.table.add_letter(LineLetter(LetterName.of(client_id, number, 0), body, line))

    def take_letters(self) -> StepLetters:
        return self.intake.take_letters(self.state, NAMESPACE_ID, lines=self.table)

    def close(self) -> None:
        for end in self._sockets:
            end.close()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[LineOffice]:
    office = LineOffice(tmp_path)
    yield office
    office.close()


def decide(office: LineOffice, letters: StepLetters) -> None:
    machine.begin_step(office.state, office.clock.now_ms())
    for opened in letters.taken:
        machine.decide_letter(office.state, opened.letter)
    office.intake.discard([opened.name for opened in letters.taken if opened.on_line is None])


def test_letter_read_after_its_copy_was_decided_is_dropped(office: LineOffice) -> None:
    """The client gave its line up and used the mailbox; its first letter is still in the socket. By the time the leader
    reads it, it has forgotten the client, so the number alone would let it be decided again.
    """
    line = office.connect("payer")
    office.put("payer", 1)
    letters = office.take_letters()
    assert list_numbers(letters) == [("payer", 1)]
    decide(office, letters)
    office.state.clients.clear()
    office.receive(line, "payer", 1)
    assert list_numbers(office.take_letters()) == []
    assert line.is_closed


def test_a_letter_that_waits_in_the_inbox_goes_with_its_line_when_its_copy_is_decided(office: LineOffice) -> None:
    line = office.connect("payer")
    office.intake._is_mailbox_next = True
    office.put("payer", 1)
    office.receive(line, "payer", 1)
    letters = office.take_letters()
    assert [opened.on_line for opened in letters.taken] == [None]
    decide(office, letters)
    assert office.table.take_letter() is None


def test_letters_on_lines_leave_every_second_step_to_the_mailbox(tmp_path: Path) -> None:
    """There is room for one letter in a step, and always one more on a line."""
    office = LineOffice(tmp_path, most=1)
    lines = {f"line{number}": office.connect(f"line{number}") for number in range(4)}
    for client_id, line in lines.items():
        office.receive(line, client_id, 1)
    for number in range(2):
        office.put(f"mailbox{number}", 1)
    taken = []
    for _ in range(4):
        letters = office.take_letters()
        taken += [client_id for client_id, _ in list_numbers(letters)]
        decide(office, letters)
    assert [client_id.rstrip("0123456789") for client_id in taken] == ["line", "mailbox", "line", "mailbox"]
    office.close()


def test_a_letter_out_of_turn_closes_its_line_and_comes_by_the_mailbox(office: LineOffice) -> None:
    line = office.connect("payer")
    office.receive(line, "payer", 3)
    assert list_numbers(office.take_letters()) == []
    assert line.is_closed


def test_letters_that_are_left_on_lines_are_a_backlog(tmp_path: Path) -> None:
    """No deadline passes while one waits that may have been sent in time."""
    office = LineOffice(tmp_path, most=1)
    for client_id in ("a", "b"):
        office.receive(office.connect(client_id), client_id, 1)
    assert office.take_letters().backlog
    office.close()
