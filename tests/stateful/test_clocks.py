"""Wrong clocks, and processes that were stopped for long: nothing ends early, stays too long, or is missed."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from clocks import ManualClock
from stateful.player import Player
from stateful.world import LEASE_MS

from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from lakemq.engine.sequencer.sequencer import MAX_BACKLOG_MS
from lakemq.engine.sequencer.term import StepTime
from lakemq.tables.storage.coordination.step_objects import LOOK_MS, list_steps

pytestmark = pytest.mark.slow

HOURS_MS = 2 * 3_600_000
TIMEOUT_MS = 2_000


@dataclass
class WrongClock:
    """A machine's clock that is off. Time passes on it as everywhere."""

    right: ManualClock
    off_ms: int

    def now_ms(self) -> int:
        return self.right.now_ms() + self.off_ms

    def steady_ms(self) -> int:
        return self.right.steady_ms()

    def sleep(self, ms: float) -> None:
        self.right.sleep(ms)


@pytest.fixture
def player() -> Iterator[Player]:
    player = Player()
    yield player
    player.world.close()


def open_transaction(player: Player) -> TransactionRef:
    """Open a transaction with offsets, and a timeout of two seconds."""
    client = player.world.new_id()
    player.world.put(client, 1, [InitProducer("etl", TIMEOUT_MS)], [])
    player.step()
    (producer,) = player.world.take_answer(client, 1) or []
    assert isinstance(producer, ProducerDone)
    ref = TransactionRef("etl", producer.producer_id, producer.producer_epoch)
    player.ask(CommitOffsets("g", [OffsetCommit("t", 0, 0)], ref))
    player.step()
    assert player.leader.state.ongoing == {"etl"}
    return ref


def is_open(player: Player) -> bool:
    return "etl" in player.leader.state.ongoing


# -- the time of the steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("off_ms", [-HOURS_MS, HOURS_MS])
def test_the_time_of_the_steps_does_not_follow_a_leaders_clock(player: Player, off_ms: int) -> None:
    player.step()
    player.new_leader(WrongClock(player.world.clock, off_ms))
    player.world.clock.sleep(700)
    player.publish()
    player.step()
    assert player.leader.state.now_ms == player.world.clock.now_ms()


def test_the_time_of_the_steps_never_goes_back_and_comes_right_again() -> None:
    """The store's clock was two hours ahead, and was corrected."""
    clock = ManualClock()
    last_ms = clock.now_ms() + HOURS_MS
    time = StepTime(clock, clock.now_ms(), last_ms)
    assert time.now_ms() == last_ms
    clock.sleep(1000)
    assert time.now_ms() == last_ms + 500
    clock.sleep(3 * HOURS_MS)
    assert time.now_ms() == clock.now_ms()


# -- silence and open transactions --------------------------------------------------------------------------


@pytest.mark.parametrize("off_ms", [-HOURS_MS, 0, HOURS_MS])
def test_change_of_leader_gives_a_transaction_at_most_one_timeout_more(player: Player, off_ms: int) -> None:
    open_transaction(player)
    player.world.clock.sleep(TIMEOUT_MS - LEASE_MS - 2)
    player.new_leader(WrongClock(player.world.clock, off_ms))
    player.step()
    assert is_open(player)
    player.world.clock.sleep(TIMEOUT_MS - 1)
    player.step()
    assert is_open(player)
    player.world.clock.sleep(2)
    player.step()
    assert not is_open(player)


def test_clock_set_during_a_term_times_out_no_transaction(player: Player) -> None:
    clock = WrongClock(player.world.clock, 0)
    player.new_leader(clock)
    open_transaction(player)
    clock.off_ms = HOURS_MS
    player.step()
    assert is_open(player)
    clock.off_ms = -HOURS_MS
    player.world.clock.sleep(TIMEOUT_MS + 1)
    player.step()
    assert not is_open(player)


def test_backlog_delays_the_timeout_of_a_transaction_up_to_a_bound(player: Player) -> None:
    """Its commit may be among the letters that were not read yet. Letters that were put in time come first."""
    open_transaction(player)
    player.world.reconfigure({"step.max.letters": 1})
    player.new_leader()
    player.world.clock.sleep(TIMEOUT_MS + 1)
    for passed_ms in range(TIMEOUT_MS + 1, MAX_BACKLOG_MS + 2000, 1000):
        player.publish()
        player.publish()
        player.step()
        assert is_open(player) == (passed_ms < MAX_BACKLOG_MS)
        player.world.clock.sleep(1000)


# -- processes that were stopped ----------------------------------------------------------------------------


def go_on_past(player: Player, step: int) -> None:
    """Go on for minutes: tables are written and old steps removed, until the step after this one is gone."""
    files = player.world.namespace.files
    while list_steps(files)[0] <= step + 1:
        for _ in range(2):
            player.publish()
            player.step()
            player.background.run()
            player.world.clock.sleep(30_000)


def test_a_reader_that_missed_the_log_sees_all_that_was_acknowledged(player: Player) -> None:
    player.publish()
    player.step()
    clock = SuspendedClock(player.world.clock)
    reader = Reader(player.world.namespace.store, clock)
    assert player.world.logs(reader, reader.refresh().topic("t"))[0] == player.all_published()
    go_on_past(player, player.leader.state.step)
    clock.steady_now_ms += LOOK_MS
    assert player.world.logs(reader, reader.refresh().topic("t"))[0] == player.all_published()


@dataclass
class SuspendedClock(WrongClock):
    """The clocks of a virtual machine that was suspended. Its steady clock stood still meanwhile."""

    off_ms: int = 0
    steady_now_ms: int = 0

    def steady_ms(self) -> int:
        return self.steady_now_ms
