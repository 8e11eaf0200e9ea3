"""Golden vectors of three foreign hashes, and a comparison of the columnar and the scalar form."""

from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.protocol.hashing import Partitioner, murmur2_partition, partition_keys, xxhash64_partition

SCALAR = {"xxhash64": xxhash64_partition, "murmur2": murmur2_partition}
LARGEST = 2**31 - 1


def test_every_partitioner_has_a_scalar_form_here():
    assert set(SCALAR) == set(get_args(Partitioner))


# -- golden vectors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "spark"),
    [  # xxhash64(binary) of Spark 4.2.0
        (b"", -7444071767201028348),
        (b"a", -8582455328737087284),
        (b"N14228", 2818031054348419725),
        (b"12345678", 6863040065134489090),
        (b"flight-UA-1545", -3368535002642134087),
        (b"x" * 31, -1716462135722163746),
        (b"y" * 32, 5202031258905353636),
        (b"0b1ee1d4-3d1c-4f0e-9d0e-7b1b2f1c9a55", -2397509278648290530),
        (bytes(range(256)), -2156533592262354883),
    ],
)
def test_xxhash64_partition_equals_that_of_spark(key: bytes, spark: int):
    for count in (1, 7, 8, 1000, LARGEST):
        assert xxhash64_partition(key, count) == (spark % count + count) % count


# -- columns --------------------------------------------------------------------------------------------

partitioners = st.sampled_from(sorted(SCALAR))
counts = st.one_of(st.integers(1, 64), st.integers(1, LARGEST))
# Lengths around each branch of both hashes: words of 4 and 8 bytes, stripes of 32, tails, the long keys.
keys_of_any_length = st.one_of(
    st.binary(max_size=40), st.binary(min_size=90, max_size=100), st.sampled_from([b"k" * 4_096, b"k" * 4_097])
)
columns = st.lists(st.none() | keys_of_any_length, min_size=1, max_size=6)


def compute_expected_partitions(keys: list[bytes | None], count: int, partitioner: str, start: int) -> list[int]:
    """Return the partition of each key, computed one by one."""
    partition_by_key = {key: SCALAR[partitioner](key, count) for key in set(keys) if key is not None}
    partitions, nulls = [], 0
    for key in keys:
        partitions.append((start + nulls) % count if key is None else partition_by_key[key])
        nulls += key is None
    return partitions


@examples()
@given(columns, st.sampled_from([1, 40, 200]), counts, partitioners, st.integers(-(10**12), 10**12))
def test_column_of_keys_gets_the_partitions_of_its_keys(few, repeats, count, partitioner, start):
    # Keys are repeated, because only large groups of keys of one length are hashed together.
    keys = few * repeats
    array = pa.array([b"before", *keys, b"after"], pa.binary())[1:-1]
    partitions = partition_keys(array, count, partitioner, start)
    assert partitions.dtype == np.int32
    assert partitions.tolist() == compute_expected_partitions(keys, count, partitioner, start)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary(3),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_partitions_of_keys_do_not_depend_on_the_arrow_type(kind: pa.DataType):
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or "string" in str(kind)
    keys = [b"abc", None, b"xyz", b"abc", None]
    values = [key and key.decode() if text else key for key in keys]
    array = pa.array(values, kind)
    assert partition_keys(array, 12, "murmur2", 5).tolist() == compute_expected_partitions(keys, 12, "murmur2", 5)


def test_bytes_under_a_null_do_not_change_its_partition():
    stored = pa.array([b"abc", b"hidden", b"xyz"])
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(bytes([0b101])), *stored.buffers()[1:]])
    assert hidden.to_pylist() == [b"abc", None, b"xyz"]
    assert partition_keys(hidden, 12, "xxhash64", 4).tolist() == [
        xxhash64_partition(b"abc", 12),
        4,
        xxhash64_partition(b"xyz", 12),
    ]


@pytest.mark.parametrize("array", [pa.array([1, 2]), pa.array([[b"k"]]), pa.array([1, 2]).dictionary_encode()])
def test_keys_of_another_type_are_refused(array: pa.Array):
    with pytest.raises(TypeError, match="expected binary or string"):
        partition_keys(array, 3, "xxhash64", 0)
