"""The letters that a step takes: their order, when time may pass, and letters that cannot be read or deleted."""

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles
from protocol_harness import letter_bytes
from unit.test_tcp_lines import EXPIRATION_MS, SteppedLeader, stepped_leader

from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.codec.few_rows import FewRows
from lakemq.engine.protocol.errors import ClientEnded, InconsistentClusterId
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.state import State
from lakemq.engine.sequencer.letters.intake import (
    BUSY_MS,
    LONGEST_MS,
    LONGEST_PAUSE_MS,
    SHORTEST_MS,
    SHORTEST_PAUSE_MS,
    Intake,
    ListingPace,
    StepLetters,
)
from lakemq.engine.sequencer.letters.line_table import Line, LineLetter, LineTable
from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox

GAP_MS = 10_000
NAMESPACE_ID = "a-namespace"


class Office:
    """An intake with its mailbox, state and time. `step` decides and discards as the sequencer does."""

    def __init__(self, folder: Path, most: int = 50, most_bytes: int = 64 << 20, **faults: str | int) -> None:
        self.files = FaultyFiles(str(folder), **faults)  # type: ignore[arg-type]
        self.mailbox, self.clock, self.state = Mailbox(self.files), ManualClock(), State()
        self.config = EngineConfig({"step.max.letters": most, "step.max.bytes": most_bytes, "request.gap.ms": GAP_MS})
        self.intake = Intake(self.mailbox, self.config, self.clock)
        self.decided: list[tuple[str, int]] = []

    def put(self, client_id: str, number: int, coarse_s: int = 0, namespace_id: str = "") -> LetterName:
        return self.put_letter(Letter(client_id, number, [InitProducer()], 0, namespace_id), coarse_s)

    def put_letter(self, letter: Letter, coarse_s: int = 0, rows: FewRows | None = None) -> LetterName:
        name = LetterName.of(letter.client_id, letter.number, 1_000 * coarse_s)
        self.files.put(f"mailbox/{name.name}", letter_bytes(letter, rows), durable=False)
        return name

    def take_letters(self) -> StepLetters:
        return self.intake.take_letters(self.state, NAMESPACE_ID)

    def step(self, crash: bool = False) -> StepLetters:
        """Take letters and decide them. crash: stop after the step has landed, before a letter is discarded."""
        intake = self.take_letters()
        machine.begin_step(self.state, self.clock.now_ms())
        for taken_letter in intake.taken:
            if taken_letter.refusal is None:
                machine.decide_letter(self.state, taken_letter.letter)
                self.decided.append((taken_letter.name.client_id, taken_letter.name.number))
            else:
                machine.refuse_letter(
                    self.state, taken_letter.name.client_id, taken_letter.name.number, taken_letter.refusal
                )
        if not crash:
            self.intake.discard([taken_letter.name for taken_letter in intake.taken] + intake.repeated)
        return intake

    def time_passes(self, intake: StepLetters) -> bool:
        return not (intake.repeated or intake.backlog)


def list_numbers(intake: StepLetters) -> list[tuple[str, int]]:
    return [(taken_letter.name.client_id, taken_letter.name.number) for taken_letter in intake.taken]


# -- letters behind others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "waiting"), [(50, 50), (50, 400), (1, 3)])
def test_no_time_passes_while_a_letter_that_was_decided_waits_unseen(tmp_path: Path, most: int, waiting: int) -> None:
    """The letter is behind as many waiting letters as a step takes.

    Its client would be forgotten, and it would be decided again.
    """
    office = Office(tmp_path, most)
    office.put("payer", 1, coarse_s=5)
    office.step(crash=True)
    for number in range(2, 2 + waiting):
        office.put("gap", number, coarse_s=1)
    heir = Office(tmp_path, most)
    heir.state = office.state
    for _ in range(10):
        if heir.time_passes(heir.step()):
            heir.state.clients.clear()  # as if client.expiration.ms had passed
    assert heir.decided == []
    assert ("payer", 1) not in [(name.client_id, name.number) for name in heir.mailbox.list_waiting(9_999)]


def test_letters_behind_a_gap_do_not_hold_up_other_clients(tmp_path: Path) -> None:
    office = Office(tmp_path, most=20)
    for number in range(2, 102):
        office.put("gap", number, coarse_s=1)
    assert office.time_passes(office.step())
    office.put("c", 1, coarse_s=2)
    intake = office.step()
    assert list_numbers(intake) == [("c", 1)]
    assert not intake.backlog


