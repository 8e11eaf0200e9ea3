"""Sessions under clocks that jump, machines that sleep and leaders that change: only dead members are thought dead."""

import pytest
from clocks import ManualClock
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from protocol_harness import AtOnce, Harness
from stateful.world import TimedFiles

from lakemq.engine.protocol.codec.beat import MemberBeat, encode_beat
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.engine.sequencer.attendance import MAX_READ_GAP_MS, READ_INTERVAL_MS, Attendance, OverdueMembers
from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes
from lakemq.tables.storage.object_stores.objects import Data

pytestmark = pytest.mark.slow

SESSION_MS, INTERVAL_MS = 30_000, 3_000
CONFIRM_MS = MAX_READ_GAP_MS + 2 * INTERVAL_MS
HOUR_MS = 3_600_000
TICK_MS = 500


class StampedFiles(TimedFiles):
    """A store that stamps an object with its own time when it is put."""

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        identity = super().put(name, data, durable=durable)
        self._times_ms[name] = self.time_ms()
        return identity


class Simulation:
    """A member that beats and a leader that looks. Time passes in ticks, for both or for one of them."""

    def __init__(self, folder: str) -> None:
        self.store_clock, self.clock, self.mq = ManualClock(), ManualClock(), Harness()
        self.files = StampedFiles(folder, self.store_clock)
        self.beats = Beats(self.files)
        self.mq.create("t")
        self.mq.ask(JoinGroup("g", "C1", ["t"], session_timeout_ms=SESSION_MS))
        self.number, self.next_beat_ms, self.next_look_ms = 0, self.clock.ms, self.clock.ms
        self.leader: Attendance | None = None
        self.lives = True
        self.beat()

    def beat(self) -> None:
        self.number += 1
        self.beats.put("a", self.number, encode_beat([MemberBeat("g", "C1", self.number, INTERVAL_MS)]))
        self.next_beat_ms = self.clock.ms + INTERVAL_MS

    def lead(self) -> None:
        self.leader = Attendance(self.beats, OverdueMembers(OverdueNotes(self.files), self.clock), self.clock, AtOnce())
        self.next_look_ms = self.clock.ms

    def pass_ms(self, ms: int, member_runs: bool = True, leader_runs: bool = True) -> list[str]:
        """Let time pass, and return the members that the leader finds silent meanwhile."""
        silent = []
        for _ in range(ms // TICK_MS):
            self.clock.ms += TICK_MS
            self.store_clock.ms += TICK_MS
            if self.lives and member_runs and self.clock.ms >= self.next_beat_ms:
                self.beat()
            if self.leader is not None and leader_runs and self.clock.ms >= self.next_look_ms:
                silent += self.leader.find_silent_members(self.mq.state) + self.leader.find_silent_members(
                    self.mq.state
                )
                self.next_look_ms = self.clock.ms + READ_INTERVAL_MS
        return [member.member_id for member in silent]

    def sleep(self, ms: int) -> None:
        """The machine of both sleeps."""
        self.clock.ms += ms
        self.store_clock.ms += ms


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("attendance"))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 2 * SESSION_MS)),
        st.tuples(st.just("new leader"), st.just(0)),
        st.tuples(st.just("no leader"), st.integers(1, 2 * HOUR_MS)),
        st.tuples(st.just("leader stops"), st.integers(1, 2 * SESSION_MS)),
        st.tuples(st.just("both sleep"), st.integers(1, HOUR_MS)),
        st.tuples(st.just("store clock jumps"), st.integers(-2 * HOUR_MS, 2 * HOUR_MS)),
        st.tuples(st.just("member pauses"), st.integers(1, CONFIRM_MS - INTERVAL_MS - 2 * READ_INTERVAL_MS)),
        # A leader that has seen a beat of its own term gives the member its whole session.
        st.tuples(st.just("member runs and pauses"), st.integers(1, SESSION_MS - INTERVAL_MS - 2 * READ_INTERVAL_MS)),
    ),
    max_size=8,
)


# A pause that follows a sleeping machine, or a jump of the store's clock, before the leader's first look.
@example([("new leader", 0), ("both sleep", 17_501), ("member pauses", 6_000)])
@example([("store clock jumps", 2 * HOUR_MS), ("new leader", 0), ("member pauses", 6_000)])
@given(events=EVENTS)
@examples(40)
def test_living_member_is_never_lost_and_dead_member_is_found(folder: str, events: list[tuple[str, int]]) -> None:
    files = StampedFiles(folder, ManualClock())
    files.delete(files.list("beats"))
    simulation = Simulation(folder)
    for event, ms in events:
        match event:
            case "run":
                assert simulation.pass_ms(ms) == []
            case "new leader":
                simulation.lead()
            case "no leader":
                simulation.leader = None
                simulation.sleep(ms)
                simulation.beat()  # the member went on beating
                simulation.lead()
            case "leader stops":
                assert simulation.pass_ms(ms, leader_runs=False) == []
            case "both sleep":
                simulation.sleep(ms)
            case "store clock jumps":
                simulation.store_clock.ms += ms
            case "member pauses":
                assert simulation.pass_ms(ms, member_runs=False) == []
                simulation.beat()
            case "member runs and pauses":
                assert simulation.pass_ms(2 * INTERVAL_MS + 2 * READ_INTERVAL_MS) == []
                assert simulation.pass_ms(ms, member_runs=False) == []
                simulation.beat()
    assert simulation.pass_ms(SESSION_MS) == []
    simulation.lives = False
    simulation.leader = None
    simulation.sleep(SESSION_MS)
    simulation.lead()
    assert simulation.pass_ms(CONFIRM_MS - READ_INTERVAL_MS) == []
    assert set(simulation.pass_ms(3 * READ_INTERVAL_MS)) == {"C1"}, "no whole session more"
