"""Merging as columns: the choice of files, the places of their rows, and the segments that are joined."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given

from lakemq.engine.maintenance.merging import (
    LogBounds,
    choose_files_to_merge,
    coalesce_segments,
    find_pointed_rows,
    move_ranges,
    order_merged_rows,
)
from lakemq.tables.specs.messages import REJECTED_ROWS, RejectionRow
from lakemq.tables.specs.topics import COMPACTED, SEGMENTS, SegmentRow

MERGED = 99
FLOOR = 10
PLAIN: dict[str, Any] = {
    "kind": "data",
    "topic_id": 1,
    "topic": "t",
    "partition": 0,
    "file_id": MERGED,
    "footer_hash": 5,
    "file_partition": 0,
    "transactional": False,
    "origin": "publish",
}
SENT = {"producer_id": 4, "producer_epoch": 1, "base_sequence": 20}
"""The columns of a segment that a producer has sent."""


def make_segment(step: int, base_offset: int, first_row: int, record_count: int = 1, **more: Any) -> SegmentRow:
    columns = {**PLAIN, "min_timestamp_ms": 10 * step, "max_timestamp_ms": 10 * step + 5, **more}
    last_offset = base_offset + record_count - 1
    return SegmentRow(
        step=step,
        base_offset=base_offset,
        first_row=first_row,
        record_count=record_count,
        last_offset=last_offset,
        **columns,
    )


# -- choice of files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([], 2, set()),
        ([5], 1, set()),
        ([5, 5, 5], 4, set()),
        ([5, 5, 5], 3, {0, 1, 2}),
        ([100, 5, 5, 5], 3, {1, 2, 3}),
        ([15, 5, 5, 5], 3, {0, 1, 2, 3}),
        ([1, 5, 5, 5], 3, {0, 1, 2, 3}),
        ([16, 5, 5, 5, 1000], 3, {1, 2, 3}),
        ([20 << 20, 10 << 20, 15 << 20], 2, {1, 2}),
        ([20 << 20, 30 << 20], 2, set()),
    ],
)
def test_a_larger_file_is_merged_only_with_as_many_bytes_of_smaller_ones(
    sizes: list[int], least: int, expected: set[int]
) -> None:
    assert set(choose_files_to_merge(np.array(sizes, np.int64), least).tolist()) == expected


def coalesce(segments: pa.Table, floor: int) -> pa.Table:
    """Join neighbours in a namespace without other segments."""
    return coalesce_segments(segments, floor, LogBounds(lambda: [segments]))


# -- joined segments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("author", [{}, SENT])
def test_segments_that_touch_are_joined(author: dict[str, Any]) -> None:
    first, second = make_segment(3, 7, 0, 2, **author), make_segment(4, 9, 2, **_after(author, 2))
    (row,) = SEGMENTS.rows(coalesce(SEGMENTS.table([second, first]), FLOOR))
    assert row == make_segment(4, 7, 0, 3, **{**author, "min_timestamp_ms": 30, "max_timestamp_ms": 45})


def _after(author: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {**author, "base_sequence": author["base_sequence"] + count} if author else {}


@pytest.mark.parametrize(
    "changed",
    [
        {"topic_id": 2, "topic": "u"},
        {"partition": 1},
        {"file_id": MERGED + 1},
        {"file_partition": 1},
        {"append_time_ms": 1},
        {"ttl_from_ms": 1},
        {"ttl_ms": 1},
        {"decided_at_ms": 1},
        {"producer_id": 5},
        {"producer_id": None, "producer_epoch": None, "base_sequence": None},
        {"producer_epoch": 2},
        {"base_sequence": 23},
        {"base_sequence": None},
        {"transactional": True},
        {"origin": "delay"},
        {"dead_letter": "{}"},
        {"source_offset": 7},
        {"base_offset": 10, "last_offset": 10},
        {"first_row": 3},
        {"step": FLOOR + 1},
    ],
    ids=str,
)
def test_segments_that_differ_in_a_column_are_not_joined(changed: dict[str, Any]) -> None:
    second = {"step": 4, "base_offset": 9, "first_row": 2, **SENT, "base_sequence": 22}
    assert coalesce(SEGMENTS.table([make_segment(3, 7, 0, 2, **SENT), make_segment(**second)]), FLOOR).num_rows == 1
    last_offset = changed.pop("last_offset", None)
    segments = [make_segment(3, 7, 0, 2, **SENT), make_segment(**{**second, **changed})]
    assert last_offset is None or segments[1].last_offset == last_offset
    merged = SEGMENTS.rows(coalesce(SEGMENTS.table(segments), FLOOR))
    assert sorted(merged, key=lambda row: row.step) == segments


def test_segments_of_one_step_are_joined_above_the_floor() -> None:
    segments = [make_segment(FLOOR + 1, 0, 0), make_segment(FLOOR + 1, 1, 1)]
    assert coalesce(SEGMENTS.table(segments), FLOOR).num_rows == 1


def make_timed_segments(*bounds_ms: tuple[int, int]) -> list[SegmentRow]:
    """Return adjacent segments of two messages each, with the times of their first and last message."""
    return [
        replace(make_segment(1, 2 * i, 2 * i, 2), min_timestamp_ms=first_ms, max_timestamp_ms=last_ms)
        for i, (first_ms, last_ms) in enumerate(bounds_ms)
    ]


@pytest.mark.parametrize(
    ("bounds_ms", "expected_count"),
    [
        ([(0, 10), (20, 40_000), (100_000, 200_000)], 2),
        ([(0, 40_000), (140_001, 150_000), (160_000, 200_000)], 2),
        ([(0, 140_001), (0, 140_001), (200_000, 200_000)], 3),
        ([(0, 140_000), (140_001, 200_000)], 2),
    ],
)
def test_segments_are_joined_only_on_one_side_of_the_newest_minute(
    bounds_ms: list[tuple[int, int]], expected_count: int
) -> None:
    assert coalesce(SEGMENTS.table(make_timed_segments(*bounds_ms)), FLOOR).num_rows == expected_count


def test_newest_minute_of_a_topic_spans_all_its_partitions() -> None:
    older = make_timed_segments((1, 10), (50_000, 60_000))
    assert coalesce(SEGMENTS.table(older), FLOOR).num_rows == 1
    newer = replace(make_segment(2, 0, 0), partition=1, file_id=MERGED + 1, max_timestamp_ms=60_020, min_timestamp_ms=0)
    bounds = LogBounds(lambda: [SEGMENTS.table(older), SEGMENTS.table([newer])])
    assert coalesce_segments(SEGMENTS.table(older), FLOOR, bounds).num_rows == 2


def test_deleted_segments_are_not_joined_to_others() -> None:
    rows = SEGMENTS.table(make_timed_segments((0, 1), (2, 3), (4, 5), (6, 7)))
    cut = replace(make_segment(2, 4, 0), kind="log_start")
    bounds = LogBounds(lambda: [rows, SEGMENTS.table([cut])])
    assert coalesce_segments(rows, FLOOR, bounds).column("base_offset").to_pylist() == [0, 4]


def make_bare_segments(kind: str) -> list[SegmentRow]:
    """Return two neighbours without rows of a file."""
    bare = ("file_id", "footer_hash", "first_row", "file_partition", "min_timestamp_ms", "max_timestamp_ms")
    return [replace(make_segment(step, step, 0), **dict.fromkeys(bare), kind=kind) for step in (1, 2)]


@pytest.mark.parametrize("kind", ["commit", "abort", "log_start", "topic_deleted"])
def test_segments_that_are_no_data_stay_as_they_are(kind: str) -> None:
    rows = make_bare_segments(kind)
    assert SEGMENTS.rows(coalesce(SEGMENTS.table(rows), FLOOR)) == rows


def test_neighbouring_compacted_segments_become_one() -> None:
    first, second = make_bare_segments(COMPACTED)
    joined = replace(first, step=2, record_count=2, last_offset=second.last_offset)
    assert SEGMENTS.rows(coalesce(SEGMENTS.table([first, second]), FLOOR)) == [joined]


# -- places of rows -----------------------------------------------------------------------------------------

FILES = {7: 12, 11: 9, 40: 10}
"""The number of rows of each file id."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[SegmentRow], list[RejectionRow]]:
    """Draw the ranges of files in steps: rows that are shown once or twice, that are refused, or not used."""
    ends: dict[tuple[int, int], int] = {}
    ranges = []
    for file_id, count in FILES.items():
        row = 0
        while row < count:
            length = min(draw(st.integers(1, 4)), count - row)
            ranges.append((file_id, row, length, draw(st.sampled_from(["shown", "twice", "refused", "nothing"]))))
            row += length
    segments, dead = [], []
    for step, (file_id, row, length, fate) in enumerate(draw(st.permutations(ranges)), 1):
        if fate == "refused":
            rejection = {"source": "t", "error": "E", "reason": "r", "rejected_at_ms": step}
            dead.append(RejectionRow(step=step, file_id=file_id, first_row=row, record_count=length, **rejection))
        for topic_id in {"shown": (1,), "twice": (1, 2)}.get(fate, ()):
            partition, author = draw(st.integers(0, 1)), draw(st.sampled_from([{}, SENT]))
            base = ends.get((topic_id, partition), 0)
            ends[topic_id, partition] = base + length + draw(st.integers(0, 1))  # or a marker follows
            place = {"topic_id": topic_id, "topic": f"t{topic_id}", "partition": partition, "file_id": file_id}
            segments.append(make_segment(step, base, row, length, **{**place, **author}))
    return segments, dead


