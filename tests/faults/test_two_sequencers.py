"""Two sequencers on one namespace: one leads, and the other one gives no wrong answers."""

import itertools
import os
import signal

import pytest
from decided import read_steps
from faults.checks import check_all
from faults.processes import QUICK, TOPIC, Processes, Publishing, is_stopped, settings_that_reach, terminate, until
from protocol_harness import letter_bytes
from targets import extended_but, nightly_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.data_file import new_file_id
from lakemq.engine.protocol.codec.letter import decode_answer
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.values.clients import LeaderElected, Letter
from lakemq.engine.protocol.values.topics import CreateTopic
from lakemq.engine.sequencer.sequencer import Sequencer


def leaders(mq: Connection) -> list[tuple[int, str]]:
    """Return epoch and name of each term, in order. Steps that renew or end a term are left out."""
    steps = read_steps(mq.namespace.store)
    elections = [entry.record for step in steps for entry in step.entries if isinstance(entry.record, LeaderElected)]
    terms = [(record.epoch, record.leader) for record in elections if record.leader]
    return [term for term, _ in itertools.groupby(terms)]


def check_terms(path: str) -> list[tuple[int, str]]:
    """Check that each epoch has one leader, and that epochs have no gap."""
    with lakemq.connect(path) as mq:
        terms = leaders(mq)
    assert [epoch for epoch, _ in terms] == list(range(1, len(terms) + 1))
    return terms


class Rival:
    """A second sequencer that takes over, and decides waiting letters, just when the first one reaches a point."""

    def __init__(self, mq: Connection, point: str) -> None:
        self._point, self.sequencer = point, sequencer_of(mq, "rival")
        self.armed, self.letters = False, -1

    def reached(self, point: str) -> None:
        if point == self._point and self.armed:
            self.armed = False
            until(self.sequencer.try_lead, "lease")
            self.letters = self.sequencer.step().letters


def sequencer_of(mq: Connection, name: str, rival: Rival | None = None) -> Sequencer:
    reached = rival.reached if rival else lambda point: None
    return Sequencer(mq.namespace, name, SystemClock(), new_file_id, reached)


@pytest.mark.parametrize(
    "point", extended_but(["sequencer.step_landed"], ["sequencer.letters_taken", "sequencer.step_landed"])
)
def test_leader_that_loses_a_step_gives_no_wrong_answer(point: str, family: Processes):
    """Both decide the same letter. One step lands, and its answer is the one that stays."""
    with lakemq.connect(family.path, config=QUICK) as mq:
        mailbox, now_ms = mq.namespace.mailbox, SystemClock().now_ms()
        rival = Rival(mq, point)
        first = sequencer_of(mq, "first", rival)
        assert first.try_lead()
        rival.armed = True
        mailbox.put("c", 1, letter_bytes(Letter("c", 1, [CreateTopic("made-once", 3)], now_ms)), now_ms)
        with pytest.raises(NotLeader):  # at the latest by the sign of life that is due before it answers
            first.step()
        assert rival.letters == (1 if point == "sequencer.letters_taken" else 0), "decided once, by one of the two"
        assert not first.leads
        assert first.try_lead() is False
        answer = mailbox.poll_answer("c", 1)
        assert answer is not None
        (result,) = decode_answer(answer).results
        assert result.partitions == 3
        assert mailbox.list_waiting(10) == []
        assert [t.topic for t in mq.topics.list()] == ["made-once", TOPIC]
        rival.sequencer.resign()
        first.resign()
    assert [name for _, name in check_terms(family.path)][-2:] == ["first", "rival"]
    check_all(family.path, TOPIC, [])


@pytest.mark.parametrize(
    "stop_at",
    extended_but(
        ["sequencer.step_put:8"],
        nightly_but(
            ["sequencer.step_put:8", "projector.table_appended:6"],
            [
                "sequencer.letters_taken:30",
                "sequencer.rows_written:6",
                "sequencer.step_put:8",
                "projector.rows_written:4",
                "sequencer.step_landed:8",
                "projector.table_appended:6",
                "housekeeping.merged_file_written:2",
            ],
        ),
    ),
)
def test_sequencer_stopped_for_longer_than_its_lease_stands_by(stop_at: str, family: Processes):
    """The sequencer goes on amid a step or a projection, long after another one leads. Then it stands by."""
    with Publishing(family.path, "p", QUICK) as publishing:
        stopped = family.serve(stop_at=stop_at, **settings_that_reach(stop_at))
        until(lambda: is_stopped(stopped.pid), "stop")
        successor = family.serve()
        publishing.wait_for(10)  # several leases' worth of steps, projections and merges
        os.kill(stopped.pid, signal.SIGCONT)
        publishing.wait_for(8)
        assert (stopped.poll(), successor.poll()) == (None, None)
        with lakemq.connect(family.path) as mq:
            assert f"-{successor.pid}-" in mq.state().leader
        terminate(successor)
        publishing.wait_for(5)  # the stopped one leads again
    terminate(stopped)
    pids = [int(name.split("-")[-3]) for _, name in check_terms(family.path)]
    assert [pid for pid, _ in itertools.groupby(pids[1:])] == [stopped.pid, successor.pid, stopped.pid]
    check_all(family.path, TOPIC, publishing.acknowledged)
