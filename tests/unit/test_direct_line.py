"""A client's end of a line: it saves time while all goes well, and else the letter comes once through the mailbox."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clocks import HastyClock, ManualClock
from decided import read_steps
from protocol_harness import letter_bytes
from unit.desk import Desk
from unit.served import CONFIG, find_lines, new_name, new_topic, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.requests import direct_line
from lakemq.engine.client.requests import requester as requester_module
from lakemq.engine.client.requests.direct_line import DirectLine
from lakemq.engine.client.requests.requester import IDLE_MS, Requester
from lakemq.engine.namespace.line_frames import LineAddress, encode_address
from lakemq.engine.protocol.codec.letter import decode_letter, encode_answer
from lakemq.engine.protocol.errors import ClientEnded, RequestTimedOut
from lakemq.engine.protocol.values.clients import Answer, Letter
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.engine.protocol.values.topics import CreateTopic, TopicCreated
from lakemq.engine.sequencer.letters.line_opener import open_term_lines
from lakemq.engine.sequencer.letters.line_table import LineLetter
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.tables.storage.coordination.mailbox import MailboxFull
from lakemq.tables.storage.coordination.sockets import identify_folder, line_name
from lakemq.testing import MovableClock


def count_letters(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by each client whose letter goes into the mailbox."""
    put, clients = mq.namespace.mailbox.put, []

    def put_and_count(client_id: str, *arguments: Any) -> str:
        clients.append(client_id)
        return put(client_id, *arguments)

    monkeypatch.setattr(mq.namespace.mailbox, "put", put_and_count)
    return clients


