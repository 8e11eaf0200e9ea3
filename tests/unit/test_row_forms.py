"""Lists and Arrow are two forms of one thing: the same message, partition, due time and refusal of the same row."""

from collections.abc import Callable
from typing import Any, TypeAlias

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from row_cases import CASES, DESTINATION, NOW_MS, RowCase, read_rows, stored_row, to_columns

from lakemq.engine.client.rows.body import ArrowBody, build_arrow_body
from lakemq.engine.client.rows.delay_rule import DelayRule
from lakemq.engine.client.rows.few_rows import FEW_BYTES, FEW_ROWS, Body, FewBody, Records, build_body, build_few_body
from lakemq.engine.client.rows.input_rows import list_columns, read_columns
from lakemq.engine.client.rows.placing import Copy, RequestedPartitions
from lakemq.engine.client.schemas import SchemaRule
from lakemq.engine.protocol.codec.few_rows import rows_to_table
from lakemq.errors import InvalidRecord
from lakemq.tables.specs.messages import HEADERS, MAX_TIMESTAMP_US, NOT_DELAYED
from lakemq.tables.specs.spec import TIME

Build: TypeAlias = Callable[[dict[str, pa.ChunkedArray]], tuple[Body, RequestedPartitions]]


def build_lists(columns: dict[str, pa.ChunkedArray]) -> tuple[Body, RequestedPartitions]:
    lists = list_columns(columns)
    assert lists is not None
    return build_few_body(lists, DESTINATION, NOW_MS)


def build_arrow(columns: dict[str, pa.ChunkedArray]) -> tuple[Body, RequestedPartitions]:
    return build_arrow_body(columns, DESTINATION, NOW_MS)


@pytest.mark.parametrize("build", [build_lists, build_arrow])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_both_forms_store_each_row_as_the_cases_say(build: Build, case: RowCase) -> None:
    body, requested = build(to_columns([case.row]))
    arranged = body.arrange([case.copy], requested, 0)
    assert read_rows(rows_to_table([arranged.rows])) == [stored_row(case)]
    assert [*arranged.partition] == [case.partition]
    assert [*(arranged.due_ms if arranged.due_ms is not None else [NOT_DELAYED])] == [case.due_ms]
    assert body.has_ttl == ("ttl_ms" in case.row)


