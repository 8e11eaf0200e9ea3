"""Changes of some offsets touch exactly the known parts of these offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.protocol.values.queues.partition_deliveries import Deliveries
from lakemq.engine.protocol.values.queues.stretches import DeliveryStatus, Stretch, change_stretches

stretches = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(DeliveryStatus), st.integers(0, 2)), max_size=6)
ranges = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5)


@given(st.integers(0, 3), stretches, ranges)
def test_find_stretches_returns_the_parts_that_a_change_touches(
    offset: int, parts: list[tuple[int, DeliveryStatus, int]], gaps: list[tuple[int, int]]
) -> None:
    tracked, spans, first = Deliveries(offset), list[tuple[int, int]](), 0
    for length, status, deliveries in parts:
        tracked.stretches.append(Stretch(offset, length, status, deliveries))
        offset += length
    for gap, length in gaps:
        spans.append((first + gap, length))
        first += gap + length
    noted_parts: list[Stretch] = []

    def note_part(part: Stretch) -> Stretch:
        noted_parts.append(part)
        return part

    change_stretches(tracked.stretches, spans, note_part)
    assert tracked.find_stretches(spans) == noted_parts
