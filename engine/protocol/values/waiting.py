"""Everything that waits for its time. Ranges that are due soon or changed lately are objects; the others are packed.

Invariant: the state of a range does not depend on whether it is packed. A look-up by key returns an object that may be
changed: the range is unpacked first, and packed again some time later.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from .delays import DELAY_TRANSITIONS, DelayEvent, DelayStatus, RangeKey, WaitingRange
from .packed import NEVER_MS, Block, PackedRanges, pack_ranges


class WaitingRanges:
    """Ranges by key. Iterating unpacks none of them; objects that it yields for packed ranges must not be changed.

    unpacked: ranges that are objects. idle: those of them that are due much later and may be packed, in the order in
    which they became idle. Only a leader marks ranges as idle and packs them.
    """

    def __init__(self) -> None:
        self.unpacked: dict[RangeKey, WaitingRange] = {}
        self.idle: dict[RangeKey, None] = {}
        self.packed = PackedRanges()

    def __len__(self) -> int:
        return len(self.unpacked) + len(self.packed)

    def __iter__(self) -> Iterator[WaitingRange]:
        """All ranges, without unpacking any."""
        return chain(self.unpacked.values(), self.packed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WaitingRanges):
            return NotImplemented
        return {range_.published.key: range_ for range_ in self} == {range_.published.key: range_ for range_ in other}

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, key: RangeKey) -> WaitingRange:
        if key not in self.unpacked:
            self.unpack([key])
        return self.unpacked[key]

    def __contains__(self, key: RangeKey) -> bool:
        return key in self.unpacked or self.has_any([key])

    def get(self, key: RangeKey) -> WaitingRange | None:
        """Return the range, which may be changed; None if it does not exist."""
        if key not in self.unpacked:
            self.unpack([key])
        return self.unpacked.get(key)

    def has_any(self, keys: Collection[RangeKey]) -> bool:
        """Return whether one of these ranges exists."""
        return any(key in self.unpacked for key in keys) or self.packed.has_any(keys)

    def add(self, range_: WaitingRange) -> None:
        """Add a new range."""
        self.unpacked[range_.published.key] = range_

    def pop(self, key: RangeKey) -> WaitingRange | None:
        """Remove a range and return it, if it exists."""
        range_ = self.get(key)
        if range_ is not None:
            del self.unpacked[key]
            self.idle.pop(key, None)
        return range_

    def unpack(self, keys: Collection[RangeKey]) -> None:
        """Unpack those of these ranges that are packed. For many keys this is much faster than one by one."""
        if not self.packed:
            return
        missing = [key for key in keys if key not in self.unpacked]
        if missing:
            for range_ in self.packed.take(missing):
                self._restore(range_)

    def unpack_topic(self, topic_id: int) -> None:
        """Unpack the ranges of a topic."""
        for range_ in self.packed.take_topic(topic_id):
            self._restore(range_)

    def _restore(self, range_: WaitingRange) -> None:
        key = range_.published.key
        self.unpacked[key] = range_
        self.idle[key] = None

    def first_idle_ms(self) -> int:
        """Return when the first idle or packed range is due, or an earlier time; NEVER_MS without such ranges."""
        idle_ms = min((self.unpacked[key].published.first_due_ms for key in self.idle), default=NEVER_MS)
        return min(idle_ms, self.packed.first_due_ms)

    def wake(self, until_ms: int, most: int, most_blocks: int) -> list[RangeKey]:
        """Unpack ranges whose first row is due by then, mark them as not idle, and return their keys.

        most, most_blocks: bound how long this takes. `packed.first_due_ms` says whether there are more.
        """
        unpacked = self.packed.take_due(until_ms, most, most_blocks)
        for range_ in unpacked:
            self.unpacked[range_.published.key] = range_
        near = [key for key in self.idle if self.unpacked[key].published.first_due_ms <= until_ms]
        for key in near:
            del self.idle[key]
        return [range_.published.key for range_ in unpacked] + near

    def pack(self, keys: Collection[RangeKey]) -> None:
        """Pack idle ranges, at least one."""
        ranges = [self.unpacked.pop(key) for key in keys]
        for key in keys:
            del self.idle[key]
        self.packed.add(pack_ranges(ranges))


CountedBlock: TypeAlias = tuple[Block, Mapping[int, int]]
"""A block, and how many of its rows wait, by topic id."""


@dataclass
class Delays:
    """All delayed rows. pointer_ms: everything that was due up to this time is released.

    pending: topic_id -> number of waiting rows, if any. open: (producer_id, producer_epoch), the name of a transaction
    -> its ranges. ready: ranges that have begun to wait in this step, so that the leader notes when they are due.
    published: how many ranges this step has published.
    """

    pointer_ms: int = 0
    ranges: WaitingRanges = field(default_factory=WaitingRanges)
    pending: dict[int, int] = field(default_factory=dict)
    open: dict[tuple[int | None, int | None], dict[RangeKey, None]] = field(default_factory=dict)
    ready: list[RangeKey] = field(default_factory=list)
    published: int = 0

    def add(self, range_: WaitingRange) -> None:
        """Add a new range."""
        key = range_.published.key
        self.ranges.add(range_)
        self._count_pending(range_.published.topic_id, range_.waiting_count)
        if range_.is_open:
            self.open.setdefault(range_.author, {})[key] = None
        else:
            self.ready.append(key)

    def add_block(self, block: Block, counts: Mapping[int, int]) -> None:
        """Add packed ranges. counts: how many of their rows wait, by topic id."""
        self.ranges.packed.blocks.append(block)
        for topic_id, count in counts.items():
            self._count_pending(topic_id, count)

    def remove(self, key: RangeKey, event: DelayEvent) -> None:
        """Remove a range by the event that ends it, if it exists."""
        range_ = self.ranges.pop(key)
        if range_ is not None:
            DELAY_TRANSITIONS.move(range_.status, event)
            self._count_pending(range_.published.topic_id, -range_.waiting_count)
            if range_.is_open and (keys := self.open.get(range_.author)) is not None:
                keys.pop(key, None)
                if not keys:
                    del self.open[range_.author]

    def start_waiting(self, key: RangeKey) -> None:
        """Let the range wait from now on: its transaction is committed."""
        range_ = self.ranges.get(key)
        if range_ is not None:
            status = DELAY_TRANSITIONS.move(range_.status, DelayEvent.COMMIT)
            range_.is_open, range_.transactional_id = status is DelayStatus.OPEN, None
            self.ready.append(key)

    def release(self, key: RangeKey, released_count: int) -> None:
        """Set how many rows of the range are released. The range is removed with its last row."""
        range_ = self.ranges.get(key)
        if range_ is None:
            return
        self._count_pending(
            range_.published.topic_id, range_.count_waiting_after(released_count) - range_.waiting_count
        )
        range_.released_count = released_count
        if range_.waiting_count:
            DELAY_TRANSITIONS.move(range_.status, DelayEvent.RELEASE_SOME)
        else:
            DELAY_TRANSITIONS.move(range_.status, DelayEvent.RELEASE)
            self.ranges.pop(key)

    def cancel(self, key: RangeKey, rows: list[int], rescheduled: bool = False) -> None:
        """Cancel these rows of the range. Others still wait."""
        range_ = self.ranges.get(key)
        if range_ is not None:
            DELAY_TRANSITIONS.move(range_.status, DelayEvent.CANCEL_SOME)
            before = range_.waiting_count
            range_.cancelled = sorted({*range_.cancelled, *rows}) if range_.cancelled else rows
            if rescheduled:
                range_.rescheduled = sorted({*range_.rescheduled, *rows})
            self._count_pending(range_.published.topic_id, range_.waiting_count - before)

    def _count_pending(self, topic_id: int, more: int) -> None:
        count = self.pending.get(topic_id, 0) + more
        if count:
            self.pending[topic_id] = count
        else:
            self.pending.pop(topic_id, None)
