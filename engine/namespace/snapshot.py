"""All tables of a namespace as of one watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.watermarks import WatermarkRow
from lakemq.tables.storage.store import Store, TableHandle

from ..protocol.errors import StepTooOld
from .load import read_watermark

_ATTEMPTS = 20


class Snapshot(NamedTuple):
    """From none of the tables was anything of the watermark's step forgotten; rows of later steps may be in them."""

    watermark: WatermarkRow
    handles: Mapping[str, TableHandle]


def take_snapshot(store: Store) -> Snapshot:
    """The newest one. Raises StepTooOld, TableDamaged.

    The segments are opened before the messages: every row that a segment points at is then there.
    """
    for _ in range(_ATTEMPTS):
        watermark = read_watermark(store)
        handles = {spec.name: store.open(spec) for spec in sorted(TABLES, key=lambda spec: spec is MESSAGES)}
        if all(handle.floor() <= watermark.step for handle in handles.values()):
            return Snapshot(watermark, handles)
    raise StepTooOld("The tables are merged faster than they can be opened.")
