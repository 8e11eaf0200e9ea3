"""Placement of keys, groups and transactional ids: the same answer in every process, language and release.

Three hashes, each defined by another project and never to be changed here:

- `xxhash64` (the default partitioner) is Spark's `xxhash64(key)`: XXH64, seed 42, as a signed 64-bit number;
- `murmur2` is Kafka's `Utils.murmur2`, so that a queue keeps the placement that it had in Kafka;
- `java_hash` is `String.hashCode`, which shards groups and transactional ids.

The form for columns returns the same as the form for single keys. It hashes all keys of one length together, as strided
little-endian words straight from the Arrow buffer, so that numpy pays per word of a column and not per key. Measured on
one core, in million keys/s: 20 to 80 of one length (8 to 36 bytes), 6 to 25 of mixed lengths (to 64 bytes). One call
per key gives 4.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Partitioner: TypeAlias = Literal["xxhash64", "murmur2"]

XXHASH64_SEED = 42
SHARDS = 50
"""Kafka's default of `offsets.topic.num.partitions` and `transaction.state.log.num.partitions`."""

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
_POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes | memoryview) -> int:
    """Return Kafka's murmur2 of `data`, a signed 32-bit number. Source: `org.apache.kafka.common.utils.Utils`."""
    return _to_signed_number(_murmur2(data), 32)


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """Return the partition of Kafka's default partitioner, in `[0, partition_count)`. ValueError: no partitions."""
    return (_murmur2(key) & _POSITIVE) % _check_count(partition_count)


def xxhash64_partition(key: bytes, partition_count: int) -> int:
    """Return the same as Spark's `pmod(xxhash64(key), partition_count)`. ValueError: no partitions."""
    # Python's % takes the sign of the divisor, which is what pmod means.
    return _to_signed_number(_xxhash64(key), 64) % _check_count(partition_count)


def java_hash(text: str) -> int:
    """Return Java's `text.hashCode()`, a signed 32-bit number.

    It covers UTF-16 units, so a character beyond the first plane counts as its two surrogates.
    """
    h = 0
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    for unit in units.tolist():
        h = (31 * h + unit) & _MASK_32
    return _to_signed_number(h, 32)


def find_shard(name: str) -> int:
    """Return the shard of a group or transactional id, as a partition of `__consumer_offsets` in Kafka.

    That is `Utils.abs(name.hashCode()) % SHARDS`. The hash -2^31, which has no positive twin, counts as 0.
    """
    h = java_hash(name)
    return (0 if h == -(2**31) else abs(h)) % SHARDS


def partition_keys(
    keys: pa.Array | pa.ChunkedArray, partition_count: int, partitioner: Partitioner, start: int
) -> npt.NDArray[np.int32]:
    """Return the partition of each key: equal keys get equal partitions, null keys are dealt round-robin from `start`.

    The i-th null of the column gets `(start + i) % partition_count`, however the column is chunked, so a retry gets the
    same answer.

    Args:
        keys: binary or string (hashed as UTF-8), plain or dictionary-encoded.
        partition_count: at least 1.
        partitioner: the hash.
        start: the partition of the first null.

    Returns:
        int32, one per key.

    Raises:
        ValueError: for the count or the partitioner.
        TypeError: for the type of the keys.
    """
    count = _check_count(partition_count)
    if partitioner not in _HASHES:
        raise ValueError(f"partitioner: found {partitioner!r}, expected one of {', '.join(_HASHES)}")
    partitions = np.empty(len(keys), dtype=np.int32)
    done, dealt = 0, start % count
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        here = partitions[done : done + len(chunk)]
        column = _KeyColumn.from_array(chunk)
        here[:] = _hashes_to_partitions(_hash_column(column, partitioner), count, partitioner)
        here[column.nulls] = (dealt + np.arange(len(column.nulls))) % count
        done, dealt = done + len(chunk), (dealt + len(column.nulls)) % count
    return partitions


def partition_few_keys(
    keys: Sequence[bytes | None], partition_count: int, partitioner: Partitioner, start: int
) -> list[int]:
    """Return the same as `partition_keys`, faster for a few keys: one call each."""
    count = _check_count(partition_count)
    if partitioner not in _HASHES:
        raise ValueError(f"partitioner: found {partitioner!r}, expected one of {', '.join(_HASHES)}")
    of_one = xxhash64_partition if partitioner == "xxhash64" else murmur2_partition
    nulls = itertools.count(start)
    return [next(nulls) % count if key is None else of_one(key, count) for key in keys]


