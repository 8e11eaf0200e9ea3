"""Reading how delayed ranges ended: from the table, and from the steps after it."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.changelog import select_newest
from lakemq.tables.storage.delta.store import Store

from ...namespace.loading.damage import report_damage
from ...namespace.loading.step_reader import follow_from_watermark
from ...namespace.processes.clock import Clock
from ...namespace.store_errors import store_errors
from ...protocol.errors import ReadOvertaken
from ...protocol.rows.delays import EndedRange, find_ended_ranges, read_ended_range
from ...protocol.values.delayed.delays import RangeKey

_ATTEMPTS = 20


def read_ended_ranges(store: Store, clock: Clock, keys: Collection[RangeKey]) -> dict[RangeKey, EndedRange]:
    """Return the ranges among `keys` that have ended within delay.history.ms. Raises StorageError."""
    for attempt in range(_ATTEMPTS):
        with store_errors(), report_damage(store):
            try:
                ended = _read_at_watermark(store, clock, keys)
            except StepsGone:
                ended = None
            except FileNotFoundError:  # merged, and removed meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise
                ended = None
        if ended is not None:
            return ended
        clock.sleep(5 * attempt)
    raise ReadOvertaken()


def _read_at_watermark(store: Store, clock: Clock, keys: Collection[RangeKey]) -> dict[RangeKey, EndedRange]:
    """Return the ended ranges. Raises StepsGone: steps were removed meanwhile."""
    _, reader = follow_from_watermark(store, clock.steady_ms)
    # the steps first: the table, opened later, may hold more of them, but never less
    steps = reader.read()
    ids = {key.file_id for key in keys}
    is_in_files = pc.field("file_id").isin(pa.array(sorted(ids), pa.int64()))
    handle = store.open(DELAYED)
    rows = select_newest(handle.read(where=is_in_files, file_id=(min(ids), max(ids))), DELAYED.keys)
    stored = [read_ended_range(row) for row in DELAYED.rows(rows.filter(pc.field("removed")))]
    ended = {range_.end.published.key: range_ for range_ in (*stored, *find_ended_ranges(steps))}
    return {key: ended[key] for key in keys if key in ended}
