"""`clients`: the clients of the mailbox, with their last answers."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import BOOL, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class ClientRow:
    step: int = column(INT64, "The step that decided it.")
    client_id: str = column(TEXT, "Client: one connection of one process.")
    number: int = column(INT64, "Number of its last letter.")
    results: str = column(TEXT, "The answer to that letter as JSON, to repeat it if the client asks again.")
    seen_at_ms: int = column(INT64, "Time of its last letter.")
    removed: bool = column(BOOL, "Whether it ended, or was silent for too long.")


CLIENTS = TableSpec(
    name="clients",
    row=ClientRow,
    shape="changelog",
    keys=("client_id",),
    comment="Clients of the mailbox, with their last answers.",
)
