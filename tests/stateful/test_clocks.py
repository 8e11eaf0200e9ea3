"""Clocks that are wrong, and processes that were stopped for long: nothing is ended early, kept for ever, or missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from clocks import ManualClock
from stateful.player import Player
from stateful.world import EXPIRY_INTERVAL_MS, LEASE_MS

from lakemq.engine.client.fetch.reader import Reader
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from lakemq.engine.sequencer.sequencer import MAX_BACKLOG_MS
from lakemq.engine.sequencer.step_time import StepTime
from lakemq.tables.storage.step_objects import LOOK_MS, list_steps

pytestmark = pytest.mark.slow

HOURS_MS = 2 * 3_600_000
TIMEOUT_MS = 2_000


@dataclass
class WrongClock:
    """A machine's clock that is off; what passes, passes as everywhere."""

    right: ManualClock
    off_ms: int

    def now_ms(self) -> int:
        return self.right.now_ms() + self.off_ms

    def steady_ms(self) -> int:
        return self.right.steady_ms()

    def sleep(self, ms: float) -> None:
        self.right.sleep(ms)


@pytest.fixture
def play() -> Iterator[Player]:
    player = Player()
    yield player
    player.world.close()


def open_transaction(play: Player) -> TransactionRef:
    """Of offsets, with a timeout of two seconds."""
    client = play.world.new_id()
    play.world.put(client, 1, [InitProducer("etl", TIMEOUT_MS)], [])
    play.step()
    (done,) = play.world.take_reply(client, 1) or []
    assert isinstance(done, ProducerDone)
    ref = TransactionRef("etl", done.producer_id, done.producer_epoch)
    play.ask(CommitOffsets("g", [OffsetCommit("t", 0, 0)], ref))
    play.step()
    assert play.leader.state.ongoing == {"etl"}
    return ref


def is_open(play: Player) -> bool:
    return "etl" in play.leader.state.ongoing


# -- the time of the steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("off_ms", [-HOURS_MS, HOURS_MS])
def test_the_time_of_the_steps_does_not_follow_a_leaders_clock(play: Player, off_ms: int) -> None:
    play.step()
    play.new_leader(WrongClock(play.world.clock, off_ms))
    play.world.clock.sleep(700)
    play.publish()
    play.step()
    assert play.leader.state.now_ms == play.world.clock.now_ms()


def test_the_time_of_the_steps_never_goes_back_and_comes_right_again() -> None:
    """The store's time was two hours ahead, and was set."""
    clock = ManualClock()
    last_ms = clock.now_ms() + HOURS_MS
    time = StepTime(clock, clock.now_ms(), last_ms)
    assert time.now_ms() == last_ms
    clock.sleep(1000)
    assert time.now_ms() == last_ms + 500
    clock.sleep(3 * HOURS_MS)
    assert time.now_ms() == clock.now_ms()


def test_what_passed_while_nobody_led_has_passed(play: Player) -> None:
    play.step()
    play.world.clock.sleep(HOURS_MS)
    play.new_leader()
    play.publish()
    play.step()
    assert play.leader.state.now_ms == play.world.clock.now_ms()


# -- silence and open transactions --------------------------------------------------------------------------


@pytest.mark.parametrize("off_ms", [-HOURS_MS, 0, HOURS_MS])
def test_a_change_of_leader_ends_no_transaction_early_and_gives_it_one_timeout_more_at_most(
    play: Player, off_ms: int
) -> None:
    open_transaction(play)
    play.world.clock.sleep(TIMEOUT_MS - LEASE_MS - 2)
    play.new_leader(WrongClock(play.world.clock, off_ms))
    play.step()
    assert is_open(play)
    play.world.clock.sleep(TIMEOUT_MS - 1)
    play.step()
    assert is_open(play)
    play.world.clock.sleep(2)
    play.step()
    assert not is_open(play)


