"""`clients`: whose letters were decided, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import BOOL, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class ClientRow:
    step: int = column(INT64, "The step that decided it.")
    client_id: str = column(TEXT, "Client: one connection of one process.")
    number: int = column(INT64, "Its last letter.")
    results: str = column(TEXT, "What that letter was answered, as JSON, for a repeat of the answer.")
    seen_at_ms: int = column(INT64, "When.")
    removed: bool = column(BOOL, "Ended, or silent for too long.")


CLIENTS = TableSpec(
    name="clients",
    row=ClientRow,
    shape="changelog",
    keys=("client_id",),
    comment="Clients of the mailbox, with their last answers.",
)
