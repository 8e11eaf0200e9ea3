"""Steps as objects: they survive encoding, and objects of a newer version are refused as such."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import msgspec
import pytest
from examples import examples
from hypothesis import given
from unit.protocol_values import counts, records, segments, texts

from lakemq.engine.protocol import errors
from lakemq.engine.protocol.codec.step_object import (
    StepHead,
    add_checksum,
    decode_head,
    decode_step_object,
    encode_step_object,
)
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.clients import Answered
from lakemq.engine.protocol.values.consuming.offsets import OffsetCommit, OffsetsCommitted
from lakemq.engine.protocol.values.journal import FORMAT_VERSION, MANY_SEGMENTS, JournalEntry, Step, StepBatch
from lakemq.engine.protocol.values.log import Produced, RowsJournaled
from lakemq.engine.protocol.values.segments import NO_SEGMENTS, build_segments

entries = st.builds(JournalEntry, records, st.just(NO_SEGMENTS) | segments, st.none() | texts)
steps = st.builds(Step, counts, counts, counts, st.lists(entries, max_size=4), st.none() | st.binary())


def make_head(step: Step, format_version: int = FORMAT_VERSION) -> StepHead:
    return StepHead(
        format_version, "a namespace", "a nonce", step.step, step.decided_at_ms, "anna", step.leader_epoch, 10_000
    )


@examples(60)
@given(steps)
def test_a_step_comes_out_of_its_object_as_it_went_in(step: Step) -> None:
    head = make_head(step)
    body = encode_step_object(head, step)
    assert decode_head(body) == head
    assert decode_step_object(body) == (head, step)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 5000])
def test_segments_come_out_the_same_however_many_they_are(count: int) -> None:
    many = build_segments(
        count,
        kind=["data"] * count,
        topic_id=[7] * count,
        topic=["t"] * count,
        partition=list(range(count)),
        base_offset=[2**40 + i for i in range(count)],
        record_count=[1] * count,
        last_offset=[2**40 + i for i in range(count)],
        transactional=[False] * count,
        origin=["publish"] * count,
    )
    single = build_segments(1, **{name: many.column(name)[:1] for name in ("kind", "topic_id", "topic", "partition")})
    step = Step(
        3, 5, 1, [JournalEntry(Produced("t"), many), JournalEntry(Produced("u")), JournalEntry(Produced("v"), single)]
    )
    _, decoded = decode_step_object(encode_step_object(make_head(step), step))
    assert [entry.segments.rows() for entry in decoded.entries] == [entry.segments.rows() for entry in step.entries]


def test_integer_of_any_size_comes_out_unchanged() -> None:
    step = Step(1, 0, 1, [JournalEntry(OffsetsCommitted("g", [1], [OffsetCommit("t", 0, -(2**63) - 1)]))])
    assert decode_step_object(encode_step_object(make_head(step), step))[1] == step


def test_a_step_of_another_format_is_refused() -> None:
    step = Step(1, 0, 1, [JournalEntry(Produced("t"))])
    newer, older = (encode_step_object(make_head(step, FORMAT_VERSION + change), step) for change in (1, -1))
    for decode in (decode_head, decode_step_object):
        with pytest.raises(errors.NewerFormat, match="step format"):
            decode(newer)
        with pytest.raises(ValueError, match="step format 0 is older than 1, and no command migrates it"):
            decode(older)


def test_a_decision_that_this_version_does_not_know_is_refused() -> None:
    step = Step(1, 0, 1, [JournalEntry(Produced("t"))])
    body = encode_step_object(make_head(step), step)
    known_kind, unknown_kind = b'"produced"', b'"promised"'
    assert body.count(known_kind) == 1
    with pytest.raises(errors.NewerFormat, match="a decision promised"):
        decode_step_object(add_checksum(body.replace(known_kind, unknown_kind)))


def test_a_result_that_this_version_does_not_know_is_refused() -> None:
    step = Step(1, 0, 1, [JournalEntry(Answered("client", 1, [Done()]))])
    body = encode_step_object(make_head(step), step)
    known_kind, unknown_kind = b'"done"', b'"gone"'
    assert body.count(known_kind) == 1
    with pytest.raises(errors.NewerFormat, match="a result gone"):
        decode_step_object(add_checksum(body.replace(known_kind, unknown_kind)))


def test_a_record_of_a_known_kind_that_is_damaged_is_no_newer_one() -> None:
    step = Step(1, 0, 1, [JournalEntry(Answered("client", 1, [Done()]))])
    body = encode_step_object(make_head(step), step)
    damaged = add_checksum(body.replace(b'"client_id"', b'"client_ip"'))
    with pytest.raises(msgspec.ValidationError, match="client_id"):
        decode_step_object(damaged)


@pytest.mark.parametrize("bit", range(8))
def test_a_bit_that_flipped_anywhere_is_noticed(bit: int) -> None:
    step = Step(1, 0, 1, [JournalEntry(RowsJournaled(7, 0, 2), request_id="client/1")], b"two rows")
    body = encode_step_object(make_head(step), step)
    for index in range(len(body)):
        flipped = bytearray(body)
        flipped[index] ^= 1 << bit
        with pytest.raises((ValueError, errors.NewerFormat)):
            decode_step_object(bytes(flipped))


@pytest.mark.parametrize("damage", [lambda _: b"", lambda whole: whole[:-3], lambda whole: whole + b"\x00"])
def test_damaged_object_is_no_step(damage: Callable[[bytes], bytes]) -> None:
    step = Step(1, 0, 1, [JournalEntry(Produced("t"))])
    with pytest.raises((ValueError, msgspec.DecodeError)):
        decode_step_object(damage(encode_step_object(make_head(step), step)))


def test_an_object_without_a_checksum_is_refused() -> None:
    step = Step(1, 0, 1, [JournalEntry(RowsJournaled(7, 0, 2), request_id="client/1")], b"two rows")
    *parts, _ = msgspec.msgpack.decode(encode_step_object(make_head(step), step))
    with pytest.raises(ValueError, match="length 5, got 4"):
        decode_step_object(msgspec.msgpack.encode(parts))


def test_a_batch_has_the_segments_of_steps_with_few_and_many_in_order() -> None:
    def build_step(number: int, count: int) -> Step:
        offsets = list(range(100_000 * number, 100_000 * number + count))
        return Step(number, 0, 1, [JournalEntry(Produced("t"), build_segments(count, base_offset=offsets))])

    steps = [build_step(1, 3), build_step(2, 2 * MANY_SEGMENTS), build_step(3, 1), build_step(4, 2 * MANY_SEGMENTS)]
    expected = [offset for step in steps for offset in step.entries[0].segments.column("base_offset")]
    assert StepBatch(steps).segments.column("base_offset").to_pylist() == expected


def test_a_batch_finds_entries_of_several_kinds_in_order() -> None:
    produced, done = JournalEntry(Produced("t")), JournalEntry(Answered("client", 1, [Done()]))
    journaled = JournalEntry(RowsJournaled(7, 0, 2))
    batch = StepBatch([Step(1, 0, 1, [journaled, produced, done]), Step(2, 0, 1, [done, journaled])])
    found = batch.find_entries(Answered, RowsJournaled)
    assert [(step.step, position, entry) for step, position, entry in found] == [
        (1, 0, journaled),
        (1, 2, done),
        (2, 0, done),
        (2, 1, journaled),
    ]
    assert batch.find_entries(OffsetsCommitted) == []
