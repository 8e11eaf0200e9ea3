"""Deadlines of a leader with lines: they pass, and never before a letter that was sent in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import HastyClock
from unit.served import CONFIG
from unit.test_direct_line import letter_of, until

import lakemq
from lakemq.engine.sequencer.sequencer import EXPIRY_INTERVAL_MS, Sequencer

EXPIRATION_MS = 60_000


class SteppedLeader:
    """A sequencer with lines, which does one step when it is told to, and knows the client `c1`."""

    def __init__(self, mq: lakemq.Connection) -> None:
        self.clock = HastyClock()
        ids = iter(range(1, 1000)).__next__
        self.sequencer = Sequencer(mq.namespace, "leader", self.clock, ids, has_lines=True)
        assert self.sequencer.try_lead()
        term = self.sequencer._term
        assert term is not None
        assert term.lines is not None
        self.lines = term.lines
        self.sequencer.step()  # a term begins with a look for what has expired
        mq.namespace.mailbox.put("c1", 1, letter_of("c1", 1, "t"), 0)
        self.sequencer.step()
        assert self.knows_client

    @property
    def knows_client(self) -> bool:
        return "c1" in self.sequencer.state.clients

    def wait_for_drain(self) -> None:
        until(lambda: self.lines._drained_at_ms is not None)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[SteppedLeader]:
    config = {**CONFIG, "client.expiration.ms": EXPIRATION_MS}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq:
        leader = SteppedLeader(mq)
        yield leader
        leader.sequencer.resign()


@pytest.mark.parametrize("pause_ms", [0, 5_000], ids=["short steps", "steps that take seconds"])
def test_expired_client_is_forgotten_after_a_drain(leader: SteppedLeader, pause_ms: int) -> None:
    leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    leader.sequencer.step()
    assert leader.knows_client, "a letter may have come that is not read yet"
    leader.wait_for_drain()
    leader.clock.ahead_ms += pause_ms
    leader.sequencer.step()
    assert not leader.knows_client


def test_client_that_was_not_overdue_at_the_drain_does_not_expire(leader: SteppedLeader) -> None:
    """The leader's process may have been stopped since. A letter may have come meanwhile, in time."""
    leader.lines.request_drain()
    leader.wait_for_drain()
    leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    leader.sequencer.step()
    assert leader.knows_client
    leader.clock.ahead_ms += EXPIRY_INTERVAL_MS
    leader.lines.request_drain()
    leader.wait_for_drain()
    leader.sequencer.step()
    assert not leader.knows_client