EMPTY_HEADERS = FewRows(["t"], [0], [None], [None], [0], [[(None, None)] * 6_000])


@pytest.mark.parametrize(("requests", "rows"), [(100, None), (1, EMPTY_HEADERS)], ids=["requests", "headers"])
def test_step_takes_letters_up_to_its_bound_of_memory(tmp_path: Path, requests: int, rows: FewRows | None) -> None:
    """The letters have few bytes, at most 20 KiB, but each takes a tenth of a MiB in memory."""
    office = Office(tmp_path, most_bytes=1 << 20)
    for i in range(20):
        office.put_letter(Letter(f"c{i:02}", 1, [InitProducer()] * requests, 0), rows=rows)
    assert 8 <= len(office.step().taken) <= 12
    while office.step().backlog:
        pass
    assert len(set(office.decided)) == 20


@pytest.mark.parametrize(
    ("namespace_id", "decided"), [(NAMESPACE_ID, True), ("", True), ("the-one-before", False), ("a-namespac", False)]
)
def test_a_letter_for_another_namespace_at_this_path_is_refused(
    tmp_path: Path, namespace_id: str, decided: bool
) -> None:
    office = Office(tmp_path)
    office.put("c", 1, namespace_id=namespace_id)
    (taken_letter,) = office.step().taken
    assert isinstance(taken_letter.refusal, InconsistentClusterId) != decided
    assert office.decided == ([("c", 1)] if decided else [])


# -- letters that cannot be read ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_unreadable_letter_blocks_no_other(tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture) -> None:
    office = Office(tmp_path, unreadable="bad", code=code)
    office.put("bad", 1)
    office.put("good", 1)
    with caplog.at_level(logging.WARNING):
        intake = office.step()
        assert list_numbers(intake) == [("good", 1)]
        assert office.time_passes(intake)
        for _ in range(20):
            assert office.time_passes(office.step())
    assert [name for name in office.files.reads if "-bad-" in name] == [f"mailbox/{LetterName.of('bad', 1, 0).name}"]
    assert len(caplog.records) == 1
    assert os.strerror(code) in caplog.text


def test_unreadable_letter_is_tried_less_and_less_often_and_then_decided(tmp_path: Path) -> None:
    office = Office(tmp_path, unreadable="bad")
    office.put("bad", 1)
    for _ in range(600):
        office.step()
        office.clock.sleep(1_000)
    assert 10 <= len(office.files.reads) <= 17  # 1, 2, 4, ... 32 and then 60 s apart
    office.files.unreadable = ""
    office.clock.sleep(LONGEST_PAUSE_MS)
    office.step()
    assert office.decided == [("bad", 1)]
    assert office.mailbox.list_waiting(10) == []


def test_unreadable_letter_behind_a_gap_is_refused_unread(tmp_path: Path) -> None:
    office = Office(tmp_path, unreadable="bad")
    office.put("bad", 2)
    office.step()
    office.clock.sleep(GAP_MS + 1)
    (refused,) = office.step().taken
    assert isinstance(refused.refusal, ClientEnded)


def test_letter_that_is_no_file_blocks_no_other(tmp_path: Path) -> None:
    """The test uses a real folder: root may read any file, but no folder."""
    office = Office(tmp_path)
    (tmp_path / "mailbox" / LetterName.of("bad", 1, 0).name).mkdir(parents=True)
    office.put("good", 1)
    assert list_numbers(office.step()) == [("good", 1)]
    assert office.time_passes(office.step())
    listed = [name.client_id for name in office.mailbox.list_waiting(10)]
    assert [name.split("-")[1] for name, _ in office.mailbox.find_unreadable(10)] == listed


# -- letters that cannot be deleted -------------------------------------------------------------------------


