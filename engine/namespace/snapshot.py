"""All tables of a namespace as of one watermark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow.compute as pc

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow
from lakemq.tables.storage.catalog import Moment
from lakemq.tables.storage.store import Store, TableHandle

from ..protocol.errors import StepTooOld
from .load import BEGINNING, read_watermark

_ATTEMPTS = 20


class Snapshot(NamedTuple):
    """From none of the tables was anything of the watermark's step forgotten; rows of later steps may be in them."""

    watermark: WatermarkRow
    handles: Mapping[str, TableHandle]


def take_snapshot(store: Store, as_of: int | datetime | None = None) -> Snapshot:
    """The newest one, or the newest at or before a step or a time. Raises StepTooOld, TableDamaged.

    The segments are opened before the messages: every row that a segment points at is then there.
    """
    for _ in range(_ATTEMPTS):
        watermark = read_watermark(store)
        handles = {spec.name: store.open(spec) for spec in sorted(TABLES, key=lambda spec: spec is MESSAGES)}
        floor = max(handle.floor() for handle in handles.values())
        if as_of is not None:
            return Snapshot(_earlier(handles[WATERMARKS.name], as_of, max(floor, watermark.floor)), handles)
        if floor <= watermark.step:
            return Snapshot(watermark, handles)
    raise StepTooOld("The tables are merged faster than they can be opened.")


def moment_of(store: Store, as_of: int | datetime | None) -> Moment | None:
    """What Spark's catalog is of at a step or a time; None: of what is there. Raises StepTooOld, TableDamaged."""
    if as_of is None:
        return None
    watermark, handles = take_snapshot(store, as_of)
    return Moment(watermark.step, {name: handle.version for name, handle in handles.items()})


def _earlier(watermarks: TableHandle, as_of: int | datetime, floor: int) -> WatermarkRow:
    """The newest watermark then. Below the floor a merge has forgotten what keys were."""
    if isinstance(as_of, datetime):
        at_ms = int(as_of.timestamp() * 1000)
        rows = watermarks.read().filter(pc.field("decided_at_ms") <= at_ms)
    else:
        rows = watermarks.read(step=(None, as_of))
    newest = rows.sort_by("step").slice(max(0, rows.num_rows - 1))
    found: WatermarkRow = WATERMARKS.rows(newest)[0] if newest.num_rows else BEGINNING
    if found.step < floor:
        raise StepTooOld("What the tables held then was merged.", found=str(as_of), expected=f"step {floor} or later")
    return found
