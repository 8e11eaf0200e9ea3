"""The table `producers`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.producers import PRODUCERS, ProducerRow

from ..values.journal import StepBatch
from ..values.producers import ProducerState, UnitAppended
from ..values.state import State
from .steps import Project, Restore, map_change_times


def _project_producers(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.producers, steps)
    return PRODUCERS.table(_build_row(state, producer_id, at_ms) for producer_id, at_ms in changed.items())


def _build_row(state: State, producer_id: int, at_ms: int) -> ProducerRow:
    producer = state.producers.get(producer_id)
    units = [] if producer is None else [unit for units in producer.units.values() for unit in units]
    return ProducerRow(
        step=state.step,
        producer_id=producer_id,
        producer_epoch=producer.epoch if producer else 0,
        units=[{name: getattr(unit, name) for name in unit.__struct_fields__} for unit in units],
        seen_at_ms=producer.seen_at_ms if producer else at_ms,
        removed=producer is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in PRODUCERS.rows(rows):
        producer = ProducerState(row.producer_epoch, row.seen_at_ms)
        for stored in row.units:
            unit = UnitAppended(**stored)
            key = (unit.topic_id, unit.partition)
            producer.units[key] = (*producer.units.get(key, ()), unit)
        state.producers[row.producer_id] = producer


PROJECT: Project = {PRODUCERS.name: _project_producers}
RESTORE: Restore = {PRODUCERS.name: _restore}
