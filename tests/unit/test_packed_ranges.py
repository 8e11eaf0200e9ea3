"""Packed ranges: nothing is lost, and lookups cannot tell that a range was packed. Spans are sets of offsets."""

import random
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given

from lakemq.engine.protocol.values import packed
from lakemq.engine.protocol.values.delays import DelayedRange, RangeKey, WaitingRange
from lakemq.engine.protocol.values.deliveries import Spans, group_into_spans
from lakemq.engine.protocol.values.packed import PackedRanges, pack_ranges

BIG = 2**62

numbers = st.integers(0, 2**40)
published_ranges = st.builds(
    DelayedRange,
    topic_id=st.integers(1, 3),
    topic=st.just(""),
    partition=st.integers(0, 1000),
    file_id=st.integers(0, 2**63 - 1),
    footer_hash=st.none() | st.integers(-(2**63), 2**63 - 1),
    first_row=numbers,
    record_count=st.integers(1, 2**40),
    first_due_ms=numbers,
    last_due_ms=numbers,
    min_timestamp_ms=st.integers(-(2**40), 2**40),
    max_timestamp_ms=st.integers(-(2**40), 2**40),
    has_ttl=st.booleans(),
    reschedules=st.integers(0, 5),
).map(lambda range_: range_._replace(topic=f"topic {range_.topic_id}"))
waiting = st.builds(
    WaitingRange,
    published=published_ranges,
    step=st.integers(1, BIG),
    position=st.integers(0, 10**6),
    producer_id=st.none() | st.integers(0, BIG),
    producer_epoch=st.none() | st.integers(0, 2**31 - 1),
    transactional_id=st.none(),
    is_open=st.just(False),
    released_count=st.just(0) | st.integers(0, 9),
    cancelled=st.just(()) | st.lists(st.integers(0, 9), min_size=1).map(tuple),
    rescheduled=st.just(()),
)
some_ranges = st.lists(waiting, min_size=1, max_size=30, unique_by=lambda waiting_range: waiting_range.published.key)


def by_key(range_: WaitingRange) -> RangeKey:
    return range_.published.key


@examples(60)
@given(some_ranges, some_ranges, st.data())
def test_merged_blocks_have_the_remaining_ranges(
    first: list[WaitingRange], second: list[WaitingRange], data: st.DataObject
) -> None:
    second = [range_ for range_ in second if by_key(range_) not in set(map(by_key, first))]
    ranges, taken_keys = PackedRanges(), data.draw(st.sets(st.sampled_from([*map(by_key, first + second)])))
    for part in filter(None, (first, second)):
        ranges.add(pack_ranges(part))
    assert {by_key(range_) for range_ in ranges.take(taken_keys)} == taken_keys
    remaining = [range_ for range_ in (*first, *second) if by_key(range_) not in taken_keys]
    if remaining:
        ranges.add(packed.merge_blocks(ranges.blocks))
        assert sorted(ranges.blocks[-1].ranges(ranges.blocks[-1].list_remaining()), key=by_key) == sorted(
            remaining, key=by_key
        )


def make_range(number: int, due_ms: int, topic_id: int = 1) -> WaitingRange:
    published = DelayedRange(topic_id, f"t{topic_id}", 0, 7, None, number, 1, due_ms, due_ms, 0, 0)
    return WaitingRange(published, number, 0, None, None, None, False)


@pytest.mark.slow
def test_a_packed_range_takes_few_bytes() -> None:
    """The messages are sent one by one, a millisecond apart, and are due at any second of a year."""
    chance = random.Random(1)
    due_ms = [chance.randrange(365 * 24 * 3600) * 1000 for _ in range(4096)]
    block = pack_ranges([make_range(number, ms) for number, ms in enumerate(due_ms)])
    assert block.size_bytes / block.count < 8


def test_a_look_up_decompresses_no_block_that_cannot_have_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are a hundred and fifty blocks for ten million ranges."""
    ranges, key = PackedRanges(), make_range(500, 0).published.key
    ranges.blocks += [pack_ranges([make_range(10 * block + row, row) for row in range(10)]) for block in range(40)]
    decoded: list[int] = []
    decode_column = packed.decode_column
    monkeypatch.setattr(
        packed, "decode_column", lambda column, *of: decoded.append(column.low) or decode_column(column, *of)
    )
    assert not ranges.has_any([key])
    assert len(decoded) <= 5 * 8, "the filter is wrong about one key in seventy"


small = st.integers(0, 30)
edits = st.lists(st.tuples(st.booleans(), small, st.integers(1, 8)), max_size=20)


@examples()
@given(edits, small, st.integers(1, 12))
def test_spans_hold_the_offsets_that_a_set_holds(changes: list[tuple[bool, int, int]], first: int, length: int) -> None:
    spans, offsets = Spans(), set[int]()
    for adds, start, count in changes:
        if adds:
            spans.add(start, start + count)
            offsets |= set(range(start, start + count))
        else:
            spans.remove(start, start + count)
            offsets -= set(range(start, start + count))
    assert list(spans) == group_into_spans(offsets)
    assert len(spans) == len(offsets)
    span_offsets = set(range(first, first + length))
    assert list(spans.within(first, first + length)) == group_into_spans(span_offsets & offsets)
    assert list(spans.missing(first, first + length)) == group_into_spans(span_offsets - offsets)


@examples()
@given(st.sets(small))
def test_grouped_spans_hold_all_offsets_and_do_not_touch(offsets: set[int]) -> None:
    spans = group_into_spans(offsets)
    assert {offset for first, end in spans for offset in range(first, end)} == offsets
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))
