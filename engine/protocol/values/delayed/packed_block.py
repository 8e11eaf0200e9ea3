"""A block: ranges that are due much later, as compressed columns, about ten bytes each instead of six hundred.

A block never changes, except that ranges are taken out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from .delays import DelayedRange, WaitingRange
from .packed_columns import KEY, Hashes, Numbers, decode_column, encode_column, hash_keys

Columns = Mapping[str, Numbers]
"""A column for each of COLUMNS, all of the same length."""

BLOCK_RANGES = 1 << 14
"""Ranges in a merged block. A merge is part of a step, and takes about 10 ms."""

NULL = -1
"""Stands for None in a column. No producer id and no epoch is negative."""

COLUMNS = (
    *KEY,
    "partition",
    "footer_hash",
    "has_footer_hash",
    "record_count",
    "first_due_ms",
    "last_due_ms",
    "min_timestamp_ms",
    "max_timestamp_ms",
    "has_ttl",
    "step",
    "position",
    "producer_id",
    "producer_epoch",
    "released_count",
)
_GROWING = {"first_row", "step", "min_timestamp_ms"}
"""Columns that mostly grow from one range to the next, so that their differences are small numbers."""

_RELATIVE_TO = {"last_due_ms": "first_due_ms", "max_timestamp_ms": "min_timestamp_ms"}
"""Columns that are stored as the difference from another one, which is mostly 0."""

NEVER_MS = 2**62
"""Later than any time."""

_FEW_KEYS = 4
"""Up to this number, keys are looked for one by one, without a hash of each range."""

_FILTER_BITS = 16
"""Bits of the filter per range. Two of them are set, so it is wrong about one key in seventy."""


def sort_by_publishing(columns: Columns) -> Numbers:
    """Return the numbers of the ranges in the order of their publishing.

    Another order would only cost memory, so it does not matter if the sum of the two columns overflows.
    """
    return np.argsort((columns["step"] << 20) + columns["position"])


def reorder_columns(columns: Columns, order: Numbers) -> dict[str, Numbers]:
    """Return the columns with their numbers in this order. Constant columns, which are most, need no work."""
    return {name: column if (column == column[0]).all() else column[order] for name, column in columns.items()}


class Block:
    """Packed ranges. None of them belongs to an open transaction.

    count: ranges that were packed. remaining_count: those that were not taken out. first_due_ms: when the first
    remaining one is due, or an earlier time. changes: cancelled and rescheduled rows, by the number of the range.
    """

    def __init__(
        self, columns: Columns, topics: Mapping[int, str], changes: Mapping[int, tuple[Sequence[int], Sequence[int]]]
    ) -> None:
        """topics: topic id -> name, of all that the ranges go to."""
        self.count = self.remaining_count = len(columns["topic_id"])
        self.first_due_ms = int(columns["first_due_ms"].min())
        self._topics, self._changes = dict(topics), dict(changes)
        self._columns = {
            name: encode_column(columns[name] - columns[_RELATIVE_TO[name]], False)
            if name in _RELATIVE_TO
            else encode_column(columns[name], name in _GROWING)
            for name in COLUMNS
        }
        self._filter = self._new_filter(hash_keys(columns[name] for name in KEY))
        self._taken: npt.NDArray[np.bool_] | None = None

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, without the parts that have the same size in every block."""
        return sum(len(column.body) for column in self._columns.values()) + len(self._filter)

    @property
    def is_small(self) -> bool:
        """True if merging it is worthwhile: it has few ranges, or most of them were taken out."""
        return self.remaining_count < max(BLOCK_RANGES // 2, self.count // 4)

    def _new_filter(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        bits = np.zeros(self.count * _FILTER_BITS, np.bool_)
        for places in self._places(hashes):
            bits[places] = True
        return np.packbits(bits)

    def _places(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """Return the two bits of each hash."""
        size = np.uint64(self.count * _FILTER_BITS)
        return (hashes % size).view(np.int64), ((hashes >> np.uint64(20)) % size).view(np.int64)

    def _may_hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        first, second = self._places(hashes)
        bits = (self._filter[first >> 3] << (first & 7)) & (self._filter[second >> 3] << (second & 7))
        maybe: npt.NDArray[np.bool_] = (bits & 0x80) != 0
        return maybe

    def column(self, name: str) -> Numbers:
        """Return one column of all ranges, including those that were taken out."""
        return self._values(name, None)

    def _values(self, name: str, rows: Numbers | None) -> Numbers:
        """Return one column of the ranges of these numbers, or of all."""
        values = decode_column(self._columns[name], self.count, rows)
        return values + self._values(_RELATIVE_TO[name], rows) if name in _RELATIVE_TO else values

    def find(self, keys: Sequence[Numbers], hashes: Hashes) -> Numbers:
        """Return the numbers of the remaining ranges that have one of these keys. keys: as columns; hashes: one per
        key.
        """
        maybe = self._may_hold(hashes)
        if not maybe.any():
            return np.empty(0, np.int64)
        if np.count_nonzero(maybe) <= _FEW_KEYS:
            numbers = [self._find_key([int(column[i]) for column in keys]) for i in np.flatnonzero(maybe)]
            return np.unique(np.concatenate(numbers))
        columns = [self.column(name) for name in KEY]
        rows = np.flatnonzero(np.isin(hash_keys(columns), hashes[maybe]) & self._remaining_mask())
        if not len(rows):
            return rows
        key_set = set(zip(*(column[maybe].tolist() for column in keys), strict=True))
        own = zip(*(column[rows].tolist() for column in columns), strict=True)
        return rows[[key in key_set for key in own]]

    def _find_key(self, key: Sequence[int]) -> Numbers:
        """Return the numbers of the remaining ranges that have this key: compare one column, and few rows of others."""
        values = dict(zip(KEY, key, strict=True))
        rows = np.flatnonzero((self.column("first_row") == values.pop("first_row")) & self._remaining_mask())
        for name, value in values.items():
            rows = rows[self._values(name, rows) == value]
        return rows

    def find_due(self, until_ms: int, most: int) -> Numbers:
        """Return the numbers of at most `most` remaining ranges whose first row is due by then.

        If these are all of them, `first_due_ms` moves on: the caller takes them out.
        """
        due_ms, is_left = self.column("first_due_ms"), self._remaining_mask()
        rows = np.flatnonzero(is_left & (due_ms <= until_ms))
        if len(rows) <= most:
            self.first_due_ms = int(due_ms[is_left & (due_ms > until_ms)].min(initial=NEVER_MS))
        return rows[:most]

    def find_by_topic(self, topic_id: int) -> Numbers:
        """Return the numbers of the remaining ranges of this topic."""
        if topic_id not in self._topics:
            return np.empty(0, np.int64)
        return np.flatnonzero((self.column("topic_id") == topic_id) & self._remaining_mask())

    def list_remaining(self) -> Numbers:
        """Return the numbers of the remaining ranges."""
        return np.flatnonzero(self._remaining_mask())

    def _remaining_mask(self) -> npt.NDArray[np.bool_]:
        return np.ones(self.count, np.bool_) if self._taken is None else ~self._taken

    def take_out(self, rows: Numbers) -> None:
        """Take the ranges of these numbers out of the block."""
        if self._taken is None:
            self._taken = np.zeros(self.count, np.bool_)
        self._taken[rows] = True
        self.remaining_count -= len(rows)

    def ranges(self, rows: Numbers) -> list[WaitingRange]:
        """Return the ranges of these numbers as new objects."""
        columns = {name: self._values(name, rows).tolist() for name in COLUMNS}
        hashes = [
            number if is_known else None
            for number, is_known in zip(columns["footer_hash"], columns["has_footer_hash"], strict=True)
        ]
        published = zip(
            columns["topic_id"],
            [self._topics[topic_id] for topic_id in columns["topic_id"]],
            columns["partition"],
            columns["file_id"],
            hashes,
            *(columns[name] for name in DelayedRange._fields[5:11]),
            map(bool, columns["has_ttl"]),
            columns["reschedules"],
            strict=True,
        )
        names = ("step", "position", "producer_id", "producer_epoch", "released_count")
        places = zip(rows.tolist(), published, *(columns[name] for name in names), strict=True)
        return [
            WaitingRange(
                published=DelayedRange(*fields),
                step=step,
                position=position,
                producer_id=None if producer_id == NULL else producer_id,
                producer_epoch=None if epoch == NULL else epoch,
                transactional_id=None,
                is_open=False,
                released_count=released,
                cancelled=self._changes[row][0] if row in self._changes else (),
                rescheduled=self._changes[row][1] if row in self._changes else (),
            )
            for row, fields, step, position, producer_id, epoch, released in places
        ]


def pack_ranges(ranges: Sequence[WaitingRange]) -> Block:
    """Pack ranges in the order of their publishing, in which most columns grow slowly."""
    ranges = sorted(ranges, key=lambda range_: (range_.step, range_.position))
    fields = dict(zip(DelayedRange._fields, zip(*(range_.published for range_ in ranges), strict=True), strict=True))
    hashes = fields.pop("footer_hash")
    topics = dict(zip(fields["topic_id"], fields.pop("topic"), strict=True))
    columns = {
        **fields,
        "footer_hash": [number or 0 for number in hashes],
        "has_footer_hash": [number is not None for number in hashes],
        "step": [range_.step for range_ in ranges],
        "position": [range_.position for range_ in ranges],
        "producer_id": [NULL if range_.producer_id is None else range_.producer_id for range_ in ranges],
        "producer_epoch": [NULL if range_.producer_epoch is None else range_.producer_epoch for range_ in ranges],
        "released_count": [range_.released_count for range_ in ranges],
    }
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    changes = {row: (range_.cancelled, range_.rescheduled) for row, range_ in enumerate(ranges) if range_.cancelled}
    return Block(arrays, topics, changes)


def merge_blocks(blocks: Sequence[Block]) -> Block:
    """Return one block with all remaining ranges of these blocks; there is at least one."""
    parts = [block.list_remaining() for block in blocks]
    columns = {
        name: np.concatenate([block.column(name)[rows] for block, rows in zip(blocks, parts, strict=True)])
        for name in COLUMNS
    }
    order = sort_by_publishing(columns)
    topics = dict(chain.from_iterable(block._topics.items() for block in blocks))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    changes, before = {}, 0
    for block, rows in zip(blocks, parts, strict=True):
        if block._changes:
            for at, row in enumerate(rows.tolist()):
                if row in block._changes:
                    changes[int(numbers[before + at])] = block._changes[row]
        before += len(rows)
    return Block(reorder_columns(columns, order), topics, changes)