def test_letters_go_on_the_line_of_a_leader_that_serves(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(mq)
    with lakemq.connect(mq.namespace.path, config=CONFIG) as other, other.producer(linger_ms=0) as producer:
        by_mailbox = count_letters(other, monkeypatch)
        for number in range(20):
            producer.send(topic, str(number)).result()
    assert values(mq, topic) == [str(number) for number in range(20)]
    assert by_mailbox == []
    assert not os.path.exists(os.path.join(mq.namespace.path, "replies", other.requester._client_id))


@pytest.mark.slow
def test_an_idle_connection_keeps_neither_line_nor_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that was dropped without a call of `close`."""
    monkeypatch.setattr(requester_module, "IDLE_MS", 100)
    before = set(threading.enumerate())

    def has_rested() -> bool:
        threads = set(threading.enumerate()) - before
        return not lines.lines() and not any(thread.name == "lakemq-requester" for thread in threads)

    with lakemq.connect(tmp_path / "mq", create=True, config=CONFIG) as mq, mq.serving() as serving:
        mq.topics.create("t")
        lines = find_lines(serving.sequencer).table
        until(has_rested)
        for _ in range(5):
            lakemq.connect(mq.namespace.path).topics.alter("t", {"max.message.bytes": 1_000})
        until(has_rested)
        letters = count_letters(mq, monkeypatch)
        mq.topics.delete("t")
        assert letters == [], "the next request has a line again"


@pytest.mark.slow
def test_a_leader_without_lines_leads_no_client_to_a_stopped_one(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        mq.namespace.files.put(line_name(0), b"of a process that is stopped", durable=False)
        mq.step_until_idle()
        assert mq.namespace.files.list("line") == []


# -- a leader that does what a test tells it to -------------------------------------------------------------


class OnLine:
    """A requester with a line to a leader of this test's own, and a mailbox in which each letter is answered at once.

    letters: number and body of each letter that came on the line, in order.
    """

    def __init__(
        self,
        folder: Path,
        behave: Callable[[LineServer, LineLetter], None],
        clock: ManualClock | None = None,
        timeout_ms: int = 1_000,
    ) -> None:
        """clock: of the requester."""
        self.desk = Desk(folder)
        self.letters: list[tuple[int, bytes]] = []
        self._behave, self._news, self._stop = behave, threading.Event(), threading.Event()
        leaders_clock = MovableClock()
        lines = open_term_lines(self.desk.files, "ns", 1, 60_000, leaders_clock.steady_ms(), self._news, leaders_clock)
        assert lines is not None
        self.lines = lines
        line = DirectLine(self.desk.files, "ns", leaders_clock)
        ids = iter(("c1", "c2", "c3"))
        self.requester = Requester(
            self.desk.mailbox, clock or self.desk.clock, lambda: next(ids), timeout_ms, line=line
        )
        self._thread = threading.Thread(target=self._lead)
        self._thread.start()

    def _lead(self) -> None:
        while not self._stop.is_set():
            self._news.wait(0.05)
            self._news.clear()
            while (letter := self.lines.table.take_letter()) is not None:
                self.letters.append((letter.name.number, letter.body))
                self._behave(self.lines, letter)

    def ask(self) -> Any:
        return self.requester.ask(InitProducer())

    def close(self) -> None:
        self.requester.close()
        self._stop.set()
        self._thread.join()
        self.lines.close()


def answer(lines: LineServer, letter: LineLetter, number_ahead: int = 0, client_id: str = "") -> None:
    head, _ = decode_letter(letter.body)
    results: Any = [ProducerDone(9, 0)] * len(head.requests)
    name = client_id or letter.name.client_id
    lines.table.answer(letter, encode_answer(Answer(name, letter.name.number + number_ahead, 1, results)))


def stay_silent(lines: LineServer, letter: LineLetter) -> None:
    """Take the letter as a leader does whose process is stopped then."""


BEHAVIOURS = {
    "closes": lambda lines, letter: lines.table.refuse(letter),
    "is silent": stay_silent,
    "answers another letter": lambda lines, letter: answer(lines, letter, number_ahead=1),
    "answers another client": lambda lines, letter: answer(lines, letter, client_id="other"),
    "sends nonsense": lambda lines, letter: lines.table.answer(letter, b"{nonsense"),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_line, "PATIENCE_MS", 200)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behave", BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_letter_without_a_good_answer_goes_into_the_mailbox(
    tmp_path: Path, behave: Callable[[LineServer, LineLetter], None]
) -> None:
    office, bodies = OnLine(tmp_path, behave), []
    after_put = office.desk.files.after_put

    def note_body(path: str) -> None:
        if path.startswith("mailbox/"):
            bodies.append(office.desk.files.get(path))
        after_put(path)

    office.desk.files.after_put = note_body
    assert office.ask() == ProducerDone(7, 0), "the answer from the mailbox"
    assert office.desk.letters == [("c1", 1, 1)]
    assert office.letters == [(1, bodies[0])], "under its number, byte for byte"
    assert office.ask() == ProducerDone(7, 0)
    assert office.desk.letters == [("c1", 1, 1), ("c1", 2, 1)], "a line that failed is left alone for a while"
    office.close()


@pytest.mark.parametrize("error", ["full", "unwritable"])
def test_outcome_is_unknown_if_line_and_mailbox_fail(tmp_path: Path, error: str) -> None:
    """It may have been decided: neither is the caller told that nothing was sent, nor is its number used again."""
    office = OnLine(tmp_path, lambda lines, letter: lines.table.refuse(letter))
    if error == "full":
        office.desk.mailbox.put = raise_full  # type: ignore[method-assign]
    else:
        office.desk.files.unwritable = "mailbox/"
    with pytest.raises(RequestTimedOut, match="outcome is unknown"):
        office.ask()
    assert office.requester._client_id == "c2"
    office.close()


class JumpingClock(ManualClock):
    """A clock of which a sleep of the machine moves one part, or both.

    Linux counts a sleep in both. Other systems, and virtual machines that are paused, count it in the wall clock alone.
    """

    steady_ahead_ms = 0

    def steady_ms(self) -> int:
        return self.ms + self.steady_ahead_ms


@pytest.mark.parametrize(
    ("timeout_ms", "steady_ms", "wall_ms", "is_put"),
    [
        (1_000, 1_001, 1_001, False),
        (1_000, 900, 900, True),
        (1_000, 0, 1_001, False),
        (1_000, 1_001, 0, False),
        (1_000, 900, -3_600_000, True),
        (50_000, IDLE_MS + 1, IDLE_MS + 1, False),
        (50_000, IDLE_MS - 1, IDLE_MS - 1, True),
    ],
)
def test_a_letter_that_was_sent_is_not_put_again_after_a_sleep(
    tmp_path: Path, timeout_ms: int, steady_ms: int, wall_ms: int, is_put: bool
) -> None:
    """The sequencer may have decided it, and have forgotten the client since."""
    clock = JumpingClock()

    def sleep_and_close(lines: LineServer, letter: LineLetter) -> None:
        clock.ms, clock.steady_ahead_ms = clock.ms + wall_ms, clock.steady_ahead_ms + steady_ms - wall_ms
        lines.table.refuse(letter)

    office = OnLine(tmp_path, sleep_and_close, clock=clock, timeout_ms=timeout_ms)
    if is_put:
        assert office.ask() == ProducerDone(7, 0)
        assert office.desk.letters == [("c1", 1, 1)]
    else:
        with pytest.raises(RequestTimedOut, match=r"too old to be sent again; the outcome is unknown"):
            office.ask()
        assert office.desk.letters == []
    assert office.ask() == ProducerDone(7, 0)
    assert office.desk.letters[-1] == (("c1", 2, 1) if is_put else ("c2", 1, 1))
    office.close()


def test_where_the_client_of_a_sent_letter_is_forgotten_its_outcome_is_unknown(tmp_path: Path) -> None:
    """A virtual machine was paused, and its clocks stood still."""
    office = OnLine(tmp_path, lambda lines, letter: lines.table.refuse(letter))
    office.desk.result = ClientEnded("A letter before this one never came.").refusal()
    with pytest.raises(RequestTimedOut, match="has forgotten this client; the outcome is unknown"):
        office.ask()
    with pytest.raises(ClientEnded):
        office.ask()  # put once: it was surely refused
    office.close()


def test_an_answer_that_came_while_the_client_was_stopped_counts(tmp_path: Path) -> None:
    """Else the client would not know what became of its letter: its time is over when it goes on."""
    answered, clock = threading.Event(), MovableClock()

    def answer_and_note(lines: LineServer, letter: LineLetter) -> None:
        answer(lines, letter)
        answered.set()

    def be_stopped() -> None:
        assert answered.wait(10)
        clock.ahead_ms += 60_000

    office = OnLine(tmp_path, answer_and_note)
    line = DirectLine(office.desk.files, "ns", clock)
    was_sent, received = line.exchange("stopped", 1, letter_of("stopped", 1, "t"), 30_000, be_stopped)
    assert was_sent
    assert received == Answer("stopped", 1, 1, [ProducerDone(9, 0)])
    line.close()
    office.close()


def raise_full(*_: Any) -> str:
    raise MailboxFull


FORGED = {
    "nonsense": b"nonsense",
    "a list without an end": b'{"more": ' + b"[" * 100_000,
    "nothing": b"",
    "a socket that is gone": encode_address(LineAddress("ns", 9, "t", "line/gone.sock", folder="HERE")),
    "a folder": encode_address(LineAddress("ns", 9, "t", "mailbox")),
    "a name with a zero byte": encode_address(LineAddress("ns", 9, "t", "line/\0")),
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_invalid_line_object_costs_no_letter(tmp_path: Path, body: bytes) -> None:
    desk = Desk(tmp_path)
    desk.files.put(line_name(8), b"", durable=False)
    desk.files.put(line_name(9), body.replace(b"HERE", identify_folder(desk.files.root).encode()), durable=False)
    line = DirectLine(desk.files, "ns", MovableClock())
    requester = Requester(desk.mailbox, desk.clock, lambda: "c1", 1_000, line=line)
    assert requester.ask(InitProducer()) == ProducerDone(7, 0)
    assert desk.letters == [("c1", 1, 1)]
    requester.close()


# -- decided once -------------------------------------------------------------------------------------------


@pytest.fixture
def led(tmp_path: Path) -> Iterator[tuple[Connection, Sequencer]]:
    """A namespace, and a sequencer with lines that does one step when it is told to."""
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        sequencer = Sequencer(mq.namespace, "leader", HastyClock(), iter(range(1, 1000)).__next__, has_lines=True)
        assert sequencer.try_lead()
        yield mq, sequencer
        sequencer.resign()


@pytest.mark.parametrize("carriers", ["line first", "mailbox first", "both at once", "client forgotten"])
def test_letter_on_line_and_in_mailbox_is_decided_once(led: tuple[Connection, Sequencer], carriers: str) -> None:
    mq, sequencer = led
    lines = find_lines(sequencer)
    topic, client_id = new_name("once"), "c1"
    body = letter_of(client_id, 1, topic)
    line = DirectLine(mq.namespace.files, mq.namespace.namespace_id, MovableClock())
    if carriers == "mailbox first":
        mq.namespace.mailbox.put(client_id, 1, body, 0)
        assert sequencer.step().letters == 1
    sender = threading.Thread(target=lambda: line.exchange(client_id, 1, body, 5_000))
    sender.start()
    until(lambda: bool(lines.table._inbox))
    if carriers == "line first":
        assert sequencer.step().letters == 1
    if carriers != "mailbox first":
        mq.namespace.mailbox.put(client_id, 1, body, 0)
    if carriers == "client forgotten":
        # decided from the mailbox before the line is read; then the leader forgets the client
        sequencer._intake._is_mailbox_next = True
        assert sequencer.step().letters == 1
        sequencer.state.clients.clear()
    for _ in range(3):
        sequencer.step()
    sender.join()
    assert [name for name in list_created_topics(mq) if name == topic] == [topic]
    line.close()


def letter_of(client_id: str, number: int, topic: str) -> bytes:
    return letter_bytes(Letter(client_id, number, [CreateTopic(topic, 1)], 0))


def list_created_topics(mq: Connection) -> list[str]:
    steps = read_steps(mq.namespace.store)
    records = [entry.record for step in steps for entry in step.entries]
    return [record.topic for record in records if isinstance(record, TopicCreated)]
