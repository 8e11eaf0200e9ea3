"""Two sequencers on one namespace: one leads, and the other one gives no wrong answers."""

import itertools
import os
import signal

import pytest
from decided import read_terms
from faults.checks import check_all
from faults.processes import QUICK, TOPIC, Processes, Publishing, is_stopped, settings_that_reach, terminate, until
from targets import extended_but, nightly_but

import lakemq


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
    with lakemq.connect(family.path) as mq:
        terms = read_terms(mq.namespace.store)
    assert [epoch for epoch, _ in terms] == list(range(1, len(terms) + 1))
    pids = [int(name.split("-")[-3]) for _, name in terms]
    assert [pid for pid, _ in itertools.groupby(pids[1:])] == [stopped.pid, successor.pid, stopped.pid]
    check_all(family.path, TOPIC, publishing.acknowledged)
