"""`applications`: the last published version per application, which identifies a repeated batch."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import BOOL, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class ApplicationRow:
    step: int = column(INT64, "The step that decided it.")
    txn_app_id: str = column(TEXT, "Application, as in Delta's txnAppId.")
    target: str = column(TEXT, "Destination it publishes to.")
    version: int = column(INT64, "The last published txn_version; a batch with this or a lower one is a repeat.")
    seen_at_ms: int = column(INT64, "Time of the last publish.")
    removed: bool = column(BOOL, "Whether the entry has expired.")


APPLICATIONS = TableSpec(
    name="applications",
    row=ApplicationRow,
    shape="changelog",
    keys=("txn_app_id", "target"),
    comment="Applications that publish numbered batches, each batch once.",
)
