"""What is released, as the journal tells it, and what is left to be: for who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.follower import Follower, LogGone

from ...namespace.due_times import read_runs
from ...namespace.namespace import Namespace
from ...namespace.store_errors import store_errors
from ...protocol.codec.journal import decode_steps
from ...protocol.values.delays import DelayedRange, DelaysReleased, RangeKey
from ...protocol.values.state import State


@dataclass(frozen=True)
class Release:
    """Messages that one step has released. late_ms: for how long the first of them was due."""

    messages: int
    at_ms: int
    late_ms: int


class Left(NamedTuple):
    """Messages; unreadable: others, in files that cannot be read."""

    messages: int
    unreadable: int


class Releases:
    """From when it is made on. Not thread-safe."""

    def __init__(self, namespace: Namespace, refresh: Callable[[], State]) -> None:
        """refresh: the state as of the newest step, all that waits included, which goes on."""
        self._ns, self._refresh = namespace, refresh
        self._journal = self._follower()
        self._due: dict[RangeKey, int | None] = {}
        """For the last time asked about, of ranges that are due at several times: how many rows; None: unreadable."""
        self._asked_ms = -1

    def _follower(self) -> Follower:
        store = self._ns.store
        with store_errors():
            return store.follow(store.open(JOURNAL), without=("rows",))

    def new(self) -> list[Release]:
        """Those since the last call, in order; but for what happened longer ago than the journal is kept."""
        found: list[Release] = []
        try:
            with store_errors():
                while (rows := self._journal.next()) is not None:
                    for step in decode_steps(rows):
                        found += [
                            Release(sum(one.segments.column("record_count")), step.decided_at_ms, one.record.late_ms)
                            for one in step.entries
                            if isinstance(one.record, DelaysReleased)
                        ]
        except LogGone:
            self._journal = self._follower()
        return found

    def next_due_ms(self) -> int | None:
        """When the next messages are due, or not long before that; None: none wait."""
        delays = self._refresh().delays
        dues = (
            max(one.told.first_due_ms, delays.pointer_ms) if one.released_count else one.told.first_due_ms
            for one in delays.ranges.values()
        )
        return min(dues, default=None)

    def left(self, until_ms: int) -> Left:
        """What is due by then, and not released. What belongs to an open transaction does not count."""
        if until_ms != self._asked_ms:
            self._due, self._asked_ms = {}, until_ms
        ranges = self._refresh().delays.ranges.values()
        due = [one for one in ranges if not one.is_open and one.told.first_due_ms <= until_ms]
        self._read([one.told for one in due if one.told.first_due_ms < one.told.last_due_ms])
        messages = unreadable = 0
        for one in due:
            count = self._due.get(one.told.key, one.told.record_count)
            if count is None:
                unreadable += one.left_count
            elif count > one.released_count:
                messages += one.left_count - one.left_after(count)
        return Left(messages, unreadable)

    def _read(self, ranges: list[DelayedRange]) -> None:
        """When the rows of those are due that are due at several times."""
        unknown = [one for one in ranges if one.key not in self._due]
        for one, runs in zip(unknown, read_runs(self._ns.files, unknown), strict=True):
            if isinstance(runs, Exception):
                self._due[one.key] = None
            else:
                self._due[one.key] = max((run.upto for run in runs if run.due_ms <= self._asked_ms), default=0)
