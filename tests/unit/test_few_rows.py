"""Few rows travel without Arrow: they come out of a letter as they went in, and alien bytes cause only a ValueError."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import example, given
from protocol_harness import letter_bytes

from lakemq.engine.client.requests.requester import PendingRequest, build_letter
from lakemq.engine.protocol.codec.few_rows import (
    MAX_FEW_BYTES,
    FewRows,
    decode_few_rows,
    encode_few_rows,
    rows_to_table,
)
from lakemq.engine.protocol.codec.letter import decode_letter
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.tables.specs.messages import BODY_SCHEMA

texts = st.text(max_size=4)
payloads = st.none() | st.binary(max_size=40)
names = st.none() | st.sampled_from(["QUEUE_PARTITION_KEY", "JMSXGroupID", "x", "", "DELAY_MS", "DELIVER_AT"])
headers = st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=4)), max_size=3)
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
def test_few_rows_survive_a_letter_unchanged(rows: FewRows) -> None:
    letter = Letter("c", 7, [InitProducer()], 5)
    assert decode_letter(letter_bytes(letter, rows)) == (letter, rows)
    rows_to_table([rows]).validate(full=True)


@examples()
@given(few_rows())
def test_nbytes_of_few_rows_covers_their_encoding(rows: FewRows) -> None:
    assert len(encode_few_rows(rows)) <= rows.nbytes + sum(len(topic.encode()) for topic in rows.topic) + 40


def make_row(value: bytes) -> FewRows:
    return FewRows(["t"], [0], [None], [value], [5])


def test_rows_of_a_letter_keep_their_order_in_both_forms() -> None:
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


def test_many_few_rows_travel_as_arrow_within_the_size_of_a_letter() -> None:
    batch = [PendingRequest.of(InitProducer(), make_row(bytes(60_000))) for _ in range(40)]
    _, rows = decode_letter(build_letter("c", 1, batch, 5))
    assert isinstance(rows, pa.Table)
    assert rows.num_rows == 40


GOOD: list[Any] = [["t"], [0], [None], [b"v"], [5], None]


BAD: list[Any] = [
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
]


def test_malformed_few_rows_raise_value_error() -> None:
    assert decode_few_rows(memoryview(msgspec.msgpack.encode(GOOD))) == make_row(b"v")
    for bad in BAD:
        with pytest.raises(ValueError, match="not message bodies"):
            decode_few_rows(memoryview(msgspec.msgpack.encode(bad)))


@examples(300)
@given(st.binary(max_size=60))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91" * 100_000)
def test_random_bytes_raise_value_error(alien: bytes) -> None:
    for text in (alien, encode_few_rows(make_row(b"v")) + alien + b"\x00"):
        with pytest.raises(ValueError, match=r"\w"):
            decode_few_rows(memoryview(text))


def test_too_many_bytes_are_refused_before_decoding() -> None:
    text = memoryview(encode_few_rows(make_row(bytes(MAX_FEW_BYTES))))
    with pytest.raises(ValueError, match="expected at most"):
        decode_few_rows(text)


def test_table_of_few_rows_has_all_message_columns() -> None:
    assert rows_to_table([]).schema == rows_to_table([make_row(b"v")]).schema == BODY_SCHEMA