texts = st.text(max_size=4)
payloads = st.none() | st.binary(max_size=40) | st.sampled_from([b"7", b'{"id": 1}', b'{"id": "x"}'])
names = st.none() | st.sampled_from(["QUEUE_PARTITION_KEY", "JMSXGroupID", "x", "", "DELAY_MS", "DELIVER_AT"])
numbers = st.sampled_from([b"0", b"5000", b"-1", b"1.5", b"9" * 18, b"9" * 19, "٣".encode(), b"1700000000124"])
headers = st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=4) | numbers), max_size=3)
bounds = [0, -1, 10**11 - 1, 10**11, 10**14 - 1, 10**14, MAX_TIMESTAMP_US, MAX_TIMESTAMP_US + 1, 2**63 - 1]
times = st.none() | st.integers(-(2**40), 2**40) | st.sampled_from(bounds)
partitioners = st.sampled_from(["xxhash64", "murmur2"])
delay_rules = st.builds(
    DelayRule,
    st.sampled_from([1, 1000, 3_600_000]),
    st.sampled_from([(), (5,), (1_000, 5_000, 7_200_000)]),
    st.booleans(),
)
far = 10**15
delays = st.none() | st.integers(-1, 3) | st.sampled_from([5_001, 7_200_001, far, 2**63 - 1, -(2**63)])
ttls = st.none() | st.integers(-1, 3) | st.sampled_from([2**31 - 1, -(2**31)])
delivery_ms = st.none() | st.integers(-1, 3) | st.sampled_from([NOW_MS, NOW_MS + 5_001, far, 2**63 - 1, -(2**63)])
schemas = st.none() | st.sampled_from([SchemaRule("json", '{"type": "integer"}'), SchemaRule("ddl", "id INT")])
copies = st.lists(
    st.builds(Copy, st.integers(1, 5), partitioners, st.integers(0, 60), st.just((0,)), delay_rules, schemas),
    min_size=1,
    max_size=3,
)
binaries = st.sampled_from([pa.binary(), pa.large_binary()])
strings = st.sampled_from([pa.string(), pa.large_string()])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw tables that a user may publish, with all types of columns that are accepted."""
    count = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[Any], kind: Any) -> pa.Array:
        return pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind)

    def text_or_bytes() -> pa.Array:
        if draw(st.booleans()):
            return column(st.none() | texts, draw(strings))
        return column(payloads, draw(binaries))

    columns: dict[str, Any] = {"value": text_or_bytes()}
    if draw(st.booleans()):
        columns["key"] = text_or_bytes()
    if draw(st.booleans()):
        columns["headers"] = column(headers, HEADERS)
    if draw(st.booleans()):
        columns["timestamp"] = column(times, TIME)
    if draw(st.booleans()):
        columns["partition"] = column(st.none() | st.integers(-3, 6), draw(st.sampled_from([pa.int32(), pa.int64()])))
    if draw(st.booleans()):
        in_ms = draw(st.booleans())
        columns["deliver_at"] = column(delivery_ms if in_ms else times, pa.int64() if in_ms else TIME)
    if draw(st.booleans()):
        columns["delay_ms"] = column(delays, pa.int64())
    if draw(st.booleans()):
        columns["ttl_ms"] = column(ttls, draw(st.sampled_from([pa.int32(), pa.int64()])))
    return pa.table(columns)


@pytest.mark.slow
@examples(300)
@given(tables(), copies, st.integers(0, 100))
def test_both_forms_place_and_refuse_rows_alike(table: pa.Table, copies: list[Copy], start: int) -> None:
    columns = read_columns(table)
    (few, few_requested), (body, requested) = build_lists(columns), build_arrow(columns)
    assert isinstance(few, FewBody)
    assert few.to_arrow().table.equals(body.to_arrow().table)
    arranged, expected = few.arrange(copies, few_requested, start), body.arrange(copies, requested, start)
    assert rows_to_table([arranged.rows]).equals(rows_to_table([expected.rows]).combine_chunks())
    assert arranged.runs == expected.runs
    assert arranged.reasons == expected.reasons
    assert [*arranged.partition] == [*expected.partition]
    assert (arranged.due_ms is None) == (expected.due_ms is None)
    assert [*(arranged.due_ms or ())] == [*(() if expected.due_ms is None else expected.due_ms)]


@examples()
@given(
    st.lists(
        st.tuples(
            payloads,
            payloads,
            headers.filter(lambda listed: listed != []),
            times,
            st.none() | st.integers(0, 9),
            st.tuples(times, st.none()) | st.tuples(st.none(), st.none() | st.integers(0, 2**62)),
            st.none() | st.integers(0, 2**40),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_records_become_the_same_rows_in_both_forms(rows: list[tuple[Any, ...]]) -> None:
    records = Records()
    for key, value, listed, time_us, partition, delay, ttl_ms in rows:
        plain = listed is time_us is partition is ttl_ms is None and delay == (None, None)
        records.add(key, value, None if plain else (listed, partition, time_us, *delay, ttl_ms))
    few, partitions = records.build_body("t", 10, NOW_MS)
    many, expected = records.build_body("t", FEW_BYTES + 1, NOW_MS)
    assert isinstance(few, FewBody)
    assert isinstance(many, ArrowBody)
    assert few.to_arrow().table.equals(many.table.combine_chunks())
    assert (partitions is None) == (expected is None)
    assert [*(() if partitions is None else partitions)] == [*(() if expected is None else expected)]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"key": ["k"]}),
        pa.table({"value": ["x"], "other": [1]}),
        pa.table({"value": [1]}),
        pa.table({"value": ["x"], "partition": [1.5]}),
        pa.table({"value": ["x"], "headers": pa.array([["h"]], pa.list_(pa.string()))}),
        pa.table([["x"], ["y"]], names=["value", "value"]),
    ],
)
def test_bad_columns_are_refused_in_both_forms(table: pa.Table) -> None:
    for count in (1, FEW_ROWS + 1):
        with pytest.raises(InvalidRecord):
            build_body(pa.concat_tables([table] * count), "t", NOW_MS)


def test_text_that_is_not_utf8_is_stored_as_bytes() -> None:
    """Arrow accepts bytes as text that are not UTF-8, without a check."""
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    few, _ = build_body(pa.table({"value": bad}), "t", NOW_MS)
    assert isinstance(few, FewBody)
    assert few.values == [b"\xff"]
    entries = pa.StructArray.from_arrays([bad, pa.array([b"v"])], fields=list(HEADERS.value_type))
    listed = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries).cast(HEADERS)
    body, _ = build_body(pa.table({"value": ["x"], "headers": listed}), "t", NOW_MS)
    assert isinstance(body, ArrowBody)
