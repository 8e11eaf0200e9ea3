"""What became of ranges of which nothing waits any more: the table tells it, and the journal's tail beyond that."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.store import Store

from ...namespace.clock import Clock
from ...namespace.load import damage_told, read_watermark
from ...namespace.store_errors import store_errors
from ...protocol.codec.journal import steps_after
from ...protocol.errors import UnknownServerError
from ...protocol.rows.delays import RangeEnded, ended_ranges, ended_row
from ...protocol.values.delays import RangeKey

_ATTEMPTS = 20
_WITHOUT_ROWS = [name for name in JOURNAL.stored_schema.names if name != "rows"]


def fates_of(store: Store, clock: Clock, keys: Collection[RangeKey]) -> dict[RangeKey, RangeEnded]:
    """Of those of the ranges that have ended, and not longer ago than delay.history.ms. Raises StorageError."""
    for attempt in range(_ATTEMPTS):
        with store_errors(), damage_told(store):
            try:
                found = _found(store, keys)
            except FileNotFoundError:  # merged, and removed meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise
                found = None
        if found is not None:
            return found
        clock.sleep(5 * attempt)
    raise UnknownServerError("The namespace changes faster than it can be read.")


def _found(store: Store, keys: Collection[RangeKey]) -> dict[RangeKey, RangeEnded] | None:
    """None where housekeeping moved on meanwhile."""
    watermark = read_watermark(store)
    ids = {key.file_id for key in keys}
    mine = pc.field("file_id").isin(pa.array(sorted(ids), pa.int64()))
    handle = store.open(DELAYED)
    rows = newest(handle.read(where=mine, file_id=(min(ids), max(ids))), DELAYED.keys)
    told = [ended_row(row) for row in DELAYED.rows(rows.filter(pc.field("removed")))]
    tail = store.open(JOURNAL).read(_WITHOUT_ROWS, step=(watermark.step + 1, None))
    steps = steps_after(tail, watermark.step)
    if steps is None:
        return None
    # a tail that was projected and cut off meanwhile looks like none at all
    if not steps and read_watermark(store).step != watermark.step:
        return None
    ended = {one.end.told.key: one for one in (*told, *ended_ranges(steps))}
    return {key: ended[key] for key in keys if key in ended}
