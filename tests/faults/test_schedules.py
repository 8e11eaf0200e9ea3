"""Sequencers die while schedules publish. Each occurrence comes once, and none early (docs/semantics.md R1)."""

import pytest
from faults.checks import check_projections
from faults.processes import QUICK, Processes, assert_killed, settings_that_reach, terminate, until
from targets import extended_but, nightly_but

import lakemq

POINTS = {
    "sequencer.rows_written": 6,
    "sequencer.step_put": 9,
    "sequencer.step_landed": 9,
    "projector.rows_written": 3,
    "projector.messages_registered": 3,
    "projector.table_appended": 9,
    "projector.watermark_written": 3,
}
IN_CI = ("sequencer.step_put", "sequencer.rows_written", "projector.table_appended")
EACH_MS = 100
"""Schedules publish ten times a second here, because a minute is long."""


@pytest.mark.parametrize("point", extended_but(["sequencer.step_put"], nightly_but(IN_CI, POINTS)))
def test_each_occurrence_comes_once_although_its_sequencer_is_killed(point: str, family: Processes) -> None:
    """If the successor comes late, its first message stands for the occurrences that were missed."""
    with lakemq.connect(family.path, config={**QUICK, "request.timeout.ms": 30_000}) as mq:
        dying = family.serve(f"{point}:{POINTS[point]}", recurs_ms=EACH_MS, **settings_that_reach(point))
        mq.topics.create("recurring", 1)  # so that the first one leads
        successor = family.serve(recurs_ms=EACH_MS)
        mq.schedules.create("often", "recurring", cron="* * * * *", value="v")
        assert_killed(dying)
        count = sum(mq.end_offsets("recurring").values())
        until(lambda: sum(mq.end_offsets("recurring").values()) > count + 10, "occurrences of the successor")
        terminate(successor)
    with lakemq.connect(family.path) as mq:
        mq.step_until_idle(wait_ms=20_000)
        messages = list(mq.fetch("recurring"))
        times = [int(dict(message.headers)["schedule.time"]) for message in messages]
        assert times == sorted(set(times))
        late_ms = [
            round(message.timestamp.timestamp() * 1000) - at for message, at in zip(messages, times, strict=True)
        ]
        assert min(late_ms) >= 0
        (schedule,) = mq.schedules.list()
        assert schedule.last_at is not None
        assert schedule.last_at.timestamp() * 1000 == pytest.approx(times[-1])
        check_projections(mq)
