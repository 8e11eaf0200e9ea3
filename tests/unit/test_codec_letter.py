"""Encoding of letters and answers: alien bytes cause a ValueError and nothing else."""

import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import example, given
from protocol_harness import Harness, letter_bytes, plain
from unit.protocol_values import requests, results

from lakemq.engine.protocol import errors, machine
from lakemq.engine.protocol.codec.few_rows import FewRows
from lakemq.engine.protocol.codec.letter import (
    compute_checksum,
    decode_answer,
    decode_letter,
    encode_answer,
    encode_letter,
    encode_request,
)
from lakemq.engine.protocol.errors import InvalidRequest, Refusal
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.clients import Answer, Letter, Unreadable
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteRecords
from lakemq.tables.specs.messages import BODY_SCHEMA


def body(values: list[bytes | None]) -> pa.Table:
    filled: dict[str, Any] = {"topic": "t", "partition": 0, "timestamp": 5}
    columns = [values if f.name == "value" else [filled.get(f.name)] * len(values) for f in BODY_SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, BODY_SCHEMA, strict=True)], schema=BODY_SCHEMA)


@examples()
@given(st.lists(requests, max_size=3), st.none() | st.lists(st.none() | st.binary(max_size=5), max_size=3))
def test_letter_survives_encoding(sent_requests: list[AnyRequest], values: list[bytes | None] | None) -> None:
    letter, rows = Letter("c", 7, sent_requests, 5), None if values is None else body(values)
    assert decode_letter(letter_bytes(letter, rows)) == (letter, rows)


FEW_ROWS = FewRows(["t"], [0], [None], [b"abc"], [5], None)
GOOD = letter_bytes(Letter("c", 1, [InitProducer()], 0), body([b"abc", None]))


def seal(parts: bytes) -> bytes:
    """Return the letter with these first eight bytes and contents, and with their checksum between the two."""
    return parts[:8] + compute_checksum(parts) + parts[8:]


def unseal(letter: bytes) -> bytes:
    """Return the letter without its checksum."""
    return letter[:8] + letter[16:]


UNSEALED = unseal(GOOD)


@pytest.mark.parametrize("rows", [body([b"abc", None]), FEW_ROWS, None])
def test_letter_with_a_flipped_bit_is_refused(rows: Any) -> None:
    letter = letter_bytes(Letter("c", 1, [CreateTopic("t", 1)], 0), rows)
    assert decode_letter(letter)[0].requests == [CreateTopic("t", 1)]
    for place in range(len(letter)):
        for bit in range(8):
            changed = bytearray(letter)
            changed[place] ^= 1 << bit
            with pytest.raises(ValueError, match="not a letter"):
                decode_letter(bytes(changed))


DEEP = b'{"client_id":"c","number":1,"sent_at_ms":0,"requests":[[0,{"config":{"a":' + b"[" * 1_000_000


@examples(300)
@given(st.binary(max_size=60))
@example(b"")
@example(b"LMQC")
@example(b"LMQC\xff\xff\xff\xff{}")
@example(b"LMQC\x02\x00\x00\x00{}")
@example(b"LMQC\x04\x00\x00\x00null")
@example(b"LMQF" + UNSEALED[4:])
@example(len(DEEP).to_bytes(4, "little") + DEEP)
def test_bytes_that_are_no_letter_raise_value_error(alien: bytes) -> None:
    for whole in (alien, seal(alien), seal(b"LMQC" + alien), seal(b"LMQF" + alien)):
        with pytest.raises(ValueError, match=r"\w"):
            decode_letter(whole)


@examples(300)
@given(st.integers(0, len(UNSEALED) - 1), st.integers(0, 255), st.booleans())
def test_damaged_letter_raises_value_error_or_is_read_whole(position: int, byte: int, cut: bool) -> None:
    damaged = UNSEALED[:position] if cut else UNSEALED[:position] + bytes([byte]) + UNSEALED[position + 1 :]
    try:
        _, rows = decode_letter(seal(damaged))
    except ValueError:
        return
    if rows is not None:
        rows.validate(full=True)
        assert rows.schema.equals(BODY_SCHEMA)


