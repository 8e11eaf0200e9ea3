"""Spans equal sets of offsets after any additions and removals."""

from itertools import pairwise

import hypothesis.strategies as st
from examples import examples
from hypothesis import given

from lakemq.engine.protocol.values.deliveries import Spans, group_into_spans

small = st.integers(0, 30)
edits = st.lists(st.tuples(st.booleans(), small, st.integers(1, 8)), max_size=20)


@examples()
@given(edits, small, st.integers(1, 12))
def test_spans_are_a_set(changes: list[tuple[bool, int, int]], first: int, length: int) -> None:
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
def test_spans_of_offsets_are_those_offsets_and_apart(offsets: set[int]) -> None:
    spans = group_into_spans(offsets)
    assert {offset for first, end in spans for offset in range(first, end)} == offsets
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))
