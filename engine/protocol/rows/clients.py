"""The table `clients`."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from lakemq.tables.specs.clients import CLIENTS, ClientRow

from ..codec.results import decode_results
from ..values.clients import Answered, Client, ClientRemoved
from ..values.state import State
from .steps import Project, Restore, Steps, iterate_records


def _project_clients(state: State, steps: Steps) -> pa.Table:
    changed = {
        record.client_id: step.decided_at_ms
        for step, record in iterate_records(steps)
        if isinstance(record, Answered | ClientRemoved)
    }
    return CLIENTS.table(_build_row(state, client_id, changed[client_id]) for client_id in sorted(changed))


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
