"""Heartbeats on lines: they count only while steps land, and nobody is silent whose beat may still be unread."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.line_peers import LEASE_MS, PATIENCE_S
from unit.served import CONFIG, new_name, new_topic, until
from unit.test_attendance import SESSION_MS, Scene
from unit.test_lines import ADDRESS, HELLO, Client, Leader

import lakemq
from lakemq.engine.client.requests.direct_line import BEAT_SEEN_MS, FollowLine
from lakemq.engine.namespace.line_frames import (
    FollowFrameKind,
    Frame,
    FrameReader,
    Hello,
    LineBeat,
    encode_beat_frame,
)
from lakemq.engine.protocol.codec.beat import MemberBeat, encode_beat
from lakemq.engine.sequencer.letters import lines as lines_module
from lakemq.engine.sequencer.letters.line_table import LineListener
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.tables.storage.coordination import sockets
from lakemq.testing import MovableClock

INTERVAL_MS = 200


def beat_frame(number: int, *members: str, polls: int = 0, interval_ms: int = INTERVAL_MS) -> bytes:
    beatings = [MemberBeat("g", member, polls, interval_ms) for member in members]
    return encode_beat_frame(LineBeat("a", number, encode_beat(beatings)))


def seen(number: int) -> Frame:
    return Frame(FollowFrameKind.BEAT_SEEN, number.to_bytes(8, "big"))


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    leader = Leader(tmp_path)
    yield leader
    leader.lines.close()


def read_numbers(leader: Leader) -> list[int]:
    return [beat.number for beat in leader.lines.beats.read_all()]


def test_counted_beat_is_confirmed_to_its_process(leader: Leader) -> None:
    client = leader.connect().greet()
    for number in (1, 2):
        client.send(beat_frame(number, "C1"))
        assert client.receive() == seen(number)
    (beat,) = leader.lines.beats.list_newest()
    assert (beat.beats_id, beat.number, [member.member_id for member in beat.members]) == ("a", 2, ["C1"])


def test_a_beat_does_not_count_while_no_step_lands(leader: Leader) -> None:
    """Another sequencer may lead by then. The process must know that nobody has counted its beat."""
    client = leader.connect().greet()
    client.send(beat_frame(1, "C1"))
    assert client.receive() == seen(1)
    leader.clock.ahead_ms += LEASE_MS
    client.send(beat_frame(2, "C1"))
    assert client.receive() is None
    assert read_numbers(leader) in ([], [1]), "the last beat before is told once, and the new one is not"


def test_a_beat_that_arrived_is_read_before_anybody_is_judged(leader: Leader) -> None:
    client = leader.connect().greet()
    for number in range(1, 200):
        client.send(beat_frame(number, "C1"))
        assert read_numbers(leader) == [number]
        assert client.receive() == seen(number)


@pytest.mark.slow
def test_no_member_is_judged_while_lines_are_not_read(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "READ_TIMEOUT_S", 0.1)
    go_on = threading.Event()
    monkeypatch.setattr(leader.lines, "_close_overdue", lambda: go_on.wait(PATIENCE_S))
    time.sleep(0.3)  # the reading thread turns at least once
    leader.connect()
    with pytest.raises(TimeoutError):
        leader.lines.beats.read_all()
    go_on.set()


def test_last_beat_of_a_closed_line_is_read_once(leader: Leader) -> None:
    client = leader.connect().greet()
    client.send(beat_frame(1, "C1"))
    assert client.receive() == seen(1)
    client.socket.close()
    until(lambda: leader.lines.beats.has_lost)
    assert leader.news.is_set(), "the leader looks at once whether the process has ended"
    assert leader.lines.beats.list_newest() == []
    assert read_numbers(leader) == [1]
    assert read_numbers(leader) == []


def test_beats_are_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = leader.connect().greet(), leader.connect().greet(Hello("ns", 3, "secret", "second"))
    large = [MemberBeat("g", "x" * 1_000, 0) for _ in range(10)]
    monkeypatch.setattr(lines_module, "MAX_BYTES", 15_000)
    for number in range(1, 5):  # a newer beat takes the place of the one before
        first.send(encode_beat_frame(LineBeat("a", number, encode_beat(large))))
        assert first.receive() == seen(number)
    second.send(encode_beat_frame(LineBeat("b", 1, encode_beat(large))))
    assert second.receive() is None
    first.socket.close()
    until(lambda: not leader.lines.beats.list_newest())
    third = leader.connect().greet(Hello("ns", 3, "secret", "third"))
    third.send(encode_beat_frame(LineBeat("c", 1, encode_beat(large))))
    assert third.receive() == seen(1)


@pytest.mark.parametrize(
    "frame",
    [encode_beat_frame(LineBeat("a", 1, b"nonsense")), encode_beat_frame(LineBeat("a", 1, b"x" * (1 << 20)))],
    ids=["nonsense", "too large"],
)
def test_a_bad_beat_closes_the_line(leader: Leader, frame: bytes) -> None:
    client = leader.connect().greet()
    client.send(frame)
    assert client.receive() is None


# -- the leader's judgement ---------------------------------------------------------------------------------


class LineScene(Scene):
    """A leader that watches members, with lines on which their processes beat."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = MovableClock()  # a clock for both, which goes on
        path, now_ms = str(folder / "beats.sock"), self.clock.steady_ms()
        listeners = [LineListener(sockets.listen_unix(path))]
        self.lines = LineServer(listeners, self.files, ADDRESS, 10**9, now_ms, threading.Event(), self.clock)
        self.attendance = self.make_attendance()
        self.attendance.use_line_beats(self.lines.beats)
        self.line, self.number = Client(path).greet(HELLO), 0

    def beat_on_line(self, *members: str, **values: Any) -> None:
        self.number += 1
        self.line.send(beat_frame(self.number, *members, **values))
        assert self.line.receive() == seen(self.number)

    def pass_ms(self, ms: int) -> list[tuple[str, str]]:
        self.clock.ahead_ms += ms
        return self.look()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[LineScene]:
    scene = LineScene(tmp_path)
    yield scene
    scene.lines.close()


