"""Few rows travel without Arrow: they yield the same messages, and alien bytes cause only a ValueError."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import example, given
from protocol_harness import letter_bytes

from lakemq.engine.client.requester import PendingRequest, build_letter
from lakemq.engine.client.rows.delay_rule import DelayRule
from lakemq.engine.client.rows.few_rows import FEW_BYTES, FEW_ROWS, arrange_few, few_body_from_table
from lakemq.engine.client.rows.placing import Copy, arrange
from lakemq.engine.client.rows.record import Records
from lakemq.engine.client.rows.request import build_body
from lakemq.engine.client.schemas.schema_rule import SchemaRule
from lakemq.engine.protocol.codec.few_rows import (
    MAX_FEW_BYTES,
    FewRows,
    decode_few_rows,
    encode_few_rows,
    rows_to_table,
)
from lakemq.engine.protocol.codec.letter import decode_letter
from lakemq.engine.protocol.hashing import partition_few_keys, partition_keys
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.tables.specs.messages import BODY_SCHEMA, HEADERS, MAX_TIMESTAMP_US
from lakemq.tables.specs.spec import TIME

NOW_MS = 1_700_000_000_123

texts = st.text(max_size=4)
payloads = st.none() | st.binary(max_size=40) | st.sampled_from([b"7", b'{"id": 1}', b'{"id": "x"}'])
names = st.none() | st.sampled_from(["QUEUE_PARTITION_KEY", "JMSXGroupID", "x", "", "DELAY_MS", "DELIVER_AT"])
numbers = st.sampled_from([b"0", b"5000", b"-1", b"1.5", b"9" * 18, b"9" * 19, "٣".encode(), b"1700000000124"])
headers = st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=4) | numbers), max_size=3)
bounds = [0, -1, MAX_TIMESTAMP_US, MAX_TIMESTAMP_US + 1, 2**63 - 1]
times = st.none() | st.integers(-(2**40), 2**40) | st.sampled_from(bounds)
partitioners = st.sampled_from(["xxhash64", "murmur2"])
delay_rules = st.builds(
    DelayRule,
    st.sampled_from([1, 1000, 3_600_000]),
    st.sampled_from([(), (5,), (1_000, 5_000, 7_200_000)]),
    st.booleans(),
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


LAST_MOMENT = pa.table({"value": ["x"], "timestamp": pa.array([2**63 - 1], TIME), "delay_ms": pa.array([2**63 - 1])})


@examples(300)
@given(tables(), copies, st.integers(0, 100))
@example(LAST_MOMENT, [Copy(1, "xxhash64", 60, (0,), DelayRule(1))], 0)
def test_few_rows_are_placed_and_refused_as_they_are_in_arrow(table: pa.Table, copies: list[Copy], start: int) -> None:
    few = few_body_from_table(table, "t", NOW_MS)
    assert few is not None
    body, partitions = build_body(table, "t", NOW_MS)
    assert few[0].to_arrow().equals(body)
    arranged, expected = arrange_few(copies, *few, start), arrange(copies, body, partitions, start, by_slot=True)
    assert rows_to_table([arranged.rows]).equals(expected.rows.combine_chunks())
    assert arranged.runs == expected.runs
    assert arranged.partition == expected.partition.tolist()
    assert arranged.reasons == expected.reasons
    assert arranged.due_ms == (None if expected.due_ms is None else expected.due_ms.tolist())


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
def test_records_are_the_same_whether_they_are_few_or_not(rows: list[tuple[Any, ...]]) -> None:
    records = Records()
    for key, value, listed, time_us, partition, delay, ttl_ms in rows:
        plain = listed is time_us is partition is ttl_ms is None and delay == (None, None)
        records.add(key, value, None if plain else (listed, partition, time_us, *delay, ttl_ms))
    few, partitions = records.body("t", 10, NOW_MS)
    many, expected = records.body("t", FEW_BYTES + 1, NOW_MS)
    assert isinstance(many, pa.Table)
    assert not isinstance(few, pa.Table)
    assert few.to_arrow().equals(many.combine_chunks())
    assert (partitions is None) == (expected is None)
    assert partitions is None or partitions == expected.tolist()


@examples()
@given(st.lists(st.none() | st.binary(max_size=70), max_size=20), st.integers(1, 9), partitioners, st.integers(0, 50))
def test_a_few_keys_get_the_partitions_of_a_column(
    keys: list[bytes | None], count: int, partitioner: Any, start: int
) -> None:
    column = partition_keys(pa.array(keys, pa.binary()), count, partitioner, start)
    assert partition_few_keys(keys, count, partitioner, start) == column.tolist()


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"value": pa.array([], pa.binary())}),
        pa.table({"value": ["x"] * (FEW_ROWS + 1)}),
        pa.table({"value": ["x" * (FEW_BYTES + 1)]}),
        pa.table({"key": ["k"]}),
        pa.table({"value": ["x"], "other": [1]}),
        pa.table({"value": [1]}),
        pa.table({"value": ["x"], "timestamp": [1]}),
        pa.table({"value": ["x"], "partition": [1.5]}),
        pa.table({"value": pa.array(["x"]).dictionary_encode()}),
        pa.table({"value": ["x"], "headers": pa.array([None], pa.list_(pa.string()))}),
        pa.table([["x"], ["y"]], names=["value", "value"]),
    ],
)
def test_what_is_not_few_or_not_plain_is_left_to_arrow(table: pa.Table) -> None:
    assert few_body_from_table(table, "t", NOW_MS) is None


def test_text_that_is_none_is_as_in_arrow() -> None:
    """Arrow accepts bytes as text that are not UTF-8, without a check."""
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    few = few_body_from_table(pa.table({"value": bad}), "t", NOW_MS)
    assert few is not None
    assert few[0].values == [b"\xff"]
    entries = pa.StructArray.from_arrays([bad, pa.array([b"v"])], fields=list(HEADERS.value_type))
    listed = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries).cast(HEADERS)
    assert few_body_from_table(pa.table({"value": ["x"], "headers": listed}), "t", NOW_MS) is None


# -- in a letter --------------------------------------------------------------------------------------------

int64s = st.integers(-(2**63), 2**63 - 1)


@st.composite
def few_rows(draw: st.DrawFn) -> FewRows:
    count = draw(st.integers(0, 4))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    partitions = column(st.integers(-(2**31), 2**31 - 1))
    listed = column(headers) if draw(st.booleans()) else None
    return FewRows(column(texts), partitions, column(payloads), column(payloads), column(int64s), listed)


@examples()
@given(few_rows())
def test_few_rows_come_out_of_a_letter_as_they_went_in(rows: FewRows) -> None:
    letter = Letter("c", 7, [InitProducer()], 5)
    assert decode_letter(letter_bytes(letter, rows)) == (letter, rows)
    rows_to_table([rows]).validate(full=True)


@examples()
@given(few_rows())
def test_few_rows_are_counted_for_no_less_than_their_bytes(rows: FewRows) -> None:
    assert len(encode_few_rows(rows)) <= rows.nbytes + sum(len(topic.encode()) for topic in rows.topic) + 40


def make_row(value: bytes) -> FewRows:
    return FewRows(["t"], [0], [None], [value], [5])


def test_rows_of_a_letter_keep_their_order_whatever_they_travel_as() -> None:
    parts = [make_row(b"a"), make_row(b"b"), rows_to_table([make_row(b"c"), make_row(b"d")]), make_row(b"e")]
    batch = [PendingRequest.of(InitProducer(), rows) for rows in parts]
    _, few = decode_letter(build_letter("c", 1, batch[:2], 5))
    _, mixed = decode_letter(build_letter("c", 1, batch, 5))
    assert isinstance(few, FewRows)
    assert few.value == [b"a", b"b"]
    assert isinstance(mixed, pa.Table)
    assert mixed.column("value").to_pylist() == [b"a", b"b", b"c", b"d", b"e"]
    together = rows_to_table([few, mixed, make_row(b"f")]).column("value").to_pylist()
    assert b"".join(together) == b"ababcdef"


def test_many_that_are_few_travel_as_arrow_so_that_a_letter_is_no_larger_than_it_may_be() -> None:
    batch = [PendingRequest.of(InitProducer(), make_row(bytes(60_000))) for _ in range(40)]
    _, rows = decode_letter(build_letter("c", 1, batch, 5))
    assert isinstance(rows, pa.Table)
    assert rows.num_rows == 40


GOOD: list[Any] = [["t"], [0], [None], [b"v"], [5], None]


@pytest.mark.parametrize(
    "bad",
    [
        GOOD[:4],
        [*GOOD, []],
        [["t", "u"], *GOOD[1:]],
        [*GOOD[:5], [None, None]],
        [*GOOD[:5], [[["k"]]]],
        [*GOOD[:5], [[["k", "text"]]]],
        [[b"t"], *GOOD[1:]],
        [[None], *GOOD[1:]],
        [["t"], [2**31], *GOOD[2:]],
        [*GOOD[:4], [2**63], None],
        [*GOOD[:4], [None], None],
        [*GOOD[:4], [1.5], None],
        {"topic": ["t"]},
        None,
    ],
)
def test_what_is_no_message_body_is_a_value_error(bad: Any) -> None:
    assert decode_few_rows(memoryview(msgspec.msgpack.encode(GOOD))) == make_row(b"v")
    with pytest.raises(ValueError, match="not message bodies"):
        decode_few_rows(memoryview(msgspec.msgpack.encode(bad)))


@examples(300)
@given(st.binary(max_size=60))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91" * 100_000)
def test_alien_bytes_are_a_value_error(alien: bytes) -> None:
    for text in (alien, encode_few_rows(make_row(b"v")) + alien + b"\x00"):
        with pytest.raises(ValueError, match=r"\w"):
            decode_few_rows(memoryview(text))


def test_more_bytes_than_a_few_are_refused_before_they_are_decoded() -> None:
    text = memoryview(encode_few_rows(make_row(bytes(MAX_FEW_BYTES))))
    with pytest.raises(ValueError, match="expected at most"):
        decode_few_rows(text)


def test_a_table_has_all_columns_of_a_message() -> None:
    assert rows_to_table([]).schema == rows_to_table([make_row(b"v")]).schema == BODY_SCHEMA
