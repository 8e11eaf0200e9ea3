"""Sequencers with a wrong clock. No file that is needed is deleted."""

import pytest
from faults.ageing import HOUR_S
from faults.checks import assert_whole, check_all
from faults.processes import QUICK, TOPIC, Processes, Publishing, terminate
from faults.shims import ShiftedClock
from targets import nightly_but

AHEAD_MS = 2 * HOUR_S * 1000


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", nightly_but([AHEAD_MS], [AHEAD_MS, -AHEAD_MS]), ids=["ahead", "behind"])
def test_leader_whose_clock_is_hours_off_deletes_no_live_file(ahead_ms: int, family: Processes, clock: ShiftedClock):
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
