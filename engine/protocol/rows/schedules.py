"""The table `schedules`."""

import pyarrow as pa

from lakemq.tables.specs.messages import SCHEDULES, ScheduleRow

from ..values.base import copy_fields, find_shared_fields
from ..values.journal import StepBatch
from ..values.schedules import MissedPolicy, Schedule, ScheduleStatus
from ..values.state import State
from . import Project, Restore, list_changed

_FIELDS = find_shared_fields(ScheduleRow, Schedule, "missed", "headers")


def _project_schedules(state: State, steps: StepBatch) -> pa.Table:
    return SCHEDULES.table(_build_row(state, name) for name in list_changed(state.changes.schedules, steps))


def _build_row(state: State, name: str) -> ScheduleRow:
    schedule = state.schedules.get(name)
    shown = schedule or Schedule(name, 0, "", "", "", MissedPolicy.ONCE, None, None, [], 0)
    return ScheduleRow(
        step=state.step,
        missed=shown.missed.value,
        headers=[{"key": header, "value": value} for header, value in shown.headers],
        state=shown.status.value,
        removed=schedule is None,
        **copy_fields(shown, _FIELDS),
    )


def _restore_schedules(state: State, rows: pa.Table) -> None:
    for row in SCHEDULES.rows(rows):
        schedule = Schedule(
            missed=MissedPolicy(row.missed),
            headers=[(header["key"], header["value"]) for header in row.headers],
            status=ScheduleStatus(row.state),
            **copy_fields(row, _FIELDS),
        )
        state.put_schedule(schedule)


PROJECT: Project = {SCHEDULES.name: _project_schedules}
RESTORE: Restore = {SCHEDULES.name: _restore_schedules}