def letter_json(request: dict[str, Any]) -> bytes:
    head = msgspec.json.encode({"client_id": "c", "number": 1, "requests": [[0, request]], "sent_at_ms": 0})
    return seal(b"LMQC" + len(head).to_bytes(4, "little") + head)


PRODUCE: dict[str, Any] = {"request": "produce", "topics": [], "ranges": {}, "metadata_step": 0}
NUMBERS = ("size_bytes", "record_count", "min_timestamp_ms", "max_timestamp_ms")
FILE: dict[str, Any] = {"file_id": 0, **dict.fromkeys(NUMBERS, 1), "footer_hash": 1}
SEQUENCES: dict[str, Any] = {
    "producer_id": 0,
    "producer_epoch": 0,
    "topic_index": [],
    "partition": [],
    "base_sequence": [],
}


@pytest.mark.parametrize(
    "request_",
    [
        {"request": "launch"},
        {"request": "create_topic", "topic": 5, "partitions": 1},
        {**PRODUCE, "files": [{**FILE, "file_id": "../../etc/passwd"}]},
        {**PRODUCE, "files": [{**FILE, "file_id": -1}]},
        {**PRODUCE, "files": [{**FILE, "file_id": 2**62}]},
        {**PRODUCE, "files": [{**FILE, "record_count": -1}]},
        {**PRODUCE, "files": [{**FILE, "record_count": 2**62}]},
        {**PRODUCE, "files": [{**FILE, "min_timestamp_ms": 2**63}]},
        {**PRODUCE, "files": [{**FILE, "footer_hash": 2**63}]},
        {**PRODUCE, "ranges": {"topic_index": [-1]}},
        {**PRODUCE, "ranges": {"file": [-2]}},
        {**PRODUCE, "ranges": {"first_row": [2**63]}},
        {**PRODUCE, "ranges": {"record_count": [1.5]}},
        {**PRODUCE, "first_row": -1},
        {**PRODUCE, "producer": {**SEQUENCES, "producer_epoch": 2**15}},
        {**PRODUCE, "producer": {**SEQUENCES, "base_sequence": [2**31]}},
    ],
)
def test_values_outside_their_bounds_are_refused_on_reading(request_: dict[str, Any]) -> None:
    (good,) = decode_letter(letter_json({**PRODUCE, "files": [FILE], "producer": SEQUENCES}))[0].requests
    assert isinstance(good, Produce)
    (bad,) = decode_letter(letter_json(request_))[0].requests
    assert isinstance(bad, Unreadable)
    assert bad.refusal.error == "INVALID_REQUEST"
    assert "at `$" in bad.refusal.message