def test_member_that_stops_beating_on_a_line_is_lost_after_its_session(scene: LineScene) -> None:
    scene.join("C1", "C2")
    scene.beat_on_line("C1", "C2")
    assert scene.look() == []
    for _ in range(5):
        scene.beat_on_line("C1")
        assert scene.pass_ms(1_000) == []
    scene.beat_on_line("C1")
    assert scene.pass_ms(1_100) == [("C2", "session")]


def test_a_process_that_has_changed_to_objects_lives(scene: LineScene) -> None:
    scene.join("C1")
    scene.beat_on_line("C1")
    scene.look()
    scene.line.socket.close()
    until(lambda: scene.lines.beats.has_lost)
    for _ in range(9):
        scene.numbers["a"] = scene.number
        scene.beat("a", "C1")
        scene.number += 1
        assert scene.pass_ms(1_001) == []
    silent = [scene.pass_ms(1_001) for _ in range(SESSION_MS // 1_000 + 1)]
    assert silent[-1] == [("C1", "session")]
    assert not any(silent[:-2])


def test_no_member_is_lost_by_a_look_at_lines_alone(scene: LineScene) -> None:
    """The process may have begun to write objects while its line seems to be in order."""
    scene.join("C1")
    scene.beat_on_line("C1", interval_ms=SESSION_MS - 500)
    scene.look()
    scene.numbers["a"] = scene.number
    scene.beat("a", "C1")
    assert scene.pass_ms(SESSION_MS // 2) == []  # a longer gap between two looks would restart the session
    assert scene.pass_ms(SESSION_MS // 2 + 100) == []
    assert scene.pass_ms(1_001) == []
    silent = [scene.pass_ms(1_001) for _ in range(SESSION_MS // 1_000 + 1)]
    assert [("C1", "session")] in silent


def test_next_leader_keeps_a_member_whose_beats_came_on_lines(scene: LineScene) -> None:
    """Its session is judged from the new term on, however long ago the member has written an object."""
    scene.join("C1")
    scene.beat("a", "C1")
    (name,) = scene.files.list("beats")
    os.utime(Path(scene.files.root, name), (0, 0))
    scene.number = 1
    scene.attendance = scene.make_attendance()
    scene.attendance.use_line_beats(scene.lines.beats)
    for _ in range(2 * SESSION_MS // 1_000):
        scene.beat_on_line("C1")
        assert scene.pass_ms(1_000) == []


def test_a_closed_line_has_its_process_looked_for_soon(scene: LineScene) -> None:
    scene.join("C1")
    scene.beat_on_line("C1")
    scene.look()
    assert (scene.attendance.due_in_ms(scene.mq.state) or 0) > 500
    scene.line.socket.close()
    until(lambda: scene.lines.beats.has_lost)
    assert (scene.attendance.due_in_ms(scene.mq.state) or 0) <= 100


# -- processes ----------------------------------------------------------------------------------------------


class StubbornDialer:
    """Connects to a leader that greets and then says nothing."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()

    def dial(self, client_id: str, timeout_ms: float) -> object:
        return self.here, FrameReader(1 << 20)


@pytest.mark.slow
def test_a_beat_that_is_not_counted_in_time_is_written_as_an_object(leader: Leader) -> None:
    """The leader's process may be stopped."""
    line = FollowLine(StubbornDialer(), lambda: "x", leader.clock)  # type: ignore[arg-type]
    began_s = time.monotonic()
    assert not line.send_beat(LineBeat("a", 1, encode_beat([])))
    assert time.monotonic() - began_s > 0.9 * BEAT_SEEN_MS / 1000
    assert line._connection is None


def list_beats(mq: lakemq.Connection) -> list[str]:
    return list(mq.namespace.files.list("beats"))


def member(mq: lakemq.Connection, topic: str) -> lakemq.engine.client.consume.group_consumer.GroupConsumer:
    options = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": INTERVAL_MS}
    return mq.consumer(new_name("g"), topics=[topic], **options)  # type: ignore[return-value]


@pytest.mark.slow
def test_members_beat_on_lines_and_write_no_objects_and_no_steps(mq: lakemq.Connection) -> None:
    topic = new_topic(mq)
    with member(mq, topic) as consumer:
        until(lambda: bool(consumer.poll().offsets is not None and consumer.assignment()))
        term = mq._open.serving[0].sequencer._term
        assert term is not None
        assert term.lines is not None
        lines = term.lines
        until(lambda: bool(lines.beats.list_newest()))
        until(lambda: not list_beats(mq))
        first, step = lines.beats.list_newest()[0].number, mq.state().step
        until(lambda: lines.beats.list_newest()[0].number >= first + 5)
        assert list_beats(mq) == []
        assert mq.state().step <= step + 1, "at most the lease was renewed"


@pytest.mark.slow
def test_an_object_is_written_at_once_when_the_line_is_lost(tmp_path: Path) -> None:
    options = {"session_timeout_ms": 900_000, "heartbeat_interval_ms": 300_000}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("t")
            consumer = mq.consumer("g", topics=["t"], **options)
            until(lambda: not list_beats(mq) and bool(find_line_beats(mq)))
        until(lambda: len(list_beats(mq)) == 1)
        mq.serving()
        consumer.close()


def find_line_beats(mq: lakemq.Connection) -> list[object]:
    term = mq._open.serving[0].sequencer._term
    return [] if term is None or term.lines is None else list(term.lines.beats.list_newest())