def test_a_clock_that_is_set_in_the_middle_of_a_term_ends_nothing(play: Player) -> None:
    clock = WrongClock(play.world.clock, 0)
    play.new_leader(clock)
    open_transaction(play)
    clock.off_ms = HOURS_MS
    play.step()
    assert is_open(play)
    clock.off_ms = -HOURS_MS
    play.world.clock.sleep(TIMEOUT_MS + 1)
    play.step()
    assert not is_open(play)


def test_a_backlog_keeps_a_transaction_from_its_timeout_for_a_while_only(play: Player) -> None:
    """Its commit may be among the letters that were not looked at; those that were put in time come first."""
    open_transaction(play)
    play.world.reconfigure({"step.max.letters": 1})
    play.new_leader()
    play.world.clock.sleep(TIMEOUT_MS + 1)
    for passed_ms in range(TIMEOUT_MS + 1, MAX_BACKLOG_MS + 2000, 1000):
        play.publish()
        play.publish()
        play.step()
        assert is_open(play) == (passed_ms < MAX_BACKLOG_MS)
        play.world.clock.sleep(1000)


def test_a_transaction_that_began_under_the_same_id_has_its_whole_time(play: Player) -> None:
    open_transaction(play)
    play.world.clock.sleep(TIMEOUT_MS - 10)
    open_transaction(play)
    play.world.clock.sleep(100)
    play.step()
    assert is_open(play)


@pytest.mark.parametrize("off_ms", [-HOURS_MS, HOURS_MS])
def test_an_active_client_is_not_ended_by_a_leader_whose_clock_is_off(play: Player, off_ms: int) -> None:
    play.world.put("active", 1, [InitProducer()], [])
    play.step()
    play.new_leader(WrongClock(play.world.clock, off_ms))
    play.step()
    play.world.clock.sleep(EXPIRY_INTERVAL_MS + 1)
    play.step()
    play.world.put("active", 2, [InitProducer()], [])
    play.step()
    assert play.world.take_reply("active", 2)
    play.new_leader()
    play.step()
    assert play.leader.state.clients["active"].number == 2


# -- those who were stopped ---------------------------------------------------------------------------------


def go_on_past(play: Player, step: int) -> None:
    """For minutes: tables are written, and old steps removed, until the one after this step is gone."""
    files = play.world.namespace.files
    while list_steps(files)[0] <= step + 1:
        for _ in range(2):
            play.publish()
            play.step()
            play.background.run()
            play.world.clock.sleep(30_000)


def test_a_standby_that_missed_the_log_leads_when_its_turn_comes(play: Player) -> None:
    standby, background = play.world.sequencer()
    assert not standby.try_lead()
    at = standby._standby.step
    assert at is not None
    go_on_past(play, at)
    play.background.alive = False  # killed
    assert not standby.try_lead()
    play.world.clock.sleep(LEASE_MS + 1)
    assert standby.try_lead()
    play.leader, play.background = standby, background
    play.publish()
    play.step()
    play.settle()


def test_a_reader_that_missed_the_log_sees_all_that_was_acknowledged(play: Player) -> None:
    play.publish()
    play.step()
    clock = SuspendedClock(play.world.clock)
    reader = Reader(play.world.namespace.store, clock)
    assert play.world.logs(reader, reader.refresh().topic("t"))[0] == play.all_published()
    go_on_past(play, play.leader.state.step)
    clock.steady_now_ms += LOOK_MS
    assert play.world.logs(reader, reader.refresh().topic("t"))[0] == play.all_published()


@dataclass
class SuspendedClock:
    """The clocks of a virtual machine that was suspended: its steady clock stood still meanwhile."""

    right: ManualClock
    steady_now_ms: int = 0

    def now_ms(self) -> int:
        return self.right.now_ms()

    def steady_ms(self) -> int:
        return self.steady_now_ms

    def sleep(self, ms: float) -> None:
        self.right.sleep(ms)
