"""Stretches of offsets as the column `ranges` of a table."""

from __future__ import annotations

from typing import Any

from ..values.queues.stretches import DeathReason, DeliveryStatus, Stretch


def stretch_to_row(stretch: Stretch) -> dict[str, Any]:
    return {
        "first_offset": stretch.first,
        "record_count": stretch.length,
        "state": stretch.status.value,
        "deliveries": stretch.deliveries,
        "not_before_ms": stretch.not_before_ms,
        "reason": None if stretch.reason is None else stretch.reason.value,
        "error": stretch.error or None,
    }


def row_to_stretch(row: dict[str, Any]) -> Stretch:
    status, reason = DeliveryStatus(row["state"]), row["reason"] and DeathReason(row["reason"])
    offsets = row["first_offset"], row["record_count"]
    return Stretch(*offsets, status, row["deliveries"], row["not_before_ms"], reason, row["error"] or "")
