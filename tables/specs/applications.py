"""`applications`: the versions by which a repeat of a whole batch is known."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import BOOL, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class ApplicationRow:
    step: int = column(INT64, "The step that decided it.")
    txn_app_id: str = column(TEXT, "Application, as in Delta's txnAppId.")
    target: str = column(TEXT, "Destination it publishes to.")
    version: int = column(INT64, "The last txn_version published; one not above it is not published again.")
    seen_at_ms: int = column(INT64, "When.")
    removed: bool = column(BOOL, "Forgotten.")


APPLICATIONS = TableSpec(
    name="applications",
    row=ApplicationRow,
    shape="changelog",
    keys=("txn_app_id", "target"),
    comment="Applications that publish numbered batches, each batch once.",
)
