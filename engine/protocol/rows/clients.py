"""The tables `clients`, `producers` and `watermarks`."""

import msgspec
import pyarrow as pa

from lakemq.tables.specs.journal import WATERMARKS, WatermarkRow
from lakemq.tables.specs.transactions import CLIENTS, PRODUCERS, ClientRow, ProducerRow

from ..codec.letter import decode_results
from ..values.base import copy_fields, find_shared_fields
from ..values.clients import Client
from ..values.journal import StepBatch
from ..values.producers import ProducerState, UnitAppended
from ..values.state import State
from ..values.waiting import Delays
from . import Project, Restore, map_change_times

# The table `watermarks`: the leader, and the next numbers.


_WATERMARK_FIELDS = find_shared_fields(WatermarkRow, State)


def build_watermark(state: State, floor: int) -> pa.Table:
    """Return the row that declares all tables complete up to the state's step. Whoever writes it adds the versions."""
    row = WatermarkRow(
        floor=floor,
        decided_at_ms=state.now_ms,
        delay_pointer_ms=state.delays.pointer_ms,
        versions=[],
        **copy_fields(state, _WATERMARK_FIELDS),
    )
    return WATERMARKS.table([row])


def create_state(watermark: WatermarkRow) -> State:
    """Return a state with nothing but the watermark."""
    return State(
        now_ms=watermark.decided_at_ms,
        delays=Delays(watermark.delay_pointer_ms),
        **copy_fields(watermark, _WATERMARK_FIELDS),
    )


# The table `clients`.


def _project_clients(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.clients, steps)
    return CLIENTS.table(_build_client_row(state, client_id, at_ms) for client_id, at_ms in changed.items())


def _build_client_row(state: State, client_id: str, at_ms: int) -> ClientRow:
    client = state.clients.get(client_id)
    return ClientRow(
        step=state.step,
        client_id=client_id,
        number=client.number if client else 0,
        results=msgspec.json.encode(client.results).decode() if client else "[]",
        seen_at_ms=client.seen_at_ms if client else at_ms,
        removed=client is None,
    )


def _restore_clients(state: State, rows: pa.Table) -> None:
    for row in CLIENTS.rows(rows):
        state.clients[row.client_id] = Client(row.number, decode_results(row.results), row.seen_at_ms)


# The table `producers`.


def _project_producers(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.producers, steps)
    return PRODUCERS.table(_build_producer_row(state, producer_id, at_ms) for producer_id, at_ms in changed.items())


def _build_producer_row(state: State, producer_id: int, at_ms: int) -> ProducerRow:
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


def _restore_producers(state: State, rows: pa.Table) -> None:
    for row in PRODUCERS.rows(rows):
        producer = ProducerState(row.producer_epoch, row.seen_at_ms)
        for stored in row.units:
            unit = UnitAppended(**stored)
            key = (unit.topic_id, unit.partition)
            producer.units[key] = (*producer.units.get(key, ()), unit)
        state.producers[row.producer_id] = producer


PROJECT: Project = {CLIENTS.name: _project_clients, PRODUCERS.name: _project_producers}

RESTORE: Restore = {CLIENTS.name: _restore_clients, PRODUCERS.name: _restore_producers}
