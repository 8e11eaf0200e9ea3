"""Sequencers with a wrong clock, or an old view of the live files. No file that is needed is deleted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults.ageing import HOUR_S, age_data, age_log, newest_version, wait_for_log_removal
from faults.checks import assert_whole, check_all
from faults.processes import (
    MERGING_POINTS,
    QUICK,
    TOPIC,
    Processes,
    Publishing,
    is_stopped,
    settings_that_reach,
    terminate,
    until,
    until_it_stands_by,
)
from faults.shims import ShiftedClock
from targets import nightly_but

from lakemq.engine.maintenance.data_file_removal import TABLES_LOOKED_AT
from lakemq.tables.specs.messages import MESSAGES
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


@pytest.mark.nightly
@pytest.mark.slow
def test_the_clock_of_a_leader_jumps_by_hours(family: Processes, clock: ShiftedClock):
    """The clock jumps forth and back while the leader leads."""
    with Publishing(family.path, "p", QUICK) as publishing:
        serving = family.serve(environ=clock.environ)
        for ahead_s in (2 * HOUR_S, -2 * HOUR_S, 0):
            publishing.wait_for(30)
            assert_whole(family.path)
            clock.shift(ahead_s * 1000)
        publishing.wait_for(30)
    terminate(serving)
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


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("point", nightly_but(["housekeeping.segments_swapped"], MERGING_POINTS))
def test_a_leader_stopped_in_the_middle_of_a_merge_goes_on_hours_later(point: str, family: Processes):
    """Another leader has merged and removed files meanwhile. The next log that the stopped one commits to has
    changed.
    """
    messages = Path(family.path, MESSAGES.name)
    with Publishing(family.path, "p", QUICK) as publishing:
        stopped = family.serve(stop_at=point, **settings_that_reach(point))
        until(lambda: is_stopped(stopped.pid), "stop")
        begun_at = newest_version(messages)
        successor = family.serve(**settings_that_reach(point))
        publishing.wait_for(20)
        wait_for_log_removal(messages, begun_at)
        for name in TABLES_LOOKED_AT:
            age_log(Path(family.path, name))
        os.kill(stopped.pid, signal.SIGCONT)
        until_it_stands_by(family, stopped.pid)
        assert_whole(family.path)
        publishing.wait_for(20)
        terminate(successor)
        publishing.wait_for(10)
    terminate(stopped)
    check_all(family.path, TOPIC, publishing.acknowledged)
