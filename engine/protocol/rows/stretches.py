"""What became of messages, as the column `ranges` of a table: stretches of offsets, in order."""

from __future__ import annotations

from typing import Any

from ..values.deliveries import DeathReason, DeliveryStatus, Stretch


def stored(one: Stretch) -> dict[str, Any]:
    return {
        "first_offset": one.first,
        "record_count": one.length,
        "state": one.status.value,
        "deliveries": one.deliveries,
        "not_before_ms": one.not_before_ms,
        "reason": None if one.reason is None else one.reason.value,
        "error": one.error or None,
    }


def read(one: dict[str, Any]) -> Stretch:
    status, reason = DeliveryStatus(one["state"]), one["reason"] and DeathReason(one["reason"])
    offsets = one["first_offset"], one["record_count"]
    return Stretch(*offsets, status, one["deliveries"], one["not_before_ms"], reason, one["error"] or "")
