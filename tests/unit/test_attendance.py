"""The watch over members: it reports silent members and no others. The tests control the clock."""

from pathlib import Path

import msgspec
import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles
from protocol_harness import AtOnce, Harness
from unit.served import until

from lakemq.engine.client.consume.membership import HeartbeatThread, Membership
from lakemq.engine.client.consume.options import MemberOptions
from lakemq.engine.protocol.codec.beat import MemberBeat, decode_overdue_members, encode_beat
from lakemq.engine.protocol.values.groups import Assigned, JoinGroup, LeaveGroup
from lakemq.engine.sequencer.attendance import Attendance, OverdueMembers
from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes

SESSION_MS = 6_000


class Scene:
    """A leader that watches members, and processes that send their heartbeats."""

    def __init__(self, folder: Path) -> None:
        self.files, self.clock, self.mq = FaultyFiles(str(folder)), ManualClock(), Harness()
        self.beats = Beats(self.files)
        self.attendance = self.make_attendance()
        self.numbers: dict[str, int] = {}
        self.mq.create("t")

    def make_attendance(self) -> Attendance:
        overdue = OverdueMembers(OverdueNotes(self.files), self.clock)
        return Attendance(self.beats, overdue, self.clock, AtOnce())

    def join(self, *members: str, poll_ms: int = 300_000, process: str = "elsewhere") -> None:
        for member in members:
            self.mq.ask(
                JoinGroup(
                    "g", member, ["t"], session_timeout_ms=SESSION_MS, max_poll_interval_ms=poll_ms, process=process
                )
            )

    def beat(self, beats_id: str, *members: str, polls: int = 0, interval_ms: int = 0) -> None:
        self.numbers[beats_id] = number = self.numbers.get(beats_id, 0) + 1
        self.beats.put(beats_id, number, encode_beat([MemberBeat("g", m, polls, interval_ms) for m in members]))

    def pass_ms(self, ms: int) -> list[tuple[str, str]]:
        """Let time pass, and return the members that are silent afterwards."""
        self.clock.ms += ms
        return self.look()

    def look(self) -> list[tuple[str, str]]:
        silent = self.attendance.find_silent_members(self.mq.state)
        silent += self.attendance.find_silent_members(self.mq.state)  # findings of the look that has just begun
        return [(member.member_id, member.reason) for member in silent]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_silent_member_is_reported_right_after_its_deadline(scene: Scene) -> None:
    scene.join("C1")
    scene.beat("a", "C1")
    scene.look()
    for _ in range(5):
        scene.pass_ms(1_000)
    assert scene.pass_ms(1_000) == []
    assert scene.attendance.due_in_ms(scene.mq.state) == 1
    assert scene.pass_ms(1) == [("C1", "session")]


def test_member_that_beats_and_does_not_poll_is_lost(scene: Scene) -> None:
    scene.join("C1", poll_ms=2_000)
    scene.beat("a", "C1", polls=1)
    assert scene.look() == []
    for polls in (2, 3, 3):
        scene.beat("a", "C1", polls=polls)
        assert scene.pass_ms(1_000) == []
    # the beat may have been written before the deadline, so the next one decides
    scene.beat("a", "C1", polls=3)
    assert scene.pass_ms(1_001) == []
    scene.beat("a", "C1", polls=3)
    assert scene.pass_ms(1_000) == [("C1", "poll")]


