"""Ranges that are due much later, packed into blocks of compressed columns.

`waiting.py` takes a range out as soon as a look-up asks for it, so the state of a range does not depend on whether it
is packed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .delays import DelayedRange, RangeKey, WaitingRange

# Columns of numbers in few bytes: how a block of packed ranges keeps its columns, and finds keys in them.


Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

KEY = ("topic_id", "file_id", "first_row", "reschedules")


class EncodedColumn(NamedTuple):
    """A column. Each number is `low` + `unit` times an unsigned number of `width` bytes. With width 0 all are `low`.

    body: the first bytes of all numbers, then the second bytes and so on, compressed.
    """

    low: int
    unit: int
    width: int
    is_growing: bool
    body: bytes


def encode_column(values: Numbers, is_growing: bool) -> EncodedColumn:
    """Return the column in few bytes. is_growing: keep the differences of neighbours, because they are small."""
    if is_growing:
        values = np.diff(values, prepend=0)
    low = int(values.min())
    offsets = (values - low).view(np.uint64)  # modulo 2 ** 64, so that nothing overflows
    most = int(offsets.max())
    if not most:
        return EncodedColumn(low, 1, 0, is_growing, b"")
    # due times are multiples of the slot, a second by default
    unit = 1000 if most >= 1000 and not (offsets % np.uint64(1000)).any() else 1
    if unit > 1:
        offsets //= np.uint64(unit)
        most //= unit
    width = (most.bit_length() + 7) // 8
    planes = np.ascontiguousarray(offsets.view(np.uint8).reshape(-1, 8)[:, :width].T)
    return EncodedColumn(low, unit, width, is_growing, pa.compress(planes, "zstd", asbytes=True))


def decode_column(column: EncodedColumn, count: int, rows: Numbers | None = None) -> Numbers:
    """Return the numbers of a column, or only those of some rows: without sums this is several times faster."""
    if rows is not None and column.is_growing:
        return decode_column(column, count)[rows]
    if not column.width:
        values = np.full(count if rows is None else len(rows), column.low, np.int64)
    else:
        planes = np.frombuffer(pa.decompress(column.body, column.width * count, "zstd"), np.uint8)
        planes = planes.reshape(column.width, count) if rows is None else planes.reshape(column.width, count)[:, rows]
        wide = np.zeros((planes.shape[1], 8), np.uint8)
        wide[:, : column.width] = planes.T
        values = wide.view(np.int64).ravel()
        if column.unit > 1:
            values *= column.unit
        values += column.low
    return np.cumsum(values, dtype=np.int64) if column.is_growing else values


_FACTORS = [
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
]
_SHIFT = np.uint64(29)


def hash_keys(columns: Iterable[Numbers]) -> Hashes:
    """Return a hash of each key. The columns are those of KEY."""
    hashes: Hashes | None = None
    for column, factor in zip(columns, _FACTORS, strict=True):
        mixed = column.view(np.uint64) * factor
        hashes = mixed if hashes is None else (hashes ^ (hashes >> _SHIFT)) * _FACTORS[0] + mixed
    assert hashes is not None
    return hashes ^ (hashes >> _SHIFT)


def keys_to_columns(keys: Iterable[RangeKey]) -> list[Numbers]:
    """Return the columns of KEY of these keys, as the filter of a block needs them."""
    rows = np.array([*keys], np.int64).reshape(-1, len(KEY))
    return [np.ascontiguousarray(rows[:, i]) for i in range(len(KEY))]


# A block: ranges that are due much later, as compressed columns, about ten bytes each instead of six hundred.
#
# A block never changes, except that ranges are taken out of it.


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

_BY_SELECTION = ("first_row", "file_id", "topic_id", "reschedules")
"""The columns of KEY in the order in which they are compared. Few rows are left for the later ones."""

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
        if not maybe.any():  # as of almost all blocks, whose columns stay compressed
            return np.empty(0, np.int64)
        rows = self.list_remaining()
        columns = {name: column[maybe] for name, column in zip(KEY, keys, strict=True)}
        for name in _BY_SELECTION:
            rows = rows[np.isin(self._values(name, rows), columns[name])]
        key_set = set(zip(*(column.tolist() for column in columns.values()), strict=True))
        own = zip(*(self._values(name, rows).tolist() for name in KEY), strict=True)
        return rows[np.array([key in key_set for key in own], np.bool_)]

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


# All packed ranges: their blocks, and which ranges those have.


RESTORED_RANGES = 1 << 16
"""Ranges in a block that is restored from a table, before the first step."""

MAX_SMALL_BLOCKS = 16
"""More small blocks than this are merged, because each look-up asks every block."""

_PIECE = 4096
"""Ranges that are objects at the same time while all are iterated."""


class PackedRanges:
    """A list of blocks, and look-ups in it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def __len__(self) -> int:
        return sum(block.remaining_count for block in self.blocks)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __iter__(self) -> Iterator[WaitingRange]:
        """All ranges, as objects of their own. They stay packed."""
        for block in self.blocks:
            rows = block.list_remaining()
            for first in range(0, len(rows), _PIECE):
                yield from block.ranges(rows[first : first + _PIECE])

    @property
    def first_due_ms(self) -> int:
        """The time when the first range is due, or an earlier time; NEVER_MS without ranges."""
        return min((block.first_due_ms for block in self.blocks), default=NEVER_MS)

    def add(self, block: Block) -> None:
        """Add a block. If many blocks are small, some of them are merged."""
        self.blocks.append(block)
        small = sorted(
            (candidate for candidate in self.blocks if candidate.is_small),
            key=lambda candidate: candidate.remaining_count,
        )
        if len(small) > MAX_SMALL_BLOCKS:
            totals = accumulate(candidate.remaining_count for candidate in small)
            chosen = [
                candidate for candidate, total in zip(small, totals, strict=True) if total <= BLOCK_RANGES
            ] or small[:1]
            self.blocks = [candidate for candidate in self.blocks if candidate not in chosen]
            self.blocks.append(merge_blocks(chosen))

    def has_any(self, keys: Collection[RangeKey]) -> bool:
        """Return whether one of these ranges is packed."""
        return any(True for _ in self._locate(keys))

    def take(self, keys: Collection[RangeKey]) -> list[WaitingRange]:
        """Take out those of these ranges that are packed, and return them."""
        return [range_ for block, rows in self._locate(keys) for range_ in self._take_rows(block, rows)]

    def _locate(self, keys: Collection[RangeKey]) -> Iterator[tuple[Block, Numbers]]:
        columns = keys_to_columns(keys)
        hashes = hash_keys(columns)
        for block in list(self.blocks):
            rows = block.find(columns, hashes)
            if len(rows):
                yield block, rows

    def take_due(self, until_ms: int, most: int, most_blocks: int) -> list[WaitingRange]:
        """Take out ranges whose first row is due by then. `first_due_ms` says whether there are more.

        most, most_blocks: bound how long this takes.
        """
        ranges: list[WaitingRange] = []
        for block in [candidate for candidate in self.blocks if candidate.first_due_ms <= until_ms][:most_blocks]:
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
            self.blocks.remove(block)
        return ranges
