"""The table `schedules`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.messages import SCHEDULES, ScheduleRow

from ..values.journal import StepBatch
from ..values.schedules import MissedPolicy, Schedule, ScheduleStatus
from ..values.state import State
from . import Project, Restore, list_changed


def _project_schedules(state: State, steps: StepBatch) -> pa.Table:
    return SCHEDULES.table(_build_row(state, name) for name in list_changed(state.changes.schedules, steps))


def _build_row(state: State, name: str) -> ScheduleRow:
    schedule = state.schedules.get(name)
    shown = schedule or Schedule(name, 0, "", "", "", MissedPolicy.ONCE, None, None, [], 0)
    return ScheduleRow(
        step=state.step,
        name=name,
        topic_id=shown.topic_id,
        topic=shown.topic,
        cron=shown.cron,
        time_zone=shown.time_zone,
        missed=shown.missed.value,
        key=shown.key,
        value=shown.value,
        headers=[{"key": header, "value": value} for header, value in shown.headers],
        next_at_ms=shown.next_at_ms,
        last_at_ms=shown.last_at_ms,
        state=shown.status.value,
        reason=shown.reason,
        removed=schedule is None,
    )


def _restore_schedules(state: State, rows: pa.Table) -> None:
    for row in SCHEDULES.rows(rows):
        schedule = Schedule(
            row.name,
            row.topic_id,
            row.topic,
            row.cron,
            row.time_zone,
            MissedPolicy(row.missed),
            row.key,
            row.value,
            [(header["key"], header["value"]) for header in row.headers],
            row.next_at_ms,
            row.last_at_ms,
            ScheduleStatus(row.state),
            row.reason,
        )
        state.put_schedule(schedule)


PROJECT: Project = {SCHEDULES.name: _project_schedules}
RESTORE: Restore = {SCHEDULES.name: _restore_schedules}
