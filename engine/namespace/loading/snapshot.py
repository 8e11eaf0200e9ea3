"""Open all tables of a namespace as of one watermark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow.compute as pc

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow
from lakemq.tables.storage.delta.catalog import Moment
from lakemq.tables.storage.delta.store import Store, TableHandle

from ...protocol.errors import StepTooOld
from .load import BEGINNING, read_watermark

_ATTEMPTS = 20


class Snapshot(NamedTuple):
    """All tables at a watermark. No row up to its step is missing; rows of later steps may be there."""

    watermark: WatermarkRow
    handles: Mapping[str, TableHandle]


def take_snapshot(store: Store, as_of: int | datetime | None = None) -> Snapshot:
    """Open the newest snapshot, or the newest at or before a step or a time. Raises StepTooOld, TableDamaged.

    Segments are opened before messages, so that every row that a segment points at is there.
    """
    for _ in range(_ATTEMPTS):
        watermark = read_watermark(store)
        handles = {spec.name: store.open(spec) for spec in sorted(TABLES, key=lambda spec: spec is MESSAGES)}
        floor = max(handle.floor() for handle in handles.values())
        if as_of is not None:
            return Snapshot(_find_watermark(handles[WATERMARKS.name], as_of, max(floor, watermark.floor)), handles)
        if floor <= watermark.step:
            return Snapshot(watermark, handles)
    raise StepTooOld("The tables are merged faster than they can be opened.")


def find_moment(store: Store, as_of: int | datetime | None) -> Moment | None:
    """Return the table versions for Spark's catalog at a step or time. None: the newest.

    Raises StepTooOld, TableDamaged.
    """
    if as_of is None:
        return None
    watermark, handles = take_snapshot(store, as_of)
    return Moment(watermark.step, {name: handle.version for name, handle in handles.items()})


def _find_watermark(watermarks: TableHandle, as_of: int | datetime, floor: int) -> WatermarkRow:
    """Return the newest watermark at a step or time. Below the floor, merges have removed keys' older rows."""
    if isinstance(as_of, datetime):
        at_ms = int(as_of.timestamp() * 1000)
        rows = watermarks.read().filter(pc.field("decided_at_ms") <= at_ms)
    else:
        rows = watermarks.read(step=(None, as_of))
    newest = rows.sort_by("step").slice(max(0, rows.num_rows - 1))
    watermark: WatermarkRow = WATERMARKS.rows(newest)[0] if newest.num_rows else BEGINNING
    if watermark.step < floor:
        raise StepTooOld("What the tables held then was merged.", found=str(as_of), expected=f"step {floor} or later")
    return watermark
