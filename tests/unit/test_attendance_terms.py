"""Sessions that continue under the next leader: dead members are found, and living ones are never thought dead."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from unit.test_attendance import SESSION_MS, Scene

from lakemq.engine.namespace.process import is_process_gone, read_own_identity
from lakemq.engine.protocol.codec.beat import MemberBeat, decode_beat
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.engine.sequencer.attendance import ABANDONED_AFTER_MS, MAX_READ_GAP_MS

INTERVAL_MS = 200
CONFIRM_MS = MAX_READ_GAP_MS + 2 * INTERVAL_MS
HOUR_MS = 3_600_000


class Terms(Scene):
    """Leaders that follow each other, and beats whose age by the store's clock the tests choose."""

    def lead(self) -> list[tuple[str, str]]:
        """Let a new leader take its first look, and return the members that it finds silent."""
        self.attendance = self.make_attendance()
        return self.look()

    def beat_as(self, beats_id: str, member: str, age_ms: int = 0) -> None:
        self.beat(beats_id, member, polls=1, interval_ms=INTERVAL_MS)
        self.age(beats_id, age_ms)

    def age(self, beats_id: str, age_ms: int) -> None:
        """Make the newest beat so old by the store's clock."""
        for name in self.files.list("beats"):
            if name.startswith(f"beats/{beats_id}-"):
                then_s = time.time() - age_ms / 1000
                os.utime(Path(self.files.root, name), (then_s, then_s))

    def age_all(self, age_ms: int) -> None:
        for name in self.files.list("beats"):
            self.age(name.removeprefix("beats/").partition("-")[0], age_ms)

    def wait_ms(self, ms: int) -> list[tuple[str, str]]:
        """Let time pass. The leader looks at least once per second."""
        silent = []
        while ms > 0:
            silent += self.pass_ms(min(ms, 1_000))
            ms -= 1_000
        return silent

    def observation_left_ms(self) -> int:
        return self.attendance.observation_left_ms(self.mq.state)


@pytest.fixture
def scene(tmp_path: Path) -> Terms:
    return Terms(tmp_path)


def test_session_goes_on_across_short_terms_by_the_stores_time(scene: Terms) -> None:
    """A new leader does not restart sessions: five short terms find what one long term would find."""
    scene.mq.ask(JoinGroup("g", "C1", ["t"], session_timeout_ms=45_000))
    for age_ms in (0, 10_000, 20_000, 30_000):
        scene.beat_as("a", "C1", age_ms=age_ms)
        assert scene.lead() == []
        assert scene.pass_ms(1_000) == []
    # the store's clock is the machine's: if it is busy, seconds may pass between a beat and the look at it
    assert scene.wait_ms(8_000) == []
    assert set(scene.wait_ms(7_000)) == {("C1", "session")}


