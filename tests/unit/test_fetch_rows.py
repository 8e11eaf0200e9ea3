"""The rows of a plan are found in files and in steps. Both ways to join them agree."""

import gc
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from faulty_files import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.client.fetch import arrow
from lakemq.engine.client.fetch.arrow import FETCHED, fetch_arrow
from lakemq.engine.client.fetch.fetch_result import Message, _iterate_rows, to_message
from lakemq.engine.client.fetch.log_reader import StepRows
from lakemq.engine.client.fetch.lookup import PLAN_SCHEMA
from lakemq.engine.client.fetch.plan import FetchPlan
from lakemq.engine.client.fetch.rows import RowGroupCache
from lakemq.engine.namespace.data_file import new_data_file
from lakemq.engine.protocol.codec.letter import encode_rows
from lakemq.errors import FileTruncated
from lakemq.tables.specs.messages import BODY_SCHEMA, SEQUENCERS_FILES
from lakemq.tables.storage.object_stores.files import LocalFiles

PENDING, OTHER = SEQUENCERS_FILES | 5, 7


def make_body(first: int, count: int) -> pa.Table:
    """Return message bodies that contain their row number."""
    values = {
        "topic": ["t"] * count,
        "partition": [0] * count,
        "value": [f"{row}".encode() for row in range(first, first + count)],
        "timestamp": list(range(first, first + count)),
    }
    return pa.table([pa.array(values.get(f.name, [None] * count), f.type) for f in BODY_SCHEMA], schema=BODY_SCHEMA)


def make_parts(*bounds: tuple[int, int]) -> list[StepRows]:
    return [StepRows(first, end - first, encode_rows(make_body(first, end - first))) for first, end in bounds]


def make_plan(ranges: list[tuple[int, int, int]], held_parts: list[StepRows], footer: int | None = None) -> FetchPlan:
    """Return a plan. ranges: file id, first row and count; their offsets follow one another."""
    rows, offset = [], 100
    for file_id, first, count in ranges:
        columns = {"partition": 3, "base_offset": offset, "record_count": count, "last_offset": offset + count - 1}
        columns |= {"file_id": file_id, "first_row": first}
        rows.append(
            {**dict.fromkeys(PLAN_SCHEMA.names), **columns, "footer_hash": None if file_id == PENDING else footer}
        )
        offset += count
    return FetchPlan(
        "t",
        1,
        1,
        pa.Table.from_pylist(rows, PLAN_SCHEMA),
        (),
        {PENDING: held_parts} if held_parts else {},
        "read_committed",
    )


def list_values(table: pa.Table) -> list[int]:
    return [int(value) for value in table["value"].to_pylist()]


def test_range_outside_riding_parts_needs_its_file(tmp_path: Path) -> None:
    files, parts = LocalFiles(str(tmp_path)), make_parts((0, 3), (3, 9), (20, 25))
    for range_ in ((9, 1), (8, 2), (8, 13), (19, 2), (25, 1), (24, 2)):
        with pytest.raises(FileTruncated, match="is gone"):
            fetch_arrow(files, make_plan([(PENDING, *range_)], parts))


def test_riding_part_with_missing_rows_is_refused(tmp_path: Path) -> None:
    short = [StepRows(0, 5, encode_rows(make_body(0, 4)))]
    with pytest.raises(FileTruncated, match="not where they were"):
        fetch_arrow(LocalFiles(str(tmp_path)), make_plan([(PENDING, 0, 2)], short))


@pytest.mark.slow
def test_both_ways_to_join_ranges_return_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, chance = LocalFiles(str(tmp_path)), random.Random(11)
    with new_data_file(files, OTHER) as writer:
        for first in range(0, 300, 40):
            writer.write(make_body(first, min(40, 300 - first)))
    footer = writer.written(files).footer_hash
    riding = make_parts(*((first, first + 6) for first in range(0, 300, 6)))
    for _ in range(15):
        ranges = []
        for _ in range(chance.randrange(2, 30)):
            first = chance.randrange(299)
            ranges.append((chance.choice([OTHER, PENDING]), first, chance.randrange(1, min(90, 300 - first) + 1)))
        tables = []
        for few_rows in (0, 1 << 40):
            monkeypatch.setattr(arrow, "_FEW_ROWS", few_rows)
            tables.append(fetch_arrow(files, make_plan(ranges, riding, footer)))
        assert tables[0] == tables[1]
        assert list_values(tables[0]) == [row for _, first, count in ranges for row in range(first, first + count)]


FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


@pytest.mark.parametrize("headers", [[None] * 3, [None, [], [("a", b"1"), ("a", None)]]])
def test_iterated_messages_equal_the_rows_of_the_table(headers: list[Any]) -> None:
    keys, values, times = [None, b"k", b"k"], [b"v", None, b""], [FIRST, LAST, LAST]
    columns = [keys, values, ["t"] * 3, [0, 0, 7], [5, 6, 0], times, [0] * 3, headers]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, FETCHED, strict=True)]
    (batch,) = pa.table(arrays, schema=FETCHED).to_batches()
    rows = list(_iterate_rows(batch))
    messages = list(map(to_message, rows))
    assert messages == [
        Message("t", 0, 5, FIRST, None, b"v", ()),
        Message("t", 0, 6, LAST, b"k", None, ()),
        Message("t", 7, 0, LAST, b"k", b"", tuple(headers[2] or ())),
    ]
    assert all(message.timestamp.tzinfo is UTC for message in messages)
    for _ in range(3):  # one pass for each level of tuples
        gc.collect()
    assert not any(map(gc.is_tracked, rows)), "rows that wait cost the garbage collector nothing"


@pytest.mark.slow
@pytest.mark.extended
@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 2_900), st.integers(1, 900)), min_size=1, max_size=6),
    st.sampled_from([0, 20_000, 1 << 30]),
)
def test_fetch_with_a_cache_returns_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, polls: list[tuple[int, int]], most_bytes: int
) -> None:
    """The file has several row groups."""
    files, cache = FaultyFiles(str(tmp_path_factory.mktemp("kept"))), RowGroupCache(most_bytes)
    with new_data_file(files, OTHER) as writer:
        for first in range(0, 3_000, 700):
            writer.write(make_body(first, min(700, 3_000 - first)))
    footer = writer.written(files).footer_hash
    for first, count in polls:
        ranges = [(OTHER, first, min(count, 3_000 - first))]
        with_kept = fetch_arrow(files, make_plan(ranges, [], footer), cache)
        assert with_kept.equals(fetch_arrow(files, make_plan(ranges, [], footer)))
