"""The end offsets of a stream's next batch."""

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.client.format.offsets import StreamOffset, find_available_ranges, limit_ranges
from lakemq.engine.protocol.values.topics import Bounds
from lakemq.errors import InvalidConfig

remaining_ranges = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)).map(lambda pair: (pair[0], sum(pair))),
)


@pytest.mark.slow
@examples(300)
@given(remaining_ranges, st.none() | st.integers(1, 10**13))
def test_batch_has_as_many_offsets_as_it_may_and_no_more(
    ranges: dict[tuple[str, int], tuple[int, int]], limit: int | None
) -> None:
    ends = limit_ranges(ranges, limit)
    moved = {tp: ends[tp[0]][tp[1]] - start for tp, (start, _) in ranges.items()}
    remaining = {tp: end - start for tp, (start, end) in ranges.items()}
    assert all(0 <= moved[tp] <= remaining[tp] for tp in ranges)
    assert sum(moved.values()) == min(sum(remaining.values()), sum(remaining.values()) if limit is None else limit)
    assert limit_ranges(dict(reversed(ranges.items())), limit) == ends  # the order of the ranges makes no difference


def test_partitions_share_a_batch_in_proportion_to_their_messages() -> None:
    ranges = {("t", 0): (0, 900), ("t", 1): (5, 105), ("t", 2): (7, 7)}
    assert limit_ranges(ranges, 100) == {"t": {0: 90, 1: 15, 2: 7}}
    assert limit_ranges(ranges, 1) == {"t": {0: 1, 1: 5, 2: 7}}


@pytest.mark.parametrize(
    "stored",
    [
        {"t": {"0": 3}},  # the format of Spark's Kafka source
        {"logOffset": 4},
        {"offsets": {"t": {"0": 3}}},
        {"offsets": {"t": {"0": 3}}, "topic_ids": {}},
        {"offsets": {"t": {"zero": 3}}, "topic_ids": {"t": 1}},
        {"offsets": {"t": 3}, "topic_ids": {"t": 1}},
        5,
    ],
)
def test_checkpoint_of_another_source_is_refused(stored: Any) -> None:
    with pytest.raises(InvalidConfig, match="a new checkpoint"):
        StreamOffset.of(stored)


def test_deleted_offsets_take_no_room_in_a_batch() -> None:
    logs = {"t": {0: Bounds(1, 1000, 1008, 1009), 1: Bounds(1, 0, 8, 8)}}
    ranges = find_available_ranges(StreamOffset({"t": {0: 5, 1: 0}}, {"t": 1}), logs)
    assert ranges == {("t", 0): (1000, 1008), ("t", 1): (0, 8)}
    assert limit_ranges(ranges, 4) == {"t": {0: 1002, 1: 2}}
