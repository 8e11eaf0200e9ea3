"""A consumer of assigned partitions: it reads from where its group is, and says how far it has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..clock import Clock
from ..fetch.fetched import Fetched
from ..fetch.plan import Isolation, end_offsets
from ..protocol.errors import (
    IllegalState,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ..protocol.requests import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched
from ..protocol.state import State
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
        state: Callable[[], State],
        fetch: Callable[..., Fetched],
        clock: Clock,
        group: str,
        assign: Sequence[Place],
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        default_timeout_ms: int = 60_000,
    ) -> None:
        """default_timeout_ms: how long to wait for offsets that an open transaction holds back."""
        if auto_offset_reset not in ("earliest", "latest", "none"):
            raise InvalidRequest(
                "Unknown auto_offset_reset.", found=auto_offset_reset, expected="earliest, latest or none"
            )
        self._requester, self._state, self._fetch, self._clock = requester, state, fetch, clock
        self.group, self._reset, self._isolation = group, auto_offset_reset, isolation
        self._timeout_ms = default_timeout_ms
        self._lock = threading.RLock()
        self._positions: dict[Place, int | None] = dict.fromkeys(assign)
        self._closed = False
        for place in assign:
            self._check(self._state(), place)

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """The next messages, at most `max_records`, evenly from all partitions; positions move past them.

        timeout_ms: how long to wait for the first one. Raises OffsetOutOfRange with auto_offset_reset "none".
        """
        if max_records < 1:
            raise InvalidRequest("max_records is not positive.", found=max_records, expected="at least 1")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while True:
            with self._lock:
                batch = self._next(max_records)
            if batch or self._clock.steady_ms() >= deadline_ms:
                return batch
            if not batch.offsets:
                self._clock.sleep(poll_ms)

    def _next(self, max_records: int) -> ConsumerBatch:
        state = self._state()
        positions = {place: self._settled(state, place) for place in self._positions}
        ends = self._ends(state)
        taken = shares({p: ends[p] - at for p, at in positions.items() if ends[p] > at}, max_records)
        moved = {place: positions[place] + count for place, count in taken.items() if count}
        parts = []
        for topic in sorted({topic for topic, _ in moved}):
            mine = {partition: end for (name, partition), end in moved.items() if name == topic}
            start = {partition: positions[topic, partition] for partition in mine}
            parts.append(self._fetch(topic, isolation=self._isolation, start=start, end=mine))
        self._positions.update(moved)
        return ConsumerBatch(self.group, parts, moved)

    def _ends(self, state: State) -> dict[Place, int]:
        topics = {topic: end_offsets(state.topic(topic), self._isolation) for topic, _ in self._positions}
        return {(topic, partition): topics[topic][partition] for topic, partition in self._positions}

    def _settled(self, state: State, place: Place) -> int:
        """Where to read on: the position, or where the reset says when there is nothing (any more)."""
        if self._positions[place] is None:
            for known, committed in self.committed().items():
                if self._positions.get(known) is None:
                    self._positions[known] = committed.offset
        at, topic = self._positions[place], state.topic(place[0])
        first = int(topic.log_starts[place[1]])
        if at is None or at < first:
            if self._reset == "none":
                raise OffsetOutOfRange(
                    f"The group {self.group} has no offset for {place[0]}-{place[1]} that is still there.",
                    found=at,
                    expected=f"{first} or later",
                )
            at = first if self._reset == "earliest" else end_offsets(topic, self._isolation)[place[1]]
            self._positions[place] = at
        return at

    def position(self, topic: str, partition: int) -> int:
        """The next offset to read."""
        with self._lock:
            self._check_assigned((topic, partition))
            return self._settled(self._state(), (topic, partition))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset. Raises OffsetOutOfRange, UnknownTopicOrPartition, IllegalState."""
        with self._lock:
            self._check_assigned((topic, partition))
            known = self._state().topic(topic)
            first, last = int(known.log_starts[partition]), int(known.high_watermarks[partition])
            if not first <= offset <= last:
                raise OffsetOutOfRange(
                    f"{topic}-{partition} does not hold this offset.", found=offset, expected=f"{first} to {last}"
                )
            self._positions[topic, partition] = offset

    def lag(self) -> dict[Place, int]:
        """(topic, partition) -> offsets between the position and the end of what this isolation sees."""
        with self._lock:
            state = self._state()
            ends = self._ends(state)
            return {place: ends[place] - self._settled(state, place) for place in self._positions}

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
        """Nothing is committed by it."""
        self._closed = True

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_assigned(self, place: Place) -> None:
        if place not in self._positions:
            raise IllegalState("The partition is not assigned to this consumer.", found=f"{place[0]}-{place[1]}")

    @staticmethod
    def _check(state: State, place: Place) -> None:
        count = state.topic(place[0]).partition_count
        if not 0 <= place[1] < count:
            raise UnknownTopicOrPartition(
                f"{place[0]} has no such partition.", found=place[1], expected=f"0 to {count - 1}"
            )
