"""The table `clients`."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from lakemq.tables.specs.clients import CLIENTS, ClientRow

from ..codec.results import decode_results
from ..values.clients import Client
from ..values.journal import StepBatch
from ..values.state import State
from .steps import Project, Restore, map_change_times


def _project_clients(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.clients, steps)
    return CLIENTS.table(_build_row(state, client_id, at_ms) for client_id, at_ms in changed.items())


def _build_row(state: State, client_id: str, at_ms: int) -> ClientRow:
    client = state.clients.get(client_id)
    return ClientRow(
        step=state.step,
        client_id=client_id,
        number=client.number if client else 0,
        results=msgspec.json.encode(client.results).decode() if client else "[]",
        seen_at_ms=client.seen_at_ms if client else at_ms,
        removed=client is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in CLIENTS.rows(rows):
        state.clients[row.client_id] = Client(row.number, decode_results(row.results), row.seen_at_ms)


PROJECT: Project = {CLIENTS.name: _project_clients}
RESTORE: Restore = {CLIENTS.name: _restore}