def test_a_request_that_cannot_be_read_leaves_those_beside_it_alone() -> None:
    """A request of a newer client or with a bad value: the others are decided in order and answered in their places."""
    good = [CreateTopic("a", 1), CreateTopic("b", 2)]
    texts = [encode_request(good[0]), b'{"request":"launch"}', encode_request(good[1]), b'{"request":"delete_topic"}']
    letter, _ = decode_letter(encode_letter("c", 1, [(0, text) for text in texts], 5))
    assert [letter.requests[0], letter.requests[2]] == good
    mq = Harness()
    entries = machine.decide_letter(mq.state, letter)
    results = entries[-1].record.results  # type: ignore[union-attr]
    assert [type(result).__name__ for result in results] == ["TopicDone", "Refusal", "TopicDone", "Refusal"]
    assert {results[1].error, results[3].error} == {"INVALID_REQUEST"}
    assert sorted(mq.state.topic_ids) == ["a", "b"]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"value": [b"x"]}),
        body([b"x"]).set_column(5, "timestamp", pa.nulls(1, BODY_SCHEMA.field("timestamp").type)),
        body([b"x"]).set_column(1, "partition", pa.nulls(1, BODY_SCHEMA.field("partition").type)),
        body([b"x"]).drop_columns("headers"),
        body([b"x"]).set_column(1, "partition", pa.array([1], pa.int64())),
    ],
)
def test_rows_that_are_no_message_bodies_raise_value_error(rows: pa.Table) -> None:
    assert BODY_SCHEMA.names[5] == "timestamp"
    with pytest.raises(ValueError, match="message bod"):
        decode_letter(letter_bytes(Letter("c", 1, [], 0), rows))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zstd"}, "compressed"),
        ({"compression": "lz4"}, "compressed"),
        ({"compression": "zstd", "metadata_version": pa.ipc.MetadataVersion.V4}, "V4"),
        ({"metadata_version": pa.ipc.MetadataVersion.V4}, "V4"),
    ],
)
def test_rows_that_are_more_than_their_bytes_are_refused_before_they_are_read(
    options: dict[str, Any], message: str
) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(body([b"x"]))
        writer.write_table(body([bytes(8 << 20)]))
    letter = seal(unseal(letter_bytes(Letter("c", 1, [], 0))) + bytes(sink.getvalue()))
    with pytest.raises(ValueError, match=message):
        decode_letter(letter)


