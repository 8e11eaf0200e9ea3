"""A process that reads or puts steps finds that unread steps were removed. This is different from steps that do not
exist yet.
"""

import os
import signal
import threading

import pytest
from faults.ageing import newest_step, wait_for_step_removal
from faults.checks import check_all
from faults.messages import Acknowledged
from faults.processes import (
    PATIENCE_S,
    QUICK,
    TOPIC,
    Processes,
    Publishing,
    is_stopped,
    terminate,
    until,
    until_it_stands_by,
)
from faults.shims import ShiftedClock

import lakemq

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

AHEAD_MS = 120_000
"""How far the clocks of leaders are ahead of the store's: longer than steps are kept."""


class Following:
    """Connections that live for long: one that looks now and then, and one that tails all the time."""

    def __init__(self, path: str) -> None:
        self._mq, self._tailing = (lakemq.connect(path) for _ in range(2))
        self._consumer = self._mq.consumer("g", assign=[TOPIC])
        self._polled: set[tuple[int, int, str]] = set()
        self._tailed: set[tuple[int, int, str]] = set()
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for table in self._tailing.tail(TOPIC, start="earliest"):
                self._tailed |= rows_of(table)
        except Exception as error:
            self._error = error

    def look(self, acknowledged: list[Acknowledged]) -> None:
        """Check that every reader sees all messages that were acknowledged before."""
        sent = {(message.partition, message.offset, message.value) for message in acknowledged}
        ends = self._mq.end_offsets(TOPIC)
        missed = {message for message in sent if message[1] >= ends[message[0]]}
        assert not missed, f"{len(missed)} acknowledged messages are behind the end {ends}: {sorted(missed)[:3]}"
        while batch := self._consumer.poll():
            self._polled |= rows_of(batch.to_arrow())
        assert sent <= self._polled, f"the consumer missed {len(sent - self._polled)}"
        until(lambda: sent <= self._tailed or self._error is not None, f"tail of {len(sent)} messages")
        assert self._error is None, self._error

    def close(self) -> None:
        self._mq.close()
        self._tailing.close()


def rows_of(table: object) -> set[tuple[int, int, str]]:
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))  # type: ignore[index]
    return {(partition, offset, value.decode()) for partition, offset, value in zip(*columns, strict=True)}


def test_long_lived_reader_misses_no_message_when_steps_are_removed(family: Processes, clock: ShiftedClock):
    """The leaders' clocks are ahead, so that new files look old to them."""
    clock.shift(AHEAD_MS)
    with Publishing(family.path, "p", QUICK) as publishing:
        serving = family.serve(environ=clock.environ)
        publishing.wait_for(10)
        following = Following(family.path)
        for _ in range(2):
            following.look(list(publishing.acknowledged))
            publishing.wait_for(20)
            terminate(serving)
            serving = family.serve(environ=clock.environ)  # a leader cleans up early in its term
            publishing.wait_for(40)
        step = newest_step(family.path)
        following.look(list(publishing.acknowledged))
        wait_for_step_removal(family.path, step)
        following.look(list(publishing.acknowledged))
    terminate(serving)
    following.close()
    check_all(family.path, TOPIC, publishing.acknowledged)


def test_standby_stopped_for_longer_than_steps_are_kept_leads(family: Processes):
    with Publishing(family.path, "p", QUICK) as publishing:
        leading = family.serve()
        publishing.wait_for(5)
        standby = family.serve()
        until_it_stands_by(family, standby.pid)
        os.kill(standby.pid, signal.SIGSTOP)
        step = newest_step(family.path)
        publishing.wait_for(30)
        wait_for_step_removal(family.path, step + 1)
        leading.kill()
        leading.wait(PATIENCE_S)
        os.kill(standby.pid, signal.SIGCONT)
        publishing.wait_for(5)
    terminate(standby)
    check_all(family.path, TOPIC, publishing.acknowledged)


@pytest.mark.parametrize("point", ["sequencer.letters_taken:40", "sequencer.step_put:20"])
def test_leader_stopped_until_its_step_was_put_and_removed_by_others_stands_by(point: str, family: Processes):
    """A free name proves nothing. The leader finds that others have led, and has given no wrong answer."""
    with Publishing(family.path, "p", QUICK) as publishing:
        stopped = family.serve(stop_at=point)
        until(lambda: is_stopped(stopped.pid), "stop")
        step = newest_step(family.path)
        successor = family.serve()
        publishing.wait_for(30)
        wait_for_step_removal(family.path, step + 1)
        os.kill(stopped.pid, signal.SIGCONT)
        until_it_stands_by(family, stopped.pid)
        publishing.wait_for(20)
        assert successor.poll() is None
        terminate(successor)
        publishing.wait_for(5)
    terminate(stopped)
    check_all(family.path, TOPIC, publishing.acknowledged)
