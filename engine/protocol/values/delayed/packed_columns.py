"""Columns of numbers in few bytes: how a block of packed ranges keeps its columns, and finds keys in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .delays import RangeKey

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