def _hashes_to_partitions(hashes: _Words, count: int, partitioner: Partitioner) -> _Words:
    """`pmod` of the signed number for xxhash64, the lower 31 bits modulo for murmur2: in `[0, count)`."""
    signed = hashes.view(np.int64) if partitioner == "xxhash64" else (hashes & np.uint32(_POSITIVE)).astype(np.int64)
    # numpy divides by a constant several times faster than it takes a remainder; // rounds down, hence pmod.
    partitions: _Words = signed - signed // count * count
    return partitions


# -- one key --------------------------------------------------------------------------------------------


def _xxhash64(key: bytes | memoryview) -> int:
    return xxhash.xxh64_intdigest(key, XXHASH64_SEED)


def _murmur2(data: bytes | memoryview) -> int:
    """murmur2 as an unsigned number."""
    m, length = _MURMUR2_M, len(data)
    h = (_MURMUR2_SEED ^ length) & _MASK_32
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & _MASK_32
        k = (k ^ (k >> 24)) * m & _MASK_32
        h = (h * m & _MASK_32) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & _MASK_32
    h = (h ^ (h >> 13)) * m & _MASK_32
    return h ^ (h >> 15)


# -- a column of keys -----------------------------------------------------------------------------------

_Words: TypeAlias = npt.NDArray[Any]  # one unsigned word per key: uint64 for xxhash64, uint32 for murmur2
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Positions: TypeAlias = npt.NDArray[np.int64]
_Load: TypeAlias = Callable[[str, int], _Words]  # (dtype, byte within the key) -> that word of every key

# Keys are hashed this many at a time, so that the words in flight stay in the cache.
_BLOCK = 16_384