def _read_shown_rows(segments: pa.Table) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """Map (topic, partition, offset) to the columns that views show, and to the row's file and number."""
    shown = {}
    for row in SEGMENTS.rows(segments):
        for i in range(row.record_count):
            place = (row.topic_id, row.partition, row.base_offset + i)
            assert place not in shown
            sequence = None if row.base_sequence is None else row.base_sequence + i
            columns = (row.topic, row.producer_id, row.producer_epoch, sequence, row.transactional, row.origin)
            shown[place] = (*columns, row.append_time_ms, row.file_partition, (row.file_id, row.first_row + i))
    return shown


def _read_rejections(dead: pa.Table) -> dict[tuple[int, int], list[Any]]:
    rejections: dict[tuple[int, int], list[Any]] = {}
    for row in REJECTED_ROWS.rows(dead):
        for i in range(row.record_count):
            rejections.setdefault((row.file_id, row.first_row + i), []).append((row.step, row.source, row.error))
    return rejections


@pytest.mark.slow
@examples()
@given(histories(), st.integers(0, 30))
def test_merge_keeps_the_row_of_every_offset_and_rejection(
    history: tuple[list[SegmentRow], list[RejectionRow]], floor: int
) -> None:
    segments, dead = SEGMENTS.table(history[0]), REJECTED_ROWS.table(history[1])
    ids, counts = np.array(list(FILES)), np.array(list(FILES.values()))
    shown, refused = (find_pointed_rows(table, ids, counts) for table in (segments, dead))
    order, place = order_merged_rows(segments, shown, refused, int(counts.sum()))
    # the former place of each row of the merged file
    before = [(file_id, row) for file_id, count in FILES.items() for row in range(count)]
    former_rows = {(MERGED, row_number): before[row] for row_number, row in enumerate(order.tolist())}
    assert len(set(former_rows.values())) == len(former_rows)
    after = coalesce(move_ranges(segments, shown, place, MERGED), floor)
    assert {
        place: (*columns, former_rows[row]) for place, (*columns, row) in _read_shown_rows(after).items()
    } == _read_shown_rows(segments)
    after_dead = move_ranges(dead, refused, place, MERGED)
    assert {
        former_rows[row]: rejections for row, rejections in _read_rejections(after_dead).items()
    } == _read_rejections(dead)
    needed = {row for *_, row in _read_shown_rows(segments).values()} | set(_read_rejections(dead))
    assert set(former_rows.values()) == needed, "what nothing points at stays behind"
    for merged_row in SEGMENTS.rows(after):
        assert merged_row.last_offset == merged_row.base_offset + merged_row.record_count - 1
        assert merged_row.step <= max((row.step for row in history[0]), default=0)
    _assert_as_few_as_can_be(after, floor)


def _assert_as_few_as_can_be(segments: pa.Table, floor: int) -> None:
    merged_again = coalesce(segments, floor)
    assert merged_again.num_rows == segments.num_rows


@pytest.mark.parametrize(("first_row", "record_count"), [(-1, 2), (11, 2), (12, 1), (3, 0), (3, -1)])
def test_range_outside_its_file_is_refused(first_row: int, record_count: int) -> None:
    ranges = SEGMENTS.table([make_segment(1, 0, first_row, record_count, file_id=7)])
    with pytest.raises(ValueError, match="not in its file"):
        find_pointed_rows(ranges, np.array(list(FILES)), np.array(list(FILES.values())))