def test_a_letter_that_cannot_be_deleted_is_decided_once_and_answered_seldom(tmp_path: Path) -> None:
    office = Office(tmp_path, undeletable="stuck")
    office.put("stuck", 1)
    office.put("other", 1)
    assert office.step().undeleted is False
    assert [name.client_id for name in office.mailbox.list_waiting(10)] == ["stuck"]
    intake = office.step()
    assert (intake.repeated, intake.undeleted) == ([], True)
    assert office.time_passes(intake), "transactions end in time"
    office.clock.sleep(SHORTEST_PAUSE_MS)
    assert len(office.step().repeated) == 1
    deletes = len(office.files.deletes)
    for _ in range(600):
        office.step()
        office.clock.sleep(1_000)
    assert len(office.files.deletes) - deletes <= 3 * 17
    office.state.clients.clear()
    for _ in range(5):
        office.clock.sleep(LONGEST_PAUSE_MS)
        office.step()
    assert office.decided.count(("stuck", 1)) == 1
    office.files.undeletable = ""
    office.clock.sleep(LONGEST_PAUSE_MS)
    office.step()
    assert office.mailbox.list_waiting(10) == []
    assert office.step().undeleted is False


# What a step takes from lines beside the mailbox: each letter once, and neither carrier shuts the other one out.


class LineOffice(Office):
    """An intake with lines whose reading thread is the test: a letter has arrived when the test says so."""

    def __init__(self, folder: Path, most: int = 50) -> None:
        super().__init__(folder, most)
        self.table = LineTable(self.clock, lambda: None)
        self._sockets: list[socket.socket] = []

    def list_at_pace(self) -> ListingPace:
        """Let steps list the mailbox now and then only, as on an object store."""
        pace = ListingPace(self.clock)
        self.intake = Intake(self.mailbox, self.config, self.clock, pace)
        return pace

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


# -- How often a leader lists the mailbox of a store while clients have lines ----------------------------

__all__ = ["stepped_leader"]  # a fixture


def count_listings(pace: ListingPace, clock: ManualClock, duration_ms: int, clients: int = 1) -> int:
    """Return how many steps list an empty mailbox. A step takes 10 ms."""
    count, end_ms = 0, clock.ms + duration_ms
    while clock.ms < end_ms:
        if pace.is_due(clients):
            count += 1
            pace.note_listing(has_letters=False)
        clock.ms += 10
    return count


def test_an_empty_mailbox_is_listed_every_one_to_five_seconds() -> None:
    clock = ManualClock()
    pace = ListingPace(clock)
    assert count_listings(pace, clock, SHORTEST_MS) == 1
    assert count_listings(pace, clock, 60_000) <= 60_000 // LONGEST_MS + 4
    assert count_listings(pace, clock, 60_000) == 60_000 // LONGEST_MS


def test_a_step_that_is_not_due_takes_letters_of_lines_only(office: LineOffice) -> None:
    office.list_at_pace()
    line = office.connect("c1")
    decide(office, office.take_letters())
    office.put("c2", 1)
    office.receive(line, "c1", 1)
    letters = office.take_letters()
    decide(office, letters)
    assert [opened.name.client_id for opened in letters.taken] == ["c1"]
    assert letters.is_mailbox_skipped
    office.clock.sleep(LONGEST_MS)
    letters = office.take_letters()
    assert [opened.name.client_id for opened in letters.taken] == ["c2"]
    assert not letters.is_mailbox_skipped


def test_letters_that_wait_for_an_earlier_one_are_looked_for_in_each_step(office: LineOffice) -> None:
    pace = office.list_at_pace()
    office.connect("c1")
    office.put("c2", 2)
    assert office.take_letters().gaps
    office.clock.sleep(BUSY_MS + 1)
    pace.note_listing(has_letters=False)
    office.put("c2", 1)
    assert [opened.name.number for opened in office.take_letters().taken] == [1, 2]


def test_nothing_expires_in_a_step_that_has_not_listed_the_mailbox(stepped_leader: SteppedLeader) -> None:
    """A letter of the client may wait there."""
    pace = ListingPace(stepped_leader.clock)
    stepped_leader.sequencer._intake._listing_pace = pace
    stepped_leader.lines.table._by_client["other"] = stepped_leader.lines.table._by_client.get("other")  # type: ignore[assignment]
    stepped_leader.sequencer.step()
    stepped_leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    pace.note_listing(has_letters=False)
    stepped_leader.lines.request_drain()
    stepped_leader.wait_for_drain()
    stepped_leader.sequencer.step()
    assert stepped_leader.knows_client, "the mailbox was not listed"
    stepped_leader.wait_for_drain()
    stepped_leader.sequencer.step()
    assert not stepped_leader.knows_client