def test_no_member_is_lost_while_the_leader_cannot_read_beats(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.join("C1")
    scene.beat("a", "C1")
    scene.look()
    scene.files.unlistable = "beats"
    for _ in range(20):
        assert scene.pass_ms(1_000) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    scene.files.unlistable = ""
    scene.beat("a", "C1")
    assert scene.pass_ms(1_000) == []


def test_beat_counts_though_a_newer_one_replaces_it_during_the_read(scene: Scene) -> None:
    scene.join("C1")
    scene.beat("a", "C1")
    scene.look()
    scene.files.unreadable = "beats/"
    for _ in range(10):
        scene.beat("a", "C1")
        assert scene.pass_ms(1_000) == []


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1", encode_beat([])[:-1], b"\x91\x93\xa1g\xa2C1\xa1x"], ids=str)
def test_invalid_beat_keeps_no_member_alive(scene: Scene, body: bytes) -> None:
    scene.join("C1")
    scene.beats.put("f", 1, body)
    scene.files.put("beats/what-is-this", b"?")
    scene.look()
    for number in range(2, 8):
        scene.beats.put("f", number, body)
        assert scene.pass_ms(1_000) == []
    assert scene.pass_ms(1) == [("C1", "session")]


def test_heartbeat_thread_beats_for_all_its_members_and_leaves_no_object(tmp_path: Path) -> None:
    beats = Beats(FaultyFiles(str(tmp_path)))
    heart = HeartbeatThread(beats, lambda: "abc")
    first, second = heart.add("g", "C1", 5), heart.add("h", "C2", 5)
    first.polls += 1
    until(lambda: read_beats(beats) == [("C1", 1), ("C2", 0)])
    number = beats.read_newest()["abc"][0]
    until(lambda: beats.read_newest()["abc"][0] > number)
    first.stop()
    until(lambda: read_beats(beats) == [("C2", 0)])
    second.stop()
    until(lambda: beats.read_newest() == {})
    third = heart.add("g", "C3", 5)
    until(lambda: read_beats(beats) == [("C3", 0)])
    third.stop()


def test_member_that_joins_again_under_its_id_goes_on_counting_its_polls(scene: Scene) -> None:
    """Else the leader ignores its polls until they are more than before, and removes it as one that does not poll."""
    heart = HeartbeatThread(scene.beats, lambda: "abc")
    membership = Membership(
        scene.mq,  # type: ignore[arg-type]
        heart,
        lambda query, newest=True: query(scene.mq.state),
        lambda: "0123456789abcdef",
        "g",
        "read_committed",
        MemberOptions(["t"], heartbeat_interval_ms=5, max_poll_interval_ms=2_000),
    )
    membership.join()
    for _ in range(1_000):
        membership.note_poll()
    until(lambda: read_beats(scene.beats) == [(membership.member_id, 1_000)])
    member_id = membership.member_id
    scene.mq.ask(LeaveGroup("g", [member_id]))
    membership.join([Assigned(scene.mq.state.topic("t").topic_id, 0, epoch=0)])
    assert membership.member_id == member_id
    scene.look()
    membership.note_poll()
    until(lambda: read_beats(scene.beats) == [(member_id, 1_001)])
    heart.stop()


def test_heartbeat_thread_survives_any_error_of_a_beat(tmp_path: Path) -> None:
    files, failures = FaultyFiles(str(tmp_path)), [RuntimeError("no thread"), MemoryError()]

    def fail(name: str) -> None:
        if failures:
            raise failures.pop()

    files.after_put = fail
    heart = HeartbeatThread(Beats(files), lambda: "abc")
    heart.add("g", "C1", 2)
    until(lambda: len(files.puts) >= 3)
    heart.stop()


def read_beats(beats: Beats) -> list[tuple[str, int]]:
    bodies = [body for _, body in beats.read_newest().values() if body is not None]
    return [(beat[1], beat[2]) for body in bodies for beat in msgspec.msgpack.decode(body)]


# -- members that are overdue, for people ---------------------------------------------------------------------


def read_note(scene: Scene) -> list[tuple[str, int | None, int | None]]:
    """Return the members of the note: id, and how long ago each was heard and polled, where that is long ago."""
    body = OverdueNotes(scene.files).read(scene.mq.state.leader_epoch)
    now_ms = scene.clock.now_ms()
    return [
        (
            note.member_id,
            None if note.heard_ms is None else now_ms - note.heard_ms,
            None if note.polled_ms is None else now_ms - note.polled_ms,
        )
        for note in ([] if body is None else decode_overdue_members(body))
    ]


def test_a_member_whose_heartbeats_stop_is_noted_before_its_session_ends(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for member in ("C1", "C2"):
        scene.mq.ask(JoinGroup("g", member, ["t"], session_timeout_ms=60_000))
    for _ in range(3):
        scene.beat("a", "C1", interval_ms=1_000)
        scene.beat("b", "C2", interval_ms=1_000)
        scene.pass_ms(1_000)
    for _ in range(5):
        scene.beat("a", "C1", interval_ms=1_000)
        assert scene.pass_ms(1_000) == []
    assert read_note(scene) == [("C2", 5_000, None)]
    (first,) = scene.files.list("overdue")
    scene.pass_ms(1_000)
    assert scene.files.list("overdue") == [first], "the same silence is written once"
    scene.beat("b", "C2", interval_ms=1_000)
    scene.pass_ms(1_000)
    scene.beat("a", "C1", interval_ms=1_000)
    scene.pass_ms(1_000)
    assert read_note(scene) == []
    assert scene.files.list("overdue") == []


def test_a_member_that_beats_and_does_not_poll_is_noted_after_half_of_its_interval(scene: Scene) -> None:
    scene.join("C1", poll_ms=20_000)
    scene.beat("a", "C1", polls=1)
    scene.look()
    for _ in range(12):
        scene.beat("a", "C1", polls=1)
        assert scene.pass_ms(1_000) == []
    assert read_note(scene) == [("C1", None, 12_000)]
    scene.beat("a", "C1", polls=2)
    scene.pass_ms(1_000)
    scene.beat("a", "C1", polls=2)
    scene.pass_ms(1_000)
    assert read_note(scene) == []
