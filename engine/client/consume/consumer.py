"""A consumer of assigned partitions: it reads from where its group is, and says how far it has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...namespace.clock import Clock
from ...namespace.process import OwnLock
from ...protocol.errors import (
    IllegalState,
    NoOffsetForPartition,
    OffsetOutOfRange,
    ThrottlingQuotaExceeded,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ...protocol.values.offsets import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched
from ..arguments import one_of, partition_number, place_offsets, text, topic_name, topic_partitions, whole_number
from ..fetch.fetched import Fetched
from ..fetch.plan import Bounds, Isolation, check_isolation
from ..offsets import ConsumedOffsets, TopicPartition, offset_commits
from ..requester import Requester
from .batch import ConsumerBatch
from .poll_sizes import poll_sizes

Reset = Literal["earliest", "latest", "none"]

_AGAIN_MS = 20
_PASSING_MS = 1_000
"""How long a poll goes on past offsets that hold nothing to be shown, whatever its timeout."""
_MOST_AHEAD = 16_384
"""Offsets that it passes at once, unless it wants more messages than these."""


@dataclass
class Position:
    """Where to read on in a partition of the topic with this id; None: not known yet.

    is_new: the partition came after the consumer began. All that it ever held is for the consumer, so that without a
    committed offset it is read from its start.
    """

    topic_id: int
    offset: int | None = None
    is_new: bool = False


_Moved = tuple[Position, Position]
"""Before a poll, and since."""

OPTIONS = ("auto_offset_reset", "isolation", "default_timeout_ms")


class Consumer:
    """Reads the partitions it was assigned. Thread-safe; close it, or use it as a context manager.

    A position is the next offset to read. It begins where the group committed last; where it has committed nothing, or
    what it wanted is deleted, at `auto_offset_reset`; in a partition that is added, or of a topic that is made anew
    under its old name, at the start. Of its topics it reads all partitions, also those added later.
    """

    def __init__(
        self,
        requester: Requester,
        bounds: Callable[[Iterable[str], Isolation], Mapping[TopicPartition, Bounds]],
        fetch: Callable[..., Fetched],
        clock: Clock,
        group: str,
        topics: Sequence[str],
        assign: Sequence[TopicPartition],
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        default_timeout_ms: int = 60_000,
    ) -> None:
        """bounds: of the partitions of some topics, as of now; default_timeout_ms: how long to wait for offsets that an
        open transaction holds back. Raises UnknownTopicOrPartition, InvalidRequest.
        """
        one_of("auto_offset_reset", auto_offset_reset, ("earliest", "latest", "none"))
        check_isolation(isolation)
        self._requester, self._topic_bounds, self._fetch, self._clock = requester, bounds, fetch, clock
        self.group, self._reset, self._isolation = group, auto_offset_reset, isolation
        self._timeout_ms = whole_number("default_timeout_ms", default_timeout_ms, 0)
        self._lock = OwnLock("This consumer", threading.RLock())
        self._topics, self._assigned = frozenset(topics), frozenset(assign)
        self._positions: dict[TopicPartition, Position] = {}
        """The one that was read longest ago comes first."""
        self._halted: set[TopicPartition] = set()
        self._given_up: set[TopicPartition] = set()
        """What a group is to have back: it is read no further."""
        self._begun = self._closed = False
        self._look()

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """The next messages, at most `max_records`, evenly from all partitions; positions move past them.

        timeout_ms: how long to wait for the first one; what is there comes in any case, for a second of reading past
        what has expired or was aborted. With auto_offset_reset "none" raises NoOffsetForPartition, OffsetOutOfRange.
        """
        max_records, poll_ms = whole_number("max_records", max_records, 1), whole_number("poll_ms", poll_ms, 0)
        begun_ms = self._clock.steady_ms()
        deadline_ms = begun_ms + whole_number("timeout_ms", timeout_ms, 0)
        passed: ConsumedOffsets | None = None
        moves: dict[TopicPartition, _Moved] = {}
        ahead = 0
        try:
            while True:
                with self._lock.own:
                    self._begin_poll()
                    while (batch := self._next(max_records, moves, ahead)) is None:
                        pass  # something was deleted since it looked
                moved = bool(batch.offsets)
                # also where there was nothing to show
                batch.offsets = passed = batch.offsets if passed is None else passed.then(batch.offsets)
                if batch:
                    return batch
                ahead = min(4 * max(ahead, max_records), _MOST_AHEAD) if moved else 0
                over_ms = max(deadline_ms, begun_ms + _PASSING_MS) if moved else deadline_ms
                if self._clock.steady_ms() >= over_ms and not self._is_coming(deadline_ms):
                    return self._nothing_came(batch)
                if not moved:
                    self._rest(min(poll_ms, max(1, deadline_ms - self._clock.steady_ms())))
        except BaseException:  # a signal's, too: nobody has seen what was passed
            with self._lock.own:
                self._go_back(moves)
            raise

    def _is_coming(self, deadline_ms: float) -> bool:
        """Whether to wait a moment longer, for what is there and on its way."""
        return False

    def _nothing_came(self, batch: ConsumerBatch) -> ConsumerBatch:
        """In all its time; the batch is empty."""
        return batch

    def _rest(self, ms: int) -> None:
        """Until it is worth to look again."""
        self._clock.sleep(ms)

    def _go_back(self, moves: Mapping[TopicPartition, _Moved]) -> None:
        for place, (before, after) in moves.items():
            if self._positions.get(place) is after:
                self._positions[place] = before

    def _begin_poll(self) -> None:
        """What comes before each look for messages. Raises IllegalState: it is closed."""
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState("The consumer is closed.")

    def _next(self, max_records: int, moves: dict[TopicPartition, _Moved], ahead: int) -> ConsumerBatch | None:
        """None: it is to be tried again. moves: where positions were before the poll, and where they are now; ahead:
        among how many offsets to look for messages, where there were none before.
        """
        bounds, positions = self._settled()
        resting = self._halted | self._given_up
        behind = {place: bounds[place].end - at for place, at in positions.items() if place not in resting}
        sizes = poll_sizes(behind, max(max_records, ahead))
        moved = {place: positions[place] + count for place, count in sizes.items() if count}
        topic_ids = {topic: position.topic_id for (topic, _), position in self._positions.items()}
        parts = self._parts_of(positions, moved, topic_ids)
        if ahead and parts is not None and (cut := _cut(moved, parts, max_records)) != moved:
            moved = {place: end for place, end in cut.items() if end > positions[place]}
            parts = self._parts_of(positions, moved, topic_ids)
        if parts is None:
            return None
        before = self._positions
        after = {place: replace(before[place], offset=at) for place, at in moved.items()}
        moves |= {place: (moves[place][0] if place in moves else before[place], one) for place, one in after.items()}
        # what was read last comes last; at once, as a signal may come at any time
        self._positions = {**{place: one for place, one in before.items() if place not in after}, **after}
        return ConsumerBatch(self.group, parts, self._read(moved, topic_ids))

    def _parts_of(
        self,
        positions: Mapping[TopicPartition, int],
        moved: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, int],
    ) -> list[Fetched] | None:
        """From the positions on, up to where those are that move. None: some of it was deleted since we looked."""
        parts = []
        # of one topic an empty part, so that a batch without messages is a table and a DataFrame as well
        for topic in sorted({topic for topic, _ in moved} or {topic for topic, _ in list(positions)[:1]}):
            mine = {partition: end for (name, partition), end in moved.items() if name == topic}
            start = {partition: positions[topic, partition] for partition in mine}
            part = self._fetched(topic, topic_ids[topic], start, mine)
            if part is None:
                return None
            parts.append(part)
        return parts

    def _read(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        return ConsumedOffsets(offsets, topic_ids)

    def _fetched(self, topic: str, topic_id: int, start: Mapping[int, int], end: Mapping[int, int]) -> Fetched | None:
        """None: these messages, or all of the topic, were deleted since we looked."""
        try:
            fetched = self._fetch(topic, isolation=self._isolation, start=start, end=end)
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            return None
        return fetched if fetched.plan.topic_id == topic_id else None

    def _look(self) -> dict[TopicPartition, Bounds]:
        """The bounds of all partitions that are read, as of now; positions are of these partitions from here on."""
        known = self._topic_bounds(sorted({*self._topics, *(topic for topic, _ in self._assigned)}), self._isolation)
        for topic, partition in self._assigned - known.keys():
            raise UnknownTopicOrPartition(f"{topic} has no such partition.", found=partition)
        bounds = {place: one for place, one in known.items() if place[0] in self._topics or place in self._assigned}
        for place in self._positions.keys() - bounds.keys():
            del self._positions[place]
        for place, one in bounds.items():
            position = self._positions.get(place)
            if position is None or position.topic_id != one.topic_id:
                self._positions[place] = Position(one.topic_id, is_new=self._begun)
        self._begun = True
        return bounds

    def _settled(
        self, only: TopicPartition | None = None
    ) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, int]]:
        """The bounds of all, and where to read on in all or one: at the start or reset if there is nothing (any more).

        Raises IllegalState: `only` is not assigned.
        """
        bounds, asked = self._look(), dict[TopicPartition, int]()
        while any(asked.get(place) != self._positions[place].topic_id for place in self._unknown(only)):
            asked = {place: position.topic_id for place, position in self._positions.items()}
            for place, told in self.committed().items():
                position = self._positions[place]
                if position.offset is None and told.topic_id == position.topic_id:
                    position.offset = told.offset
            bounds = self._look()  # not before: somebody may have read on and committed meanwhile
        if only is not None:
            self._check_assigned(only, bounds)
        places = bounds if only is None else [only]
        settled = {place: self._start(place, self._positions[place], bounds[place]) for place in places}
        for place, at in settled.items():
            self._positions[place].offset = at
        return bounds, {place: settled[place] for place in self._positions if place in settled}

    def _unknown(self, only: TopicPartition | None = None) -> list[TopicPartition]:
        """Those of all, or of one, in which it is not known yet where to read on."""
        if only is not None:
            self._check_assigned(only, self._positions)
        return [
            place for place in (self._positions if only is None else [only]) if self._positions[place].offset is None
        ]

    def _start(self, place: TopicPartition, position: Position, bounds: Bounds) -> int:
        at = position.offset
        if at is None and position.is_new:
            return bounds.first
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
        with self._lock.own:
            _, positions = self._settled((topic, partition))
            return positions[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset. Raises OffsetOutOfRange, UnknownTopicOrPartition, IllegalState."""
        offset = whole_number("offset", offset)
        with self._lock.own:
            looked = self._look()
            self._check_assigned((topic, partition), looked)
            bounds = looked[topic, partition]
            if not bounds.first <= offset <= bounds.high_watermark:
                raise OffsetOutOfRange(
                    f"{topic}-{partition} does not hold this offset.",
                    found=offset,
                    expected=f"{bounds.first} to {bounds.high_watermark}",
                )
            self._positions[topic, partition].offset = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls bring nothing of these until they are resumed. Raises IllegalState: one is not assigned."""
        with self._lock.own:
            places = topic_partitions("partitions", partitions)
            for place in places:
                self._check_assigned(place, self._places())
            self._halted.update(places)

    def _places(self) -> Container[TopicPartition]:
        """Those that it reads."""
        return self._positions

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls bring messages of these again."""
        with self._lock.own:
            self._halted.difference_update(topic_partitions("partitions", partitions))

    def lag(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> offsets between the position and the end of what this isolation sees, at least 0."""
        with self._lock.own:
            bounds, positions = self._settled()
            return {place: max(0, bounds[place].end - at) for place, at in positions.items()}

    # -- saying how far ---------------------------------------------------------------------------------

    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Note for the group how far it has come: past a batch, at these offsets, or all positions. Returns them.

        Raises OffsetOutOfRange, UnknownTopicOrPartition, OffsetMetadataTooLarge; UnknownTopicId: the topic that was
        read is deleted, and nothing is noted.
        """
        offsets = self._to_commit(what)
        if offsets:
            commits = offset_commits(offsets, self._checked_metadata(metadata))
            self._requester.ask(CommitOffsets(self.group, commits))
        return offsets

    def _checked_metadata(self, metadata: str | None) -> str | None:
        return None if metadata is None else text("metadata", metadata)

    def _to_commit(self, what: ConsumerBatch | Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        given = what.offsets if isinstance(what, ConsumerBatch) else what
        if isinstance(given, ConsumedOffsets):
            return given  # another thread may commit what it has dealt with while this one polls
        with self._lock.own:
            return self._consumed(given)

    def _consumed(self, given: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        if given is not None:
            given = place_offsets("what", given)
        else:
            given = {place: one.offset for place, one in self._positions.items() if one.offset is not None}
        # names stand for the topics that this one has seen; of others the sequencer knows best
        return self._read(given, {topic: one.topic_id for (topic, _), one in self._positions.items()})

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """What the group has committed of the assigned partitions; waits while a transaction holds some back.

        Raises UnstableOffsetCommit when that takes too long, ThrottlingQuotaExceeded while others are told too much.
        """
        request = FetchOffsets(self.group, list(self._positions))
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while True:
            try:
                found = self._requester.ask(request)
            except (UnstableOffsetCommit, ThrottlingQuotaExceeded):
                if self._clock.steady_ms() > deadline_ms:
                    raise
                self._clock.sleep(_AGAIN_MS)
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

    def _check_assigned(self, place: TopicPartition, among: Container[TopicPartition]) -> None:
        topic_name("topic", place[0])
        partition_number(place[1])
        if place not in among:
            raise IllegalState("The partition is not assigned to this consumer.", found=f"{place[0]}-{place[1]}")


def _cut(moved: Mapping[TopicPartition, int], parts: Iterable[Fetched], max_records: int) -> dict[TopicPartition, int]:
    """How far to move instead, so that at most so many messages are shown: to the next message of each partition."""
    there = {(part.plan.topic, partition): at for part in parts for partition, at in part.offsets().items()}
    shown = poll_sizes({place: len(at) for place, at in there.items()}, max_records)
    left = {place: int(at[shown[place]]) for place, at in there.items() if shown[place] < len(at)}
    return {**moved, **left}
