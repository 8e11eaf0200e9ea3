"""A consumer of assigned partitions: it reads from where its group is, and says how far it has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ..clock import Clock
from ..fetch.fetched import Fetched
from ..fetch.plan import Bounds, Isolation
from ..protocol.errors import (
    IllegalState,
    InvalidRequest,
    NoOffsetForPartition,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ..protocol.requests import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched
from ..requester import Requester
from .batch import ConsumerBatch
from .shares import shares

Place = tuple[str, int]
"""Topic and partition."""

Reset = Literal["earliest", "latest", "none"]

_UNSTABLE_WAIT_MS = 20


class Consumer:
    """Reads the partitions it was assigned. Thread-safe; close it, or use it as a context manager.

    A position is the next offset to read. It begins where the group committed last; where it has committed nothing, or
    what it wanted is deleted, at `auto_offset_reset`.
    """

    def __init__(
        self,
        requester: Requester,
        bounds: Callable[[Iterable[str], Isolation], Mapping[Place, Bounds]],
        fetch: Callable[..., Fetched],
        clock: Clock,
        group: str,
        assign: Sequence[Place],
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        default_timeout_ms: int = 60_000,
    ) -> None:
        """bounds: of the partitions of some topics, as of now; default_timeout_ms: how long to wait for offsets that an
        open transaction holds back. Raises UnknownTopicOrPartition, InvalidRequest.
        """
        if auto_offset_reset not in ("earliest", "latest", "none"):
            raise InvalidRequest(
                "Unknown auto_offset_reset.", found=auto_offset_reset, expected="earliest, latest or none"
            )
        if not assign:
            raise InvalidRequest("A consumer without partitions.", expected="topics, or assign")
        self._requester, self._topic_bounds, self._fetch, self._clock = requester, bounds, fetch, clock
        self.group, self._reset, self._isolation = group, auto_offset_reset, isolation
        self._timeout_ms = default_timeout_ms
        self._lock = threading.RLock()
        self._positions: dict[Place, int | None] = dict.fromkeys(assign)
        """The one that was read longest ago comes first."""
        self._closed = False
        self._bounds()

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """The next messages, at most `max_records`, evenly from all partitions; positions move past them.

        timeout_ms: how long to wait for the first one. With auto_offset_reset "none" raises
        NoOffsetForPartition, OffsetOutOfRange.
        """
        if max_records < 1:
            raise InvalidRequest("max_records is not positive.", found=max_records, expected="at least 1")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        passed: dict[Place, int] = {}
        while True:
            with self._lock:
                if self._closed:
                    raise IllegalState("The consumer is closed.")
                batch = self._next(max_records)
            moved = bool(batch.offsets)
            # also where there was nothing to show
            batch.offsets = passed = {**passed, **batch.offsets}
            if batch or self._clock.steady_ms() >= deadline_ms:
                return batch
            if not moved:
                self._clock.sleep(poll_ms)

    def _next(self, max_records: int) -> ConsumerBatch:
        bounds, positions = self._settled(list(self._positions))
        taken = shares({place: bounds[place].end - at for place, at in positions.items()}, max_records)
        moved = {place: positions[place] + count for place, count in taken.items() if count}
        parts = []
        # of one topic an empty part, so that a batch without messages is a table and a DataFrame as well
        for topic in sorted({topic for topic, _ in moved}) or [next(iter(positions))[0]]:
            mine = {partition: end for (name, partition), end in moved.items() if name == topic}
            start = {partition: positions[topic, partition] for partition in mine}
            try:
                parts.append(self._fetch(topic, isolation=self._isolation, start=start, end=mine))
            except OffsetOutOfRange:  # deleted since we looked
                return self._next(max_records)
        for place, at in moved.items():
            del self._positions[place]
            self._positions[place] = at
        return ConsumerBatch(self.group, parts, moved)

    def _bounds(self) -> dict[Place, Bounds]:
        """Of the assigned partitions, as of now."""
        known = self._topic_bounds(sorted({topic for topic, _ in self._positions}), self._isolation)
        for topic, partition in self._positions:
            if (topic, partition) not in known:
                raise UnknownTopicOrPartition(f"{topic} has no such partition.", found=partition)
        return {place: known[place] for place in self._positions}

    def _settled(self, places: Sequence[Place]) -> tuple[dict[Place, Bounds], dict[Place, int]]:
        """The bounds of all, and where to read on in these: where the reset says if there is nothing (any more)."""
        if any(self._positions[place] is None for place in places):
            for place, committed in self.committed().items():
                if self._positions[place] is None:
                    self._positions[place] = committed.offset
        bounds = self._bounds()  # not before: somebody may have read on and committed meanwhile
        settled = {place: self._reset_if_lost(place, self._positions[place], bounds[place]) for place in places}
        self._positions.update(settled)
        return bounds, settled

    def _reset_if_lost(self, place: Place, at: int | None, bounds: Bounds) -> int:
        if at is not None and bounds.first <= at <= bounds.high_watermark:
            return at
        if self._reset == "none" and at is None:
            raise NoOffsetForPartition(found=f"group {self.group}, {place[0]}-{place[1]}")
        if self._reset == "none":
            raise OffsetOutOfRange(
                f"What the group {self.group} wants of {place[0]}-{place[1]} is not there.",
                found=at,
                expected=f"{bounds.first} to {bounds.high_watermark}",
            )
        return bounds.first if self._reset == "earliest" else bounds.end

    def position(self, topic: str, partition: int) -> int:
        """The next offset to read."""
        with self._lock:
            self._check_assigned((topic, partition))
            _, positions = self._settled([(topic, partition)])
            return positions[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset. Raises OffsetOutOfRange, UnknownTopicOrPartition, IllegalState."""
        with self._lock:
            self._check_assigned((topic, partition))
            bounds = self._bounds()[topic, partition]
            if not bounds.first <= offset <= bounds.high_watermark:
                raise OffsetOutOfRange(
                    f"{topic}-{partition} does not hold this offset.",
                    found=offset,
                    expected=f"{bounds.first} to {bounds.high_watermark}",
                )
            self._positions[topic, partition] = offset

    def lag(self) -> dict[Place, int]:
        """(topic, partition) -> offsets between the position and the end of what this isolation sees, at least 0."""
        with self._lock:
            bounds, positions = self._settled(list(self._positions))
            return {place: max(0, bounds[place].end - at) for place, at in positions.items()}

    # -- saying how far ---------------------------------------------------------------------------------

    def commit(
        self, what: ConsumerBatch | Mapping[Place, int] | None = None, metadata: str | None = None
    ) -> dict[Place, int]:
        """Note for the group how far it has come: past a batch, at these offsets, or all positions. Returns them.

        Raises OffsetOutOfRange, UnknownTopicOrPartition, OffsetMetadataTooLarge.
        """
        with self._lock:
            if what is None:
                offsets = {place: at for place, at in self._positions.items() if at is not None}
            else:
                offsets = dict(what.offsets if isinstance(what, ConsumerBatch) else what)
        if offsets:
            commits = [OffsetCommit(topic, partition, at, metadata) for (topic, partition), at in offsets.items()]
            self._requester.ask(CommitOffsets(self.group, commits))
        return offsets

    def committed(self) -> dict[Place, OffsetCommit]:
        """What the group has committed of the assigned partitions; waits while a transaction holds some back.

        Raises UnstableOffsetCommit when that takes too long.
        """
        request = FetchOffsets(self.group, list(self._positions))
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while True:
            try:
                found = self._requester.ask(request)
            except UnstableOffsetCommit:
                if self._clock.steady_ms() > deadline_ms:
                    raise
                self._clock.sleep(_UNSTABLE_WAIT_MS)
                continue
            assert isinstance(found, OffsetsFetched)
            return {(one.topic, one.partition): one for one in found.offsets}

    def close(self) -> None:
        """No more is polled; nothing is committed by it."""
        self._closed = True

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_assigned(self, place: Place) -> None:
        if place not in self._positions:
            raise IllegalState("The partition is not assigned to this consumer.", found=f"{place[0]}-{place[1]}")
