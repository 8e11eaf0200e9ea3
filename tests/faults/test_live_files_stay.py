"""Sequencers with a wrong clock, or an old view of the live files. No file that is needed is deleted."""

import os
import signal
from pathlib import Path

import pytest
from faults.ageing import HOUR_S, age_data, age_log
from faults.checks import assert_whole, check_all
from faults.processes import QUICK, TOPIC, Processes, Publishing, is_stopped, terminate, until, until_it_stands_by
from faults.shims import ShiftedClock
from targets import nightly_but

from lakemq.tables.specs.registry import TABLES

AHEAD_MS = 2 * HOUR_S * 1000


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", nightly_but([AHEAD_MS], [AHEAD_MS, -AHEAD_MS]), ids=["ahead", "behind"])
def test_the_clock_of_a_leader_is_hours_off(ahead_ms: int, family: Processes, clock: ShiftedClock):
    """A leader keeps tables that earlier leaders have merged. The next one finds them whole."""
    with Publishing(family.path, "p", QUICK) as publishing:
        before = family.serve()
        publishing.wait_for(40)
        terminate(before)
        clock.shift(ahead_ms)
        off = family.serve(environ=clock.environ)
        publishing.wait_for(40)
        assert_whole(family.path)
        publishing.wait_for(40)
        terminate(off)
        after = family.serve()
        publishing.wait_for(10)
    terminate(after)
    check_all(family.path, TOPIC, publishing.acknowledged)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("table", nightly_but(["segments"], ["journal", "segments", "producers"]))
def test_a_leader_stopped_before_it_sweeps_goes_on_hours_later(table: str, family: Processes):
    """Another leader has written files meanwhile. The stopped one does not know them; they look old, and are live."""
    with Publishing(family.path, "p", QUICK) as publishing:
        stopped = family.serve(stop_at=f"housekeeping.checkpointed:{table}/_delta_log/_last_checkpoint")
        until(lambda: is_stopped(stopped.pid), "stop")
        successor = family.serve()
        publishing.wait_for(80)
        for spec in TABLES:
            age_data(Path(family.path, spec.name))
            age_log(Path(family.path, spec.name))
        os.kill(stopped.pid, signal.SIGCONT)
        until_it_stands_by(family, stopped.pid)
        assert_whole(family.path)
        publishing.wait_for(20)
        terminate(successor)
        publishing.wait_for(10)
    terminate(stopped)
    check_all(family.path, TOPIC, publishing.acknowledged)
