"""The table `producers`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.producers import PRODUCERS, ProducerRow

from ..values.log import Produced
from ..values.producers import ProducerExpired, ProducerInitialized, ProducerState, UnitAppended
from ..values.state import State
from ..values.transactions import TransactionMoved
from .steps import Project, Restore, Steps, iterate_records


def _project_producers(state: State, steps: Steps) -> pa.Table:
    changed = {
        producer_id: step.decided_at_ms
        for step, record in iterate_records(steps)
        if isinstance(record, ProducerInitialized | ProducerExpired | Produced | TransactionMoved)
        for producer_id in (record.producer_id, getattr(record, "used_up", None))
        if producer_id is not None
    }
    return PRODUCERS.table(_build_row(state, producer_id, changed[producer_id]) for producer_id in sorted(changed))


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
