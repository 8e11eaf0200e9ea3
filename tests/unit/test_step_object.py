"""Steps as objects: they survive encoding, and objects of a newer version are refused as such."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import example, given
from protocol_harness import letter_bytes
from unit.protocol_values import counts, records, segments, texts

from lakemq.engine.client.requests.requester import PendingRequest, build_letter
from lakemq.engine.protocol import errors
from lakemq.engine.protocol.codec.few_rows import (
    MAX_FEW_BYTES,
    FewRows,
    decode_few_rows,
    encode_few_rows,
    rows_to_table,
)
from lakemq.engine.protocol.codec.letter import decode_letter
from lakemq.engine.protocol.codec.steps import (
    StepHead,
    add_checksum,
    decode_head,
    decode_step_object,
    decode_step_rows,
    decode_steps,
    decode_steps_after,
    encode_step_object,
    encode_step_rows,
    encode_steps,
)
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.journal import FORMAT_VERSION, MANY_SEGMENTS, JournalEntry, Step, StepBatch
from lakemq.engine.protocol.values.log import Produced, RowsJournaled
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.segments import NO_SEGMENTS, build_segments
from lakemq.engine.protocol.values.transactions import MarkersWritten
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import BODY_SCHEMA

entries = st.builds(JournalEntry, records, st.just(NO_SEGMENTS) | segments, st.none() | texts)
steps = st.builds(Step, counts, counts, counts, st.lists(entries, max_size=4), st.none() | st.binary())


def make_head(step: Step, format_version: int = FORMAT_VERSION) -> StepHead:
    return StepHead(
        format_version, "a namespace", "a nonce", step.step, step.decided_at_ms, "anna", step.leader_epoch, 10_000
    )


@examples(60)
@given(steps)
def test_step_survives_encoding_as_an_object(step: Step) -> None:
    head = make_head(step)
    body = encode_step_object(head, step)
    assert decode_head(body) == head
    assert decode_step_object(body) == (head, step)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 5000])
def test_segments_of_a_step_survive_encoding_whatever_their_count(count: int) -> None:
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
    assert [entry.segments.lists() for entry in decoded.entries] == [entry.segments.lists() for entry in step.entries]


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


@pytest.mark.parametrize("bit", range(8))
def test_step_object_with_a_flipped_bit_is_refused(bit: int) -> None:
    step = Step(1, 0, 1, [JournalEntry(RowsJournaled(7, 0, 2), request_id="client/1")], b"two rows")
    body = encode_step_object(make_head(step), step)
    for index in range(len(body)):
        flipped = bytearray(body)
        flipped[index] ^= 1 << bit
        with pytest.raises((ValueError, errors.NewerFormat)):
            decode_step_object(bytes(flipped))


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


# -- The rows of a step, as msgpack or as an Arrow stream: readers get the same table --------------------


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


@pytest.mark.parametrize(("size_bytes", "is_arrow"), [(1_000, False), (MAX_FEW_BYTES, True)])
def test_rows_too_large_for_msgpack_are_encoded_as_an_arrow_stream(size_bytes: int, is_arrow: bool) -> None:
    rows = make_rows(b"x" * size_bytes)
    body = encode_step_rows(rows)
    assert body.startswith(b"\xff\xff\xff\xff") is is_arrow, "a message of Arrow's IPC begins so"
    assert decode_step_rows([body]).equals(rows_to_table([rows]))


# Steps as rows of the journal: they survive encoding, and rows of a newer version are refused as such.

journal_steps = st.builds(Step, counts, counts, counts, st.lists(entries, min_size=1, max_size=4))


@pytest.mark.slow
@examples(40)
@given(st.lists(journal_steps, min_size=1, max_size=3, unique_by=lambda s: s.step))
def test_steps_survive_encoding_as_journal_rows(written: list[Step]) -> None:
    rows = encode_steps(written)
    assert rows.schema == JOURNAL.stored_schema
    in_order = sorted(written, key=lambda step: step.step)
    assert decode_steps(rows) == in_order
    assert decode_steps(rows.combine_chunks()) == in_order
    assert decode_steps(rows.take(list(reversed(range(rows.num_rows))))) == in_order


def test_journal_leaves_out_message_rows_of_a_step() -> None:
    riding = Step(1, 0, 1, [JournalEntry(RowsJournaled(7, 0, 2)), JournalEntry(Produced("t"))], b"two rows")
    plain = Step(2, 0, 1, [JournalEntry(Produced("t"))])
    assert decode_steps(encode_steps([riding, plain])) == [msgspec.structs.replace(riding, rows=None), plain]


@pytest.mark.parametrize(
    ("step_numbers", "last_step", "follow"),
    [([], 4, True), ([5], 4, True), ([6, 5], 4, True), ([5, 7], 4, False), ([6], 4, False), ([4, 5], 4, False)],
)
def test_journal_with_a_missing_step_is_not_decoded(step_numbers: list[int], last_step: int, follow: bool) -> None:
    journal_steps = [Step(step, 0, 1, [JournalEntry(MarkersWritten("x"))]) for step in step_numbers]
    rows = encode_steps(journal_steps)
    assert decode_steps_after(rows, last_step) == (
        sorted(journal_steps, key=lambda step: step.step) if follow else None
    )


def test_journal_row_without_a_decision_is_refused() -> None:
    rows = encode_steps([Step(1, 0, 1, [JournalEntry(MarkersWritten("x"))])])
    index = rows.column_names.index("decision")
    with pytest.raises(ValueError, match=r"journal\.decision is null"):
        decode_steps(rows.set_column(index, rows.schema.field(index), pa.array([None], pa.string())))


def test_a_newer_format_is_refused() -> None:
    rows = encode_steps([Step(1, 0, 1, [JournalEntry(Produced("t"))])])
    index = rows.column_names.index("format_version")
    newer = rows.set_column(index, "format_version", pa.array([99], pa.int32()))
    with pytest.raises(errors.NewerFormat, match="journal format 99"):
        decode_steps(newer)


def test_a_decision_of_a_newer_version_is_refused_as_such() -> None:
    rows = encode_steps([Step(1, 0, 1, [JournalEntry(Produced("t"))])])
    index = rows.column_names.index("decision")
    for text, error in (
        ('{"record":"topic_archived","topic_id":1}', errors.NewerFormat),
        (
            '{"record":"answered","client_id":"c","number":1,"results":[{"outcome":"topic_archived"}]}',
            errors.NewerFormat,
        ),
        ('{"record":"answered","client_id":"c","number":1,"results":[{"outcome":5}]}', msgspec.ValidationError),
        ('{"record":"answered","client_id":5,"number":1,"results":[{"outcome":"done"}]}', msgspec.ValidationError),
        ('{"record":"produced","target":5}', msgspec.ValidationError),
        ('{"record":5}', msgspec.ValidationError),
    ):
        with pytest.raises(error, match="topic_archived" if error is errors.NewerFormat else None):
            decode_steps(rows.set_column(index, "decision", pa.array([text])))


# Few rows travel without Arrow: they come out of a letter as they went in, and alien bytes cause only a ValueError.

few_texts = st.text(max_size=4)
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
    return FewRows(column(few_texts), partitions, column(payloads), column(payloads), column(int64s), listed)


@examples()
@given(few_rows())
def test_few_rows_survive_a_letter_unchanged(rows: FewRows) -> None:
    letter = Letter("c", 7, [InitProducer()], 5)
    assert decode_letter(letter_bytes(letter, rows)) == (letter, rows)
    rows_to_table([rows]).validate(full=True)


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
