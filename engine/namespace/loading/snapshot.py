"""Open all tables of a namespace as of one watermark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow
from lakemq.tables.storage.delta.catalog import Moment
from lakemq.tables.storage.delta.store import Store, TableHandle

from ...protocol.errors import InvalidRequest, StepTooOld
from ...protocol.values.journal import Step
from .load import BEGINNING, check_versions, read_watermark
from .waiting_steps import drop_last_renewals, read_steps_after_watermark

_ATTEMPTS = 20


class Snapshot(NamedTuple):
    """All tables at a watermark. No row up to its step is missing; rows of later steps may be there."""

    watermark: WatermarkRow
    handles: Mapping[str, TableHandle]


def take_snapshot(store: Store, as_of: int | datetime | None = None) -> Snapshot:
    """Open the newest snapshot, the first one that holds a step, or the newest one at or before a time.

    Steps are projected in passes, and only the end of a pass can be read. So a snapshot that holds a step may also hold
    the steps that were projected with it.

    Segments are opened before messages, so that every row that a segment points at is there.

    Raises:
        StepTooOld: merges have removed older rows of keys since.
        InvalidRequest: the tables do not hold the step yet.
        TableDamaged: a table lacks rows that LakeMQ wrote.
    """
    # read before the tables are opened: a step that is not in `later` then, and was decided, is in the tables
    later = read_steps_after_watermark(store) if isinstance(as_of, int) else []
    for _ in range(_ATTEMPTS):
        watermark = read_watermark(store)
        handles = {spec.name: store.open(spec) for spec in sorted(TABLES, key=lambda spec: spec is MESSAGES)}
        check_versions(store, watermark, handles)
        floor = max(handle.floor() for handle in handles.values())
        if floor > watermark.step:
            continue
        if as_of is None:
            return Snapshot(watermark, handles)
        # later watermarks do not count: tables that were opened before them lack their rows
        watermarks = handles[WATERMARKS.name].read(step=(None, watermark.step)).sort_by("step")
        if isinstance(as_of, datetime):
            chosen = _find_watermark_at_time(watermarks, as_of)
        else:
            chosen = _find_watermark_with_step(watermarks, watermark, as_of, later)
        floor = max(floor, watermark.floor)
        if chosen.step < floor:  # merges have removed older rows of keys
            raise StepTooOld(
                "What the tables held then was merged.", found=str(as_of), expected=f"step {floor} or later"
            )
        return Snapshot(chosen, handles)
    raise StepTooOld("The tables are merged faster than they can be opened.")


def find_moment(store: Store, as_of: int | datetime | None) -> Moment | None:
    """Return the table versions for Spark's catalog at a step or time. None: the newest.

    Raises StepTooOld, InvalidRequest, TableDamaged.
    """
    if as_of is None:
        return None
    watermark, handles = take_snapshot(store, as_of)
    return Moment(watermark.step, {name: handle.version for name, handle in handles.items()})


def _find_watermark_at_time(watermarks: pa.Table, time: datetime) -> WatermarkRow:
    """Return the newest watermark at or before a time. watermarks: by step."""
    rows = watermarks.filter(pc.field("decided_at_ms") <= int(time.timestamp() * 1000))
    newest: list[WatermarkRow] = WATERMARKS.rows(rows.slice(max(0, rows.num_rows - 1)))
    return newest[0] if newest else BEGINNING


def _find_watermark_with_step(
    watermarks: pa.Table, newest: WatermarkRow, step: int, later: Sequence[Step]
) -> WatermarkRow:
    """Return the first watermark at or after a step. later: the steps that the tables may not hold."""
    if step == BEGINNING.step:
        return BEGINNING
    holders: list[WatermarkRow] = WATERMARKS.rows(watermarks.filter(pc.field("step") >= step).slice(0, 1))
    if holders:
        return holders[0]
    # a leader projects renewals of its lease late, and they change no row
    waiting = drop_last_renewals([decided for decided in later if newest.step < decided.step <= step])
    if waiting or step > max([newest.step, *(decided.step for decided in later)]):
        raise InvalidRequest(
            f"The tables do not hold step {step} yet. Try again, or start `lakemq serve` if none runs.",
            found=f"step {step}",
            expected=f"a step up to {newest.step}",
        )
    return newest