def test_offsets_that_lead_out_of_the_letter_raise_value_error() -> None:
    good = body([b"abc"])
    head = unseal(letter_bytes(Letter("c", 1, [], 0)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_table(good)
    stream = bytes(sink.getvalue())
    position = stream.rindex(struct.pack("<ii", 0, 3))  # the bounds of the value in the batch's bytes
    damaged = stream[:position] + struct.pack("<ii", 0, 1 << 30) + stream[position + 8 :]
    assert decode_letter(seal(head + stream))[1] is not None
    with pytest.raises(ValueError, match="offsets"):
        decode_letter(seal(head + damaged))


# -- a letter never stops the sequencer ---------------------------------------------------------------------


@pytest.mark.slow
@examples(200)
@given(st.lists(st.lists(requests, max_size=3), max_size=4), st.integers(0, 6))
def test_any_letter_that_can_be_read_is_decided(letters: list[list[AnyRequest]], inline_rows: int) -> None:
    """The decision can be journaled, replayed and projected as well: one bad letter must not end every sequencer."""
    mq = Harness()
    mq.create("t", 2)
    mq.producer()
    mq.one(InitProducer("etl"))
    for letter_requests in letters:
        results = mq.ask(*letter_requests, inline_rows=inline_rows)
        assert len(results) == len(letter_requests)
        decode_answer(encode_answer(Answer("c", 1, 1, results)))
    replayed = machine.replay(type(mq.state)(), mq.steps)
    assert plain(replayed) == plain(mq.state)
    project(mq.state, mq.steps)


@examples()
@given(st.lists(results, max_size=3))
def test_answer_survives_encoding(sent_results: list[AnyResult]) -> None:
    answer = Answer("c", 7, 5, sent_results)
    assert decode_answer(encode_answer(answer)) == answer


# Values in requests: a bad value is refused within the call, by name. NumPy's integers are accepted.

SELF_CONTAINING: dict[str, Any] = {}
SELF_CONTAINING["x"] = SELF_CONTAINING


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (CreateTopic("t", "4"), "at `$.partitions`"),  # type: ignore[arg-type]
        (CreateTopic("t", 4.0), "at `$.partitions`"),  # type: ignore[arg-type]
        (CreateTopic("t", True), "at `$.partitions`"),
        (CreateTopic("t", np.bool_(True)), "bool"),  # type: ignore[arg-type]
        (CreateTopic("t", 10**5000), "limit"),
        (CreateTopic("t", np.array([1, 2])), "array"),  # type: ignore[arg-type]
        (CreateTopic("t\ud800", 4), "surrogates"),
        (CreateTopic(b"t", 4), "JSON changes a value"),  # type: ignore[arg-type]
        (CreateTopic(5, 4), "at `$.topic`"),  # type: ignore[arg-type]
        (CreateTopic("t", 4, {"retention.ms": float("nan")}), "JSON changes a value"),
        (CreateTopic("t", 4, {"retention.ms": object()}), "object"),
        (CreateTopic("t", 4, SELF_CONTAINING), "recursion"),
        (CreateTopic("t", 4, {}, "abc"), "at `$.subscriptions`"),  # type: ignore[arg-type]
        (DeleteRecords("t", {"x": 4}), "in `$.before`"),  # type: ignore[dict-item]
        (CommitOffsets("g", [OffsetCommit("t", 1.7, 2)]), "at `$.offsets[0][1]`"),  # type: ignore[arg-type]
        (CommitOffsets("g", [OffsetCommit("t", 1, 2, b"x")]), "JSON changes a value"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_value_is_refused_by_name(request_: AnyRequest, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        encode_request(request_)
    assert refused.value.detail.startswith(f"{type(request_).__name__} cannot be sent: ")
    assert problem in refused.value.detail
    assert len(str(refused.value)) < 1_500


def test_integers_of_numpy_are_sent_as_integers() -> None:
    assert msgspec.json.decode(encode_request(CreateTopic("t", np.int64(4), {"retention.ms": np.uint8(7)}))) == {
        "request": "create_topic",
        "topic": "t",
        "partitions": 4,
        "config": {"retention.ms": 7},
    }
    assert b'"before":{"1":4}' in encode_request(DeleteRecords("t", {np.int64(1): np.int32(4)}))


# -- Errors: one class per refusal, which survives encoding, with `found` and `expected` -----------------


@pytest.mark.parametrize("error", errors.all_errors(), ids=lambda e: e.name)
def test_every_error_survives_encoding(error: type[errors.LakeMQError]) -> None:
    refusal = error("detail", found={"a": [1, 2]}, expected="b").refusal()
    (read,) = decode_answer(encode_answer(Answer("c", 1, 1, [refusal]))).results
    assert isinstance(read, Refusal)
    raised = errors.error_from_refusal(read)
    assert type(raised) is error
    assert str(raised).startswith(f"{error.name}: detail. Found")
    assert str(error()).startswith(f"{error.name}: {error.meaning()}")
    assert error.meaning().endswith((".", "."))


def test_an_error_of_a_newer_engine_keeps_its_name() -> None:
    raised = errors.error_from_refusal(Refusal("BRAND_NEW", "why", 1, 2))
    assert type(raised) is errors.LakeMQError
    assert "BRAND_NEW: why" in str(raised)


def test_errors_have_kafkas_codes() -> None:
    """Stories check those of the errors that requests get."""
    codes = {error.name: error.code for error in errors.all_errors() if error.code is not None}
    others = {
        "REQUEST_TIMED_OUT": 7,
        "INVALID_TIMESTAMP": 32,
        "THROTTLING_QUOTA_EXCEEDED": 89,
        "UNSUPPORTED_ASSIGNOR": 112,
    }
    assert others.items() <= codes.items()
    assert len({*codes.values()}) == len(codes)


def test_a_refusal_repeats_little_of_what_was_sent() -> None:
    mq = Harness()
    refusal = mq.refused(CreateTopic("t", 1, {"retention.ms": "9" * 10_000_000}))
    assert len(encode_answer(Answer("c", 1, 1, [refusal]))) < 5_000
    assert str(refusal.found).startswith("999")


@pytest.mark.parametrize("detail", [None, True, 3, 2**80, 1.5, "text", [1], {"a": 1}, b"bytes", object()])
def test_any_found_value_can_be_encoded(detail: Any) -> None:
    refusal = errors.InvalidRequest("d", found=detail).refusal()
    (read,) = decode_answer(encode_answer(Answer("c", 1, 1, [refusal]))).results
    assert read == refusal
