"""Ranges that are due much later, packed into blocks of compressed columns.

`waiting.py` takes a range out as soon as a look-up asks for it, so the state of a range does not depend on whether it
is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from typing import NamedTuple

from .delays import RangeKey, WaitingRange
from .packed_block import BLOCK_RANGES, NEVER_MS, Block, merge_blocks
from .packed_columns import Numbers, hash_keys, keys_to_columns

RESTORED_RANGES = 1 << 16
"""Ranges in a block that is restored from a table, before the first step."""

MAX_SMALL_BLOCKS = 16
"""More small blocks than this are merged, because each look-up asks every block."""

_PIECE = 4096
"""Ranges that are objects at the same time while all are iterated."""


class _ExpectedBlocks(NamedTuple):
    """Blocks that are still being read. All their ranges are due at first_due_ms or later. add: adds the blocks."""

    first_due_ms: int
    add: Callable[[], None]


class PackedRanges:
    """A list of blocks, and look-ups in it.

    A start does not wait for blocks of ranges that are due much later: another thread reads them. A look-up that may
    need them waits for that thread, so no answer depends on how far it has come.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._expected: _ExpectedBlocks | None = None

    def expect(self, first_due_ms: int, add: Callable[[], None]) -> None:
        """Expect further blocks.

        first_due_ms: none of their ranges is due before. add: adds them; it is called once.
        """
        assert self._expected is None
        self._expected = _ExpectedBlocks(first_due_ms, add)

    def complete(self) -> None:
        """Add the expected blocks, if any. If that fails, they are still expected."""
        expected, self._expected = self._expected, None
        if expected is not None:
            try:
                expected.add()
            except BaseException:
                self._expected = expected
                raise

    @property
    def blocks(self) -> list[Block]:
        """All blocks."""
        self.complete()
        return self._blocks

    def __len__(self) -> int:
        return sum(block.remaining_count for block in self.blocks)

    def __bool__(self) -> bool:
        """Return whether there are ranges, or may be."""
        return self._expected is not None or bool(self._blocks)

    def __iter__(self) -> Iterator[WaitingRange]:
        """All ranges, as objects of their own. They stay packed."""
        for block in self.blocks:
            rows = block.list_remaining()
            for first in range(0, len(rows), _PIECE):
                yield from block.ranges(rows[first : first + _PIECE])

    @property
    def first_due_ms(self) -> int:
        """The time when the first range is due, or an earlier time; NEVER_MS without ranges."""
        expected_ms = NEVER_MS if self._expected is None else self._expected.first_due_ms
        return min([expected_ms, *(block.first_due_ms for block in self._blocks)])

    def append_block(self, block: Block) -> None:
        """Add a block."""
        self._blocks.append(block)

    def add(self, block: Block) -> None:
        """Add a block. If many blocks are small, some of them are merged."""
        self.append_block(block)
        small = sorted(
            (candidate for candidate in self._blocks if candidate.is_small),
            key=lambda candidate: candidate.remaining_count,
        )
        if len(small) > MAX_SMALL_BLOCKS:
            totals = accumulate(candidate.remaining_count for candidate in small)
            chosen = [
                candidate for candidate, total in zip(small, totals, strict=True) if total <= BLOCK_RANGES
            ] or small[:1]
            self._blocks = [candidate for candidate in self._blocks if candidate not in chosen]
            self._blocks.append(merge_blocks(chosen))

    def has_any(self, keys: Collection[RangeKey]) -> bool:
        """Return whether one of these ranges is packed."""
        self.complete()
        return any(True for _ in self._locate(keys))

    def take(self, keys: Collection[RangeKey], also_expected: bool = True) -> list[WaitingRange]:
        """Take out those of these ranges that are packed, and return them.

        also_expected: whether expected blocks may hold some of them.
        """
        if also_expected:
            self.complete()
        return [range_ for block, rows in self._locate(keys) for range_ in self._take_rows(block, rows)]

    def _locate(self, keys: Collection[RangeKey]) -> Iterator[tuple[Block, Numbers]]:
        columns = keys_to_columns(keys)
        hashes = hash_keys(columns)
        for block in list(self._blocks):
            rows = block.find(columns, hashes)
            if len(rows):
                yield block, rows

    def take_due(self, until_ms: int, most: int, most_blocks: int) -> list[WaitingRange]:
        """Take out ranges whose first row is due by then. `first_due_ms` says whether there are more.

        most, most_blocks: bound how long this takes.
        """
        ranges: list[WaitingRange] = []
        if self._expected is not None and self._expected.first_due_ms <= until_ms:
            self.complete()
        for block in [candidate for candidate in self._blocks if candidate.first_due_ms <= until_ms][:most_blocks]:
            rows = block.find_due(until_ms, most - len(ranges))
            ranges += self._take_rows(block, rows)
            if len(ranges) >= most:
                break
        return ranges

    def take_topic(self, topic_id: int) -> list[WaitingRange]:
        """Take out all ranges that go to this topic, and return them."""
        ranges: list[WaitingRange] = []
        for block in list(self.blocks):
            ranges += self._take_rows(block, block.find_by_topic(topic_id))
        return ranges

    def _take_rows(self, block: Block, rows: Numbers) -> list[WaitingRange]:
        if not len(rows):
            return []
        ranges = block.ranges(rows)
        block.take_out(rows)
        if not block.remaining_count:
            self._blocks.remove(block)
        return ranges
