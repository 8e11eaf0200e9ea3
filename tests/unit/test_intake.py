"""The letters that a step takes: their order, when time may pass, and letters that cannot be read or deleted."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles
from protocol_harness import letter_bytes

from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.codec.few_rows import FewRows
from lakemq.engine.protocol.errors import ClientEnded, InconsistentClusterId
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.state import State
from lakemq.engine.sequencer.letters.intake import LONGEST_PAUSE_MS, SHORTEST_PAUSE_MS, Intake, StepLetters
from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox

GAP_MS = 10_000
NAMESPACE_ID = "a-namespace"


class Office:
    """An intake with its mailbox, state and time. `step` decides and discards as the sequencer does."""

    def __init__(self, folder: Path, most: int = 50, most_bytes: int = 64 << 20, **faults: str | int) -> None:
        self.files = FaultyFiles(str(folder), **faults)  # type: ignore[arg-type]
        self.mailbox, self.clock, self.state = Mailbox(self.files), ManualClock(), State()
        config = EngineConfig({"step.max.letters": most, "step.max.bytes": most_bytes, "request.gap.ms": GAP_MS})
        self.intake = Intake(self.mailbox, config, self.clock)
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


def test_letters_that_wait_for_a_gap_leave_time_and_room_to_others(tmp_path: Path) -> None:
    office = Office(tmp_path, most=20)
    for number in range(2, 102):
        office.put("gap", number, coarse_s=1)
    assert office.time_passes(office.step())
    office.put("c", 1, coarse_s=2)
    intake = office.step()
    assert list_numbers(intake) == [("c", 1)]
    assert not intake.backlog


def test_a_full_step_says_that_more_may_wait(tmp_path: Path) -> None:
    office = Office(tmp_path, most=20)
    for i in range(30):
        office.put(f"c{i}", 1)
    assert (office.step().backlog, office.step().backlog) == (True, False)
    assert len(set(office.decided)) == 30


EMPTY_HEADERS = FewRows(["t"], [0], [None], [None], [0], [[(None, None)] * 6_000])


@pytest.mark.parametrize(("requests", "rows"), [(100, None), (1, EMPTY_HEADERS)], ids=["requests", "headers"])
def test_a_step_takes_no_more_than_it_has_memory_for(tmp_path: Path, requests: int, rows: FewRows | None) -> None:
    """The letters have few bytes, at most 20 KiB, but each takes a tenth of a MiB in memory."""
    office = Office(tmp_path, most_bytes=1 << 20)
    for i in range(20):
        office.put_letter(Letter(f"c{i:02}", 1, [InitProducer()] * requests, 0), rows=rows)
    assert 8 <= len(office.step().taken) <= 12
    while office.step().backlog:
        pass
    assert len(set(office.decided)) == 20


def test_intake_forgets_letters_that_are_gone(tmp_path: Path) -> None:
    office = Office(tmp_path)
    names = [office.put("gap", number) for number in range(2, 42)]
    office.step()
    assert len(office.intake._retries) == 40
    office.mailbox.discard(names[1:])
    office.step()
    assert list(office.intake._retries) == [names[0].name]
    office.clock.sleep(GAP_MS + 1)
    (refused,) = office.step().taken
    assert isinstance(refused.refusal, ClientEnded)
    office.step()
    assert office.intake._retries == {}


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


def test_unreadable_letters_keep_to_the_bound_of_a_step(tmp_path: Path) -> None:
    office = Office(tmp_path, most=10, unreadable="bad")
    for i in range(35):
        office.put(f"bad{i}", 1, coarse_s=1)
    office.put("good", 1, coarse_s=2)
    reads = []
    for _ in range(6):
        before = len(office.files.reads)
        intake = office.step()
        reads.append(len(office.files.reads) - before)
    assert max(reads) == 10
    assert office.decided == [("good", 1)]
    assert office.time_passes(intake)


def test_unreadable_letter_behind_a_gap_is_refused_unread(tmp_path: Path) -> None:
    office = Office(tmp_path, unreadable="bad")
    office.put("bad", 2)
    office.step()
    office.clock.sleep(GAP_MS + 1)
    (refused,) = office.step().taken
    assert isinstance(refused.refusal, ClientEnded)


def make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, make_large, lambda path: path.symlink_to(path)],
    ids=["pipe", "folder", "20GB", "loop"],
)
def test_letter_that_is_no_file_blocks_no_other(tmp_path: Path, make) -> None:
    """The test uses real folders and links: root may read any file, but not these."""
    office = Office(tmp_path)
    (tmp_path / "mailbox").mkdir()
    make(tmp_path / "mailbox" / LetterName.of("bad", 1, 0).name)
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