def test_sessions_begin_again_if_the_store_has_no_time(scene: Terms, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(scene.files, "time_ms", fail)
    scene.join("C1")
    scene.beat_as("a", "C1", age_ms=HOUR_MS)
    assert scene.lead() == []
    assert [scene.wait_ms(SESSION_MS), scene.pass_ms(1)] == [[], [("C1", "session")]]


def test_a_member_that_shares_its_beats_lives_with_the_process(scene: Terms) -> None:
    scene.join("C1", "C2")
    scene.beat("a", "C1", "C2")
    scene.age("a", HOUR_MS)
    scene.lead()
    scene.beat("a", "C2")
    # the beats no longer name C1
    silent = [finding for _ in range(7) for finding in (scene.beat("a", "C2"), *scene.pass_ms(1_000)) if finding]
    assert set(silent) == {("C1", "session")}


def test_beat_of_an_ended_thread_keeps_no_member_alive(scene: Terms) -> None:
    """Two beats name the member. The one that no longer changes must not make the other look new."""
    scene.join("C1")
    scene.beat("a", "C1")
    scene.beat("b", "C1")
    scene.lead()
    assert [scene.wait_ms(SESSION_MS), scene.pass_ms(1)] == [[], [("C1", "session")]]


# -- members without any beat -------------------------------------------------------------------------------


def test_member_that_never_beat_is_lost_under_a_later_leader(scene: Terms) -> None:
    """The first beat of the member never landed, or the member closed without leaving.

    No leader lives for a session.
    """
    scene.join("C1")
    assert scene.lead() == []
    scene.age_all(0)
    assert scene.lead() == []
    assert scene.observation_left_ms() == 0
    scene.age_all(SESSION_MS + 1_000)  # the clock of a file system may be late by some ms
    assert scene.lead() == []
    assert scene.observation_left_ms() > 0
    assert [scene.wait_ms(SESSION_MS), scene.pass_ms(1)] == [[], [("C1", "session")]]
    assert len(scene.files.list("beats")) == 1, "one note is enough"


def test_old_beats_of_dead_processes_are_deleted(scene: Terms) -> None:
    scene.join("C1")
    scene.beat("dead", "C0")
    scene.beat("abc", "C1")
    scene.age_all(ABANDONED_AFTER_MS + 1_000)
    scene.lead()
    scene.beat("abc", "C1")
    scene.pass_ms(1_000)
    scene.pass_ms(1_000)
    assert [name.split("-")[0] for name in scene.files.list("beats")] == ["beats/abc"]


# -- how long a run of `step` waits -------------------------------------------------------------------------


def test_run_does_not_wait_for_members_that_seem_alive(scene: Terms) -> None:
    assert scene.observation_left_ms() == 0
    scene.join("C1")
    scene.beat_as("a", "C1")
    assert scene.observation_left_ms() > 0
    scene.lead()
    assert scene.observation_left_ms() == 0


def test_run_waits_until_a_seemingly_dead_member_is_confirmed(scene: Terms) -> None:
    scene.join("C1", "C2")
    scene.beat_as("a", "C1", age_ms=HOUR_MS)
    scene.beat_as("b", "C2", age_ms=HOUR_MS)
    scene.lead()
    assert CONFIRM_MS <= scene.observation_left_ms() <= CONFIRM_MS + 100
    scene.beat_as("b", "C2")
    assert scene.wait_ms(CONFIRM_MS) == []
    assert scene.observation_left_ms() > 0
    assert scene.pass_ms(1) == [("C1", "session")]


# -- processes of this machine ------------------------------------------------------------------------------

needs_identity = pytest.mark.skipif(not read_own_identity(), reason="this system does not name processes")


def start_and_end_process() -> str:
    """Return the identity of a process of this machine that has ended."""
    code = "from lakemq.engine.namespace.process import read_own_identity; print(read_own_identity())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.extended
@needs_identity
@pytest.mark.slow
def test_a_member_whose_process_has_ended_is_lost_at_once_unless_it_is_static(scene: Terms) -> None:
    identity = start_and_end_process()
    scene.join("C1", process=identity)
    scene.join("C2", process=read_own_identity())
    scene.mq.ask(JoinGroup("g", "C3", ["t"], instance_id="host", session_timeout_ms=SESSION_MS, process=identity))
    for beats_id, member in ("b", "C2"), ("c", "C3"):
        scene.beat_as(beats_id, member)
    assert scene.lead() == [("C1", "process")]


@needs_identity
def test_process_with_a_reused_id_counts_as_gone(scene: Terms) -> None:
    """Another process may have the same id by now. Of other machines and process namespaces nothing is known."""
    own_identity = read_own_identity()
    assert not is_process_gone(own_identity, own_identity)
    *machine, pid, started = own_identity.split("/")
    assert is_process_gone("/".join([*machine, pid, str(int(started) + 1)]), own_identity)
    for number in range(3):
        other = [*machine, pid, "1"]
        other[number] += "x"
        assert not is_process_gone("/".join(other), own_identity)
    assert not is_process_gone(own_identity, "")


def test_beats_of_older_and_newer_versions_are_read() -> None:
    """Processes of two versions may work in one namespace."""
    assert decode_beat(msgspec.msgpack.encode([["g", "m", 3]])) == [MemberBeat("g", "m", 3)]
    longer = msgspec.msgpack.encode([["g", "m", 3, 200, "of a later version"]])
    assert decode_beat(longer) == [MemberBeat("g", "m", 3, 200)]
