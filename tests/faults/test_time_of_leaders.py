"""Leaders whose wall clocks differ by hours. Silence and open transactions are measured by the time that passes."""

import time
from pathlib import Path
from typing import Any

import pytest
from faults.processes import PATIENCE_S, QUICK, TOPIC, Processes, stands_by, until
from faults.shims import ShiftedClock
from targets import nightly_but

import lakemq
from lakemq.engine.client.producer.producer import TransactionalProducer

pytestmark = [pytest.mark.slow, pytest.mark.extended]

HOUR_MS = 3_600_000
AHEAD_MS, BEHIND_MS = 2 * HOUR_MS, -2 * HOUR_MS
SILENCE = {f"{name}.expiration.ms": HOUR_MS for name in ("client", "producer.id", "transactional.id")}
SEQUENCER = {**SILENCE, "request.gap.ms": 2000}
CLIENT = {**QUICK, "request.timeout.ms": 10_000}
"""Its timeout is longer than the wait of a letter after a gap, so that it sees the refusal."""
TIMEOUT_MS = 4000
"""transaction.timeout.ms: longer than it takes to fail over."""

FAIL_OVERS = nightly_but([(AHEAD_MS, 0)], [(0, AHEAD_MS), (AHEAD_MS, 0), (0, BEHIND_MS)])
"""The clocks of the leader before, and of the leader after."""
BOTH_AHEAD = pytest.param(AHEAD_MS, AHEAD_MS, marks=pytest.mark.nightly)


class Leaders:
    """Run one sequencer after the other, each with a clock of its own."""

    def __init__(self, family: Processes, library: Path, folder: Path) -> None:
        self._family, self._library, self._folder = family, library, folder
        self._leading: Any = None
        self._following: Any = None
        self._count = 0

    def stand_by(self, ahead_ms: int) -> None:
        """Start a sequencer that stands by, with a clock that is ahead. The first sequencer leads."""
        self._count += 1
        clock = ShiftedClock(self._library, self._folder, f"clock{self._count}")
        clock.shift(ahead_ms)
        self._following = self._family.serve(environ=clock.environ, **SEQUENCER)
        if self._leading is None:
            self._leading = self._following
        else:
            until(lambda: stands_by(self._family, self._following.pid), "standby")

    def change(self) -> None:
        """Kill the leader. The standby takes over when the lease has run out."""
        self._leading.kill()
        self._leading.wait(PATIENCE_S)
        self._leading = self._following

    def follow(self, ahead_ms: int) -> None:
        self.stand_by(ahead_ms)
        if self._leading is not self._following:
            self.change()

    def settle(self) -> None:
        """Wait until the leader has decided something, and with it the work that is due at the start of its term."""
        with lakemq.connect(self._family.path, config=CLIENT) as mq:
            mq.topics.create(f"settled-{self._count}")
            mq.topics.create(f"settled-again-{self._count}")


@pytest.fixture
def leaders(family: Processes, clock_shim: Path, tmp_path: Path) -> Leaders:
    return Leaders(family, clock_shim, tmp_path)


def send(producer: TransactionalProducer, value: str) -> None:
    producer.send(TOPIC, value, key=value)
    producer.flush()


@pytest.mark.parametrize(("before_ms", "after_ms"), FAIL_OVERS)
def test_a_transaction_is_aborted_when_its_timeout_has_passed(
    before_ms: int, after_ms: int, family: Processes, leaders: Leaders
):
    """A timeout ends no transaction early, and at most a timeout later for each change of leaders."""
    leaders.follow(before_ms)
    leaders.stand_by(after_ms)
    with lakemq.connect(family.path, config=CLIENT) as mq:
        producer = mq.producer("p", transaction_timeout_ms=TIMEOUT_MS, linger_ms=0)
        producer.begin_transaction()
        start_s = time.monotonic()
        send(producer, "open")
        leaders.change()
        until(lambda: mq.transactions.describe("p").state != "Ongoing", "abort")
        assert time.monotonic() - start_s > TIMEOUT_MS / 1000 - 0.1, "aborted early"
        assert mq.transactions.describe("p").state == "CompleteAbort"
        until(lambda: mq.end_offsets(TOPIC) == mq.end_offsets(TOPIC, "read_uncommitted"), "stable end")


@pytest.mark.parametrize(("before_ms", "after_ms"), [*FAIL_OVERS, BOTH_AHEAD])
def test_only_transactions_open_for_too_long_are_hanging(
    before_ms: int, after_ms: int, family: Processes, leaders: Leaders
):
    """A reader whose clock is right finds the transaction, even if the leader's clock is wrong."""
    leaders.follow(before_ms)
    leaders.settle()
    leaders.follow(after_ms)
    with lakemq.connect(family.path, config=CLIENT) as mq, mq.producer("p", linger_ms=0) as producer:
        producer.begin_transaction()
        send(producer, "open")

        def list_hanging(max_open_ms: int) -> list[str]:
            return [transaction.transactional_id for transaction in mq.transactions.find_hanging(max_open_ms)]

        assert list_hanging(900_000) == []
        until(lambda: list_hanging(1000) == ["p"], "transaction found hanging")
        assert list_hanging(900_000) == []