@dataclass(frozen=True)
class _KeyColumn:
    """An Arrow array of keys as numpy sees it: key i is `data[offsets[i]:offsets[i + 1]]`.

    The bytes of a null key are whatever the buffer holds. They are hashed like a key and the result is overwritten,
    which is cheaper than leaving them out.
    """

    data: _Bytes
    offsets: _Positions
    nulls: _Positions  # the positions of null keys, ascending

    @classmethod
    def from_array(cls, array: pa.Array) -> _KeyColumn:
        """Return a view of the array that does not copy the bytes. TypeError: not binary."""
        kind = array.type
        value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (_is_plain(value_kind) or pa.types.is_fixed_size_binary(value_kind)):
            raise TypeError(f"keys: found {kind}, expected binary or string")
        if not _is_plain(kind):
            array = array.cast(pa.large_binary())
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offset_buffer, data_buffer = array.buffers()
        if len(array) == 0:  # its offsets may be missing altogether
            offsets = np.zeros(1, dtype=np.int64)
        else:
            stored = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
            offsets = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
        data = np.frombuffer(data_buffer if data_buffer is not None else b"", dtype=np.uint8)
        is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else ()
        return cls(data, offsets, np.flatnonzero(is_null))

    def by_length(self, longest: int) -> Iterator[tuple[int, slice | _Positions]]:
        """Yield all keys in groups of one length, with at most `_BLOCK` keys: (length, positions).

        All keys above `longest` bytes count as `longest + 1`.
        """
        lengths = np.minimum(np.diff(self.offsets), longest + 1)
        if len(lengths) and lengths.min() == lengths.max():
            for low in range(0, len(lengths), _BLOCK):
                yield int(lengths[0]), slice(low, low + _BLOCK)
            return
        # A stable sort of 16-bit numbers is a radix sort, several times faster than one of wider numbers.
        order = np.argsort(lengths.astype(np.uint16), kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            for low in range(0, len(group), _BLOCK):
                yield int(lengths[group[0]]), group[low : low + _BLOCK]


def _hash_column(column: _KeyColumn, partitioner: Partitioner) -> _Words:
    """Return the unsigned hash of each key: uint64 for xxhash64, uint32 for murmur2."""
    hasher = _HASHES[partitioner]
    hashes: _Words = np.empty(len(column.offsets) - 1, dtype=hasher.dtype)
    data = column.data.data
    for length, where in column.by_length(hasher.long_key):
        starts = column.offsets[:-1][where]
        count = len(starts)
        if count < hasher.few_keys or length > hasher.long_key:
            bounds = zip(starts.tolist(), column.offsets[1:][where].tolist(), strict=True)
            scalar_hashes = (hasher.of_one(data[low:high]) for low, high in bounds)
            hashes[where] = np.fromiter(scalar_hashes, dtype=hasher.dtype, count=count)
        elif isinstance(where, slice):
            load = _strided_loader(column.data, int(starts[0]), count, length)
            hashes[where] = hasher.of_many(load, count, length)
        else:
            hashes[where] = hasher.of_many(_gathering_loader(column.data, starts), count, length)
    return hashes


def _strided_loader(data: _Bytes, first: int, count: int, length: int) -> _Load:
    """Load words of `count` keys that follow each other from byte `first` on: a strided view, without a copy."""
    return lambda dtype, at: np.ndarray((count,), dtype, data, first + at, (length,))


def _gathering_loader(data: _Bytes, starts: _Positions) -> _Load:
    """Load words of keys that begin at `starts`, gathered from a view in which word i begins at byte i."""

    def load(dtype: str, at: int) -> _Words:
        words: _Words = np.ndarray((len(data) - np.dtype(dtype).itemsize + 1,), dtype, data, 0, (1,))
        gathered: _Words = words[starts + at]
        return gathered

    return load


def _xxhash64_many(load: _Load, count: int, length: int) -> _Words:
    """XXH64 of `count` keys of `length` bytes. Source: xxHash's doc/xxhash_spec.md, step by step."""
    zero: _Words = np.zeros(count, dtype=np.uint64)
    at = 0
    if length >= 32:
        lanes = [zero + _u64(XXHASH64_SEED + extra) for extra in (_P1 + _P2, _P2, 0, -_P1)]
        while at + 32 <= length:
            lanes = [_round(lane, load("<u8", at + 8 * i)) for i, lane in enumerate(lanes)]
            at += 32
        h = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
        for lane in lanes:
            h = (h ^ _round(zero, lane)) * _u64(_P1) + _u64(_P4)
    else:
        h = zero + _u64(XXHASH64_SEED + _P5)
    h = h + _u64(length)
    while at + 8 <= length:
        h = _rotate(h ^ _round(zero, load("<u8", at)), 27) * _u64(_P1) + _u64(_P4)
        at += 8
    if at + 4 <= length:
        h = _rotate(h ^ load("<u4", at) * _u64(_P1), 23) * _u64(_P2) + _u64(_P3)
        at += 4
    while at < length:
        h = _rotate(h ^ load("<u1", at) * _u64(_P5), 11) * _u64(_P1)
        at += 1
    for bits, prime in ((33, _P2), (29, _P3), (32, 1)):
        h = (h ^ (h >> np.uint64(bits))) * _u64(prime)
    return h


_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _u64(number: int) -> np.uint64:
    word: np.uint64 = np.uint64(number & _MASK_64)
    return word


def _rotate(words: _Words, bits: int) -> _Words:
    rotated: _Words = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated


def _round(lane: _Words, word: _Words) -> _Words:
    turned: _Words = _rotate(lane + word * _u64(_P2), 31) * _u64(_P1)
    return turned


def _murmur2_many(load: _Load, count: int, length: int) -> _Words:
    """murmur2 of `count` keys of `length` bytes, step by step what `_murmur2` does to one."""
    m = np.uint32(_MURMUR2_M)
    h: _Words = np.full(count, (_MURMUR2_SEED ^ length) & _MASK_32, dtype=np.uint32)
    whole = length & ~3
    for at in range(0, whole, 4):
        k = load("<u4", at) * m
        k = (k ^ (k >> np.uint32(24))) * m
        h = (h * m) ^ k
    if whole < length:
        for at in range(whole, length):
            h = h ^ (load("<u1", at).astype(np.uint32) << np.uint32(8 * (at - whole)))
        h = h * m
    h = (h ^ (h >> np.uint32(13))) * m
    h = h ^ (h >> np.uint32(15))
    return h


@dataclass(frozen=True)
class _Hash:
    """How keys are hashed under one partitioner.

    Below `few_keys` keys of one length, and above `long_key` bytes (itself below 2^16 - 1), one call per key is faster,
    as measured.
    """

    dtype: type[np.unsignedinteger[Any]]
    of_many: Callable[[_Load, int, int], _Words]
    of_one: Callable[[memoryview], int]
    few_keys: int
    long_key: int


_HASHES = {
    "xxhash64": _Hash(np.uint64, _xxhash64_many, _xxhash64, few_keys=128, long_key=96),
    "murmur2": _Hash(np.uint32, _murmur2_many, _murmur2, few_keys=8, long_key=4_096),
}


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether arrays of `kind` are offsets and bytes."""
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_binary or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _to_signed_number(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def _check_count(count: int) -> int:
    if count < 1:
        raise ValueError(f"number of partitions: found {count}, expected at least 1")
    return count
