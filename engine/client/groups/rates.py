"""How fast groups consume: compare what each is done with now and a minute ago.

Both are read from the table of committed offsets, in its newest version and in the one of a minute ago. Log entries
and replaced files of a table stay for minutes, so that the older version can still be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from lakemq.tables.specs.offsets import CONSUMER_OFFSETS
from lakemq.tables.storage.delta.changelog import select_newest
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle

from ...protocol.values.consuming.assignments import TopicIdPartition
from ...protocol.values.queues.stretches import DeliveryStatus

WINDOW_MS = 60_000

_COLUMNS = ("step", "group", "topic_id", "partition", "committed_offset", "ranges", "removed")

Done = dict[str, dict[TopicIdPartition, int]]
"""Group -> (topic_id, partition) -> number of offsets that the group is done with."""


@dataclass(frozen=True)
class Consumption:
    """The offsets that groups were done with at the beginning and at the end of a window of time."""

    window_ms: int
    before: Done
    after: Done

    def rate(self, group: str, starts: Mapping[TopicIdPartition, int]) -> float:
        """Return the offsets per second that the group got done with.

        A reset backwards counts as nothing.

        Args:
            group: name of the group.
            starts: (topic_id, partition) -> where the group began. It counts if nothing was committed there before.
        """
        before = self.before.get(group, {})
        done = sum(
            max(0, after - before.get(tp, starts.get(tp, after))) for tp, after in self.after.get(group, {}).items()
        )
        return round(1000 * done / self.window_ms, 3) if self.window_ms > 0 else 0.0


def read_consumption(store: Store, now_ms: int, window_ms: int = WINDOW_MS) -> Consumption | None:
    """Return what all groups have done in the window before `now_ms`, by the clock of the store.

    The window is shorter if the table is younger, or if its log does not reach back so far.

    Returns:
        None if the versions of the table were removed while they were read.
    """
    try:
        handle = store.open(CONSUMER_OFFSETS)
        version, since_ms = _find_version(handle, now_ms - window_ms)
        after = _read_done(handle)
        before = after if version == handle.version else _read_done(store.open_version(CONSUMER_OFFSETS, version))
    except (FileNotFoundError, NotATable):
        return None
    return Consumption(now_ms - since_ms, before, after)


def _find_version(handle: TableHandle, at_ms: int) -> tuple[int, int]:
    """Return the version that the table had at this time, and the time; else the first version, and its time."""
    low, high = -1, handle.version + 1
    # Bisect: version `low` was written by then, or was removed from the log since; `high` was written later.
    while high - low > 1:
        middle = (low + high) // 2
        written_ms = handle.log.modified_ms(middle)
        if written_ms is None or written_ms <= at_ms:
            low = middle
        else:
            high = middle
    if low >= 0 and handle.log.modified_ms(low) is not None:
        return low, at_ms
    written_ms = handle.log.modified_ms(high)
    if written_ms is None:
        raise FileNotFoundError(f"{handle.spec.name}: version {high} was removed")
    return high, written_ms


def _read_done(handle: TableHandle) -> Done:
    """Return how many offsets each group is done with: before its committed offset, or acknowledged behind it."""
    rows = select_newest(handle.read(_COLUMNS), CONSUMER_OFFSETS.keys)
    rows = rows.filter(pc.invert(rows.column("removed")))
    done: Done = {}
    for row in rows.select(["group", "topic_id", "partition", "committed_offset", "ranges"]).to_pylist():
        acknowledged = sum(
            stretch["record_count"]
            for stretch in row["ranges"] or ()
            if stretch["state"] == DeliveryStatus.ACKNOWLEDGED.value
        )
        group_done = done.setdefault(row["group"], {})
        group_done[row["topic_id"], row["partition"]] = row["committed_offset"] + acknowledged
    return done
