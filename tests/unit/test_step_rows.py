"""The rows of a step, as msgpack or as an Arrow stream: readers get the same table."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from lakemq.engine.protocol.codec import step_rows
from lakemq.engine.protocol.codec.few_rows import FewRows, rows_to_table
from lakemq.engine.protocol.codec.letter_rows import encode_rows
from lakemq.engine.protocol.codec.step_object import StepHead, add_checksum, decode_step_object
from lakemq.engine.protocol.codec.step_rows import decode_step_rows, encode_step_rows, join_step_rows
from lakemq.engine.protocol.values.journal import FORMAT_VERSION
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.specs.segments import SEGMENT_SCHEMA


def make_rows(value: bytes | None) -> FewRows:
    return FewRows(
        topic=["t"],
        partition=[3],
        key=[None],
        value=[value],
        timestamp_us=[1_732_176_000_000_000],
        headers=[[("name", b"header"), ("empty", None)]],
        deliver_at_us=[None],
        ttl_ms=[60_000],
    )


def test_rows_of_many_steps_come_in_their_order_whatever_their_form() -> None:
    as_arrow = rows_to_table([make_rows(b"c"), make_rows(None)])
    bodies = [encode_step_rows(rows) for rows in (make_rows(b"a"), make_rows(b"b"), as_arrow, make_rows(b"e"))]
    rows = decode_step_rows(bodies)
    assert rows.schema == BODY_SCHEMA
    assert rows.column("value").to_pylist() == [b"a", b"b", b"c", None, b"e"]
    assert rows.slice(2, 2).equals(as_arrow)
    assert rows.slice(0, 1).equals(rows_to_table([make_rows(b"a")]))


def test_many_rows_are_joined_in_arrow_and_few_are_not() -> None:
    few, many = (join_step_rows([make_rows(b"%d" % number) for number in range(count)]) for count in (2, 200))
    assert isinstance(few, FewRows)
    assert isinstance(many, pa.Table)
    assert many.column("value").to_pylist() == [b"%d" % number for number in range(200)]
    assert decode_step_rows([encode_step_rows(few)]).column("value").to_pylist() == [b"0", b"1"]
    assert join_step_rows([]) is None


def test_one_row_takes_a_fraction_of_the_bytes_of_an_arrow_stream() -> None:
    rows = make_rows(b"x" * 100)
    assert 5 * len(encode_step_rows(rows)) < len(encode_rows(rows_to_table([rows])))


def test_rows_whose_msgpack_readers_would_refuse_become_an_arrow_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(b"x" * 1000)
    assert not encode_step_rows(rows).startswith(step_rows._ARROW_START)
    monkeypatch.setattr(step_rows, "MAX_FEW_BYTES", 1000)
    body = encode_step_rows(rows)
    assert body.startswith(step_rows._ARROW_START)
    assert decode_step_rows([body]).equals(rows_to_table([rows]))


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"\xff\xff\xff\xff", b"\x98\xc0", encode_step_rows(make_rows(b"a"))[:-1]]
)
def test_invalid_rows_are_refused(body: bytes) -> None:
    with pytest.raises((ValueError, OSError, pa.ArrowException)):
        decode_step_rows([body])


def test_step_with_compressed_segments_is_refused_before_they_are_unpacked() -> None:
    """A step of 100 kB could have segments of gigabytes, for each reader and at each start."""
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SEGMENT_SCHEMA, options=options) as writer:
        writer.write_table(pa.table([pa.nulls(10_000, field.type) for field in SEGMENT_SCHEMA], SEGMENT_SCHEMA))
    head = StepHead(FORMAT_VERSION, "namespace", "nonce", 1, 0, "anna", 1, 1_000)
    body = add_checksum(
        msgspec.msgpack.encode((head, [], sink.getvalue().to_pybytes(), None, msgspec.Raw(b"\xcf" + bytes(8))))
    )
    with pytest.raises(ValueError, match="found compressed rows"):
        decode_step_object(body)
