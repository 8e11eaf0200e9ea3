"""`clients`."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from lakemq.tables.specs.clients import CLIENTS, ClientRow

from ..codec.results import decode_results
from ..values.clients import Answered, Client, ClientRemoved
from ..values.state import State
from .steps import Project, Restore, Steps, records


def _clients(state: State, steps: Steps) -> pa.Table:
    changed = {
        record.client_id: step.decided_at_ms
        for step, record in records(steps)
        if isinstance(record, Answered | ClientRemoved)
    }
    return CLIENTS.table(_row(state, client_id, changed[client_id]) for client_id in sorted(changed))


def _row(state: State, client_id: str, at_ms: int) -> ClientRow:
    known = state.clients.get(client_id)
    return ClientRow(
        step=state.step,
        client_id=client_id,
        number=known.number if known else 0,
        results=msgspec.json.encode(known.results).decode() if known else "[]",
        seen_at_ms=known.seen_at_ms if known else at_ms,
        removed=known is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in CLIENTS.rows(rows):
        state.clients[row.client_id] = Client(row.number, decode_results(row.results), row.seen_at_ms)


PROJECT: Project = {CLIENTS.name: _clients}
RESTORE: Restore = {CLIENTS.name: _restore}
