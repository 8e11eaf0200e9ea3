"""Releases of delayed messages, read from the steps, and counts of messages not released yet."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.loading.due_runs import read_due_runs
from ...namespace.loading.step_reader import StepReader, follow_from_watermark
from ...namespace.namespace import Namespace
from ...namespace.processes.clock import Clock
from ...namespace.store_errors import store_errors
from ...protocol.values.delayed.delays import DelayedRange, DelaysReleased, RangeKey, WaitingRange
from ...protocol.values.state import State
from ..topics import QueryNewestState


@dataclass(frozen=True)
class Release:
    """Messages that one step has released. late_ms: delay of the first one beyond its due time."""

    messages: int
    at_ms: int
    late_ms: int


class UnreleasedCounts(NamedTuple):
    """messages: due and readable; unreadable: due, in files that cannot be read."""

    messages: int
    unreadable: int


class UnreleasedCounter:
    """Counts messages that are not released yet. Not thread-safe."""

    def __init__(self, files: Files, query: QueryNewestState) -> None:
        """query: reads a state with all waiting ranges."""
        self._files, self._query = files, query
        self._due: dict[RangeKey, int | None] = {}
        """Ranges with several due times -> rows due by `_asked_ms`; None: the file cannot be read."""
        self._asked_ms = -1

    def count_unreleased(self, until_ms: int) -> UnreleasedCounts:
        """Count messages that are due by then and not released. Open transactions do not count."""
        if until_ms != self._asked_ms:
            self._due, self._asked_ms = {}, until_ms

        def find_due(state: State) -> list[WaitingRange]:
            ranges = state.delays.ranges
            return [
                copy(range_) for range_ in ranges if not range_.is_open and range_.published.first_due_ms <= until_ms
            ]

        due = self._query(find_due)
        self._read([range_.published for range_ in due if range_.published.first_due_ms < range_.published.last_due_ms])
        messages = unreadable = 0
        for range_ in due:
            count = self._due.get(range_.published.key, range_.published.record_count)
            if count is None:
                unreadable += range_.waiting_count
            elif count > range_.released_count:
                messages += range_.waiting_count - range_.count_waiting_after(count)
        return UnreleasedCounts(messages, unreadable)

    def _read(self, ranges: list[DelayedRange]) -> None:
        """Read the due times of ranges that have several."""
        unknown = [range_ for range_ in ranges if range_.key not in self._due]
        for range_, runs in zip(unknown, read_due_runs(self._files, unknown), strict=True):
            if isinstance(runs, Exception):
                self._due[range_.key] = None
            else:
                self._due[range_.key] = max((run.upto for run in runs if run.due_ms <= self._asked_ms), default=0)


class Releases(UnreleasedCounter):
    """Releases since this object was created. Not thread-safe."""

    def __init__(self, namespace: Namespace, clock: Clock, query: QueryNewestState) -> None:
        super().__init__(namespace.files, query)
        self._ns, self._clock = namespace, clock
        self._steps = self._follow_from_now()

    def _follow_from_now(self) -> StepReader:
        with store_errors():
            while True:
                _, steps = follow_from_watermark(self._ns.store, self._clock.steady_ms, self._ns.namespace_id)
                with suppress(StepsGone):
                    steps.read_heads()
                    return steps

    def read_new(self) -> list[Release]:
        """Return the releases since the last call, in order; none whose steps are gone."""
        releases: list[Release] = []
        try:
            with store_errors():
                for step in self._steps.read():
                    releases += [
                        Release(sum(entry.segments.column("record_count")), step.decided_at_ms, entry.record.late_ms)
                        for entry in step.entries
                        if isinstance(entry.record, DelaysReleased)
                    ]
        except StepsGone:
            self._steps = self._follow_from_now()
        return releases

    def next_due_ms(self) -> int | None:
        """Return when the next messages are due, or a time shortly before; None if none waits."""

        def find_next_ms(state: State) -> int | None:
            dues = (
                max(range_.published.first_due_ms, state.delays.pointer_ms)
                if range_.released_count
                else range_.published.first_due_ms
                for range_ in state.delays.ranges
            )
            return min(dues, default=None)

        return self._query(find_next_ms)
