"""What travels: letters, answers, steps; and what alien bytes do, which is nothing but a ValueError."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from protocol_harness import Harness, encode_letter, inline_file, plain

from lakemq.engine.protocol import codec, errors, machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.letters import encode_request
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.clients import Answer, Answered, Letter, Unreadable
from lakemq.engine.protocol.values.groups import (
    CommitOffsets,
    FetchOffsets,
    OffsetCommit,
    OffsetsCommitted,
    OffsetsFetched,
)
from lakemq.engine.protocol.values.journal import AnyRecord, JournalEntry, Step
from lakemq.engine.protocol.values.kinds import AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import ApplicationVersion, DataFile, Produce, Produced, Ranges, RefusedRows
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, ProducerSequences, TransactionRef
from lakemq.engine.protocol.values.segments import NO_SEGMENTS, Segments
from lakemq.engine.protocol.values.topics import (
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    RecordsDeleted,
    TopicRef,
)
from lakemq.engine.protocol.values.transactions import (
    AbortTransaction,
    EndTransaction,
    MarkersWritten,
    TransactionEnded,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.specs.segments import SEGMENT_SCHEMA

# -- values of every type, from the types themselves --------------------------------------------------------

file_ids = st.integers(0, 2**62 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
small = st.integers(0, 3)
counts = small | st.integers(0, 2**40)
millis = st.integers(-(2**54), 2**54)
sequences = small | st.integers(0, 2**31 - 1)
segment_rows = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["data", "commit", "abort"]),
        "topic_id": st.integers(0, 2**62),
        "topic": texts,
        "partition": st.integers(0, 2**31 - 1),
        "base_offset": st.integers(0, 2**62),
        "record_count": counts,
        "last_offset": st.integers(0, 2**62),
        "file_id": file_ids | st.none(),
        "first_row": counts | st.none(),
        "file_partition": st.none(),
        "footer_hash": st.none() | st.integers(-(2**63), 2**63 - 1),
        "min_timestamp_ms": millis | st.none(),
        "max_timestamp_ms": millis,
        "append_time_ms": st.none() | millis,
        "producer_id": st.none() | small,
        "producer_epoch": st.none() | small,
        "base_sequence": st.none() | sequences,
        "transactional": st.booleans(),
        "origin": st.just("publish"),
        "first_offset": st.none() | st.integers(0, 2**62),
    }
)
segments = st.lists(segment_rows, max_size=4).map(
    lambda rows: Segments([[row[name] for row in rows] for name in SEGMENT_SCHEMA.names])
)


def columns(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, max_size=3)


RANGE = (small, small, st.integers(-1, 1), counts, counts, millis, millis)


def even_ranges(length: int) -> st.SearchStrategy[Ranges]:
    return st.builds(Ranges, *(st.lists(column, min_size=length, max_size=length) for column in RANGE))


epochs = small | st.integers(0, 2**15 - 1)
transactional_ids = st.sampled_from(["etl", "etl", "other", ""]) | texts
transaction_refs = st.builds(TransactionRef, transactional_ids, small | st.integers(0, 2**62), epochs)
produces = st.builds(
    Produce,
    topics=st.lists(st.builds(TopicRef, st.sampled_from(["t", "u"]), small, small), max_size=3),
    ranges=st.builds(Ranges, *map(columns, RANGE)) | st.integers(0, 3).flatmap(even_ranges),
    metadata_step=counts,
    files=st.lists(
        st.builds(DataFile, file_ids, counts, counts, millis, millis, st.integers(-(2**63), 2**63 - 1)), max_size=2
    ),
    refused=st.lists(st.builds(RefusedRows, texts, st.integers(-1, 3), counts, counts, texts, texts), max_size=2),
    producer=st.none()
    | st.builds(ProducerSequences, small, epochs, columns(small), columns(small), columns(sequences)),
    application=st.none() | st.builds(ApplicationVersion, texts, st.integers(), st.sampled_from(["t", "x/y", "", ":"])),
    transaction=st.none() | transaction_refs,
    first_row=counts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)
configs = st.dictionaries(st.sampled_from(["retention.ms", "partitioner", "x"]), json_values, max_size=2)
names = st.sampled_from(["t", "u", "..", "t/u", ">"]) | texts
offsets = st.lists(
    st.builds(
        OffsetCommit, names, st.integers(-1, 2) | st.integers(), st.integers(-1, 3) | st.integers(), st.none() | texts
    ),
    max_size=3,
)
places = st.lists(st.tuples(names, st.integers(-1, 2) | st.integers()), max_size=3)
requests = (
    st.builds(CreateTopic, names, st.integers(-1, 4) | st.integers(), configs, st.lists(names, max_size=2))
    | st.builds(AlterTopic, names, configs, st.none() | st.integers(-1, 5), st.none() | st.lists(names, max_size=2))
    | st.builds(DeleteTopic, names)
    | st.builds(DeleteRecords, names, st.dictionaries(st.integers(), st.integers(-2, 3) | st.integers(), max_size=2))
    | st.builds(InitProducer, st.none() | transactional_ids, st.integers(-1, 9) | st.integers())
    | st.builds(CommitOffsets, names, offsets, st.none() | transaction_refs)
    | st.builds(FetchOffsets, names, st.none() | places, st.booleans())
    | st.builds(
        EndTransaction, transaction_refs, st.booleans(), small | counts, st.none() | small | st.integers(0, 2**62)
    )
    | st.builds(AbortTransaction, transactional_ids)
    | produces
)


# -- letters ------------------------------------------------------------------------------------------------


def body(values: list[bytes | None]) -> pa.Table:
    filled: dict[str, Any] = {"topic": "t", "partition": 0, "timestamp": 5}
    columns = [values if f.name == "value" else [filled.get(f.name)] * len(values) for f in BODY_SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, BODY_SCHEMA, strict=True)], schema=BODY_SCHEMA)


@settings(deadline=None)
@given(st.lists(requests, max_size=3), st.none() | st.lists(st.none() | st.binary(max_size=5), max_size=3))
def test_a_letter_comes_out_as_it_went_in(asked: list[AnyRequest], values: list[bytes | None] | None) -> None:
    letter, rows = Letter("c", 7, asked, 5), None if values is None else body(values)
    assert codec.decode_letter(encode_letter(letter, rows)) == (letter, rows)


def test_rows_of_many_requests_come_out_in_order() -> None:
    rows = pa.concat_tables([body([b"a"]), body([b"b", b"c"])])
    _, found = codec.decode_letter(encode_letter(Letter("c", 1, [], 0), rows))
    assert found is not None
    assert found.column("value").to_pylist() == [b"a", b"b", b"c"]


GOOD = encode_letter(Letter("c", 1, [InitProducer()], 0), body([b"abc", None]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b"")
@example(b"LMQ1")
@example(b"LMQ1\xff\xff\xff\xff{}")
@example(b"LMQ1\x02\x00\x00\x00{}")
@example(b"LMQ1\x04\x00\x00\x00null")
@example(b"LMQ2" + GOOD[4:])
def test_alien_bytes_are_a_value_error(alien: bytes) -> None:
    for whole in (alien, b"LMQ1" + alien):
        with pytest.raises(ValueError, match=r"\w"):
            codec.decode_letter(whole)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_a_damaged_letter_is_a_value_error_or_a_whole_letter(at: int, byte: int, cut: bool) -> None:
    damaged = GOOD[:at] if cut else GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    try:
        _, rows = codec.decode_letter(damaged)
    except ValueError:
        return
    if rows is not None:
        rows.validate(full=True)
        assert rows.schema.equals(BODY_SCHEMA)


def letter_json(request: dict[str, Any]) -> bytes:
    head = msgspec.json.encode({"client_id": "c", "number": 1, "requests": [[0, request]], "sent_at_ms": 0})
    return b"LMQ1" + len(head).to_bytes(4, "little") + head


PRODUCE: dict[str, Any] = {"request": "produce", "topics": [], "ranges": {}, "metadata_step": 0}
NUMBERS = ("size_bytes", "record_count", "min_timestamp_ms", "max_timestamp_ms")
FILE: dict[str, Any] = {"file_id": 0, **dict.fromkeys(NUMBERS, 1), "footer_hash": 1}
SEQUENCES: dict[str, Any] = {"producer_id": 0, "producer_epoch": 0, "topic": [], "partition": [], "base_sequence": []}


@pytest.mark.parametrize(
    "request_",
    [
        {"request": "launch"},
        {"request": "create_topic", "topic": 5, "partitions": 1},
        {"request": "create_topic", "topic": "a", "partitions": "1"},
        {**PRODUCE, "files": [{**FILE, "file_id": "../../etc/passwd"}]},
        {**PRODUCE, "files": [{**FILE, "file_id": "0000000000000001"}]},
        {**PRODUCE, "files": [{**FILE, "file_id": -1}]},
        {**PRODUCE, "files": [{**FILE, "file_id": 2**62}]},
        {**PRODUCE, "files": [{**FILE, "file_id": None}]},
        {**PRODUCE, "files": [{**FILE, "record_count": -1}]},
        {**PRODUCE, "files": [{**FILE, "record_count": 2**62}]},
        {**PRODUCE, "files": [{**FILE, "min_timestamp_ms": 2**63}]},
        {**PRODUCE, "files": [{**FILE, "footer_hash": 2**63}]},
        {**PRODUCE, "ranges": {"topic": [-1]}},
        {**PRODUCE, "ranges": {"file": [-2]}},
        {**PRODUCE, "ranges": {"first_row": [2**63]}},
        {**PRODUCE, "ranges": {"record_count": [1.5]}},
        {**PRODUCE, "first_row": -1},
        {**PRODUCE, "producer": {**SEQUENCES, "producer_epoch": 2**15}},
        {**PRODUCE, "producer": {**SEQUENCES, "base_sequence": [2**31]}},
    ],
)
def test_what_no_client_of_ours_would_say_is_refused_on_reading(request_: dict[str, Any]) -> None:
    (good,) = codec.decode_letter(letter_json({**PRODUCE, "files": [FILE], "producer": SEQUENCES}))[0].requests
    assert isinstance(good, Produce)
    (bad,) = codec.decode_letter(letter_json(request_))[0].requests
    assert isinstance(bad, Unreadable)
    assert bad.refusal.error == "INVALID_REQUEST"
    assert "at `$" in bad.refusal.message


def test_a_request_that_cannot_be_read_leaves_those_beside_it_alone() -> None:
    """One of a newer client, or a bad value: the others are decided, in order, and answered in their places."""
    good = [CreateTopic("a", 1), CreateTopic("b", 2)]
    texts = [encode_request(good[0]), b'{"request":"launch"}', encode_request(good[1]), b'{"request":"delete_topic"}']
    letter, _ = codec.decode_letter(codec.enclose("c", 1, [(0, text) for text in texts], 5))
    assert [letter.requests[0], letter.requests[2]] == good
    mq = Harness()
    entries = machine.decide_letter(mq.state, letter)
    results = entries[-1].record.results  # type: ignore[union-attr]
    assert [type(result).__name__ for result in results] == ["TopicDone", "Refusal", "TopicDone", "Refusal"]
    assert {results[1].error, results[3].error} == {"INVALID_REQUEST"}
    assert sorted(mq.state.topic_ids) == ["a", "b"]


def test_a_letter_says_where_the_rows_of_a_request_begin() -> None:
    asked = Produce([], Ranges(), 0)
    letter, _ = codec.decode_letter(codec.enclose("c", 1, [(row, encode_request(asked)) for row in (0, 7)], 5))
    assert [one.first_row for one in letter.requests] == [0, 7]  # type: ignore[union-attr]


def test_deep_nesting_is_a_value_error() -> None:
    head = b'{"client_id":"c","number":1,"sent_at_ms":0,"requests":[[0,{"request":"create_topic","config":{"a":'
    deep = head + b"[" * 100_000
    with pytest.raises(ValueError, match="not a letter"):
        codec.decode_letter(b"LMQ1" + len(deep).to_bytes(4, "little") + deep)


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"value": [b"x"]}),
        body([b"x"]).set_column(5, "timestamp", pa.nulls(1, BODY_SCHEMA.field("timestamp").type)),
        body([b"x"]).set_column(0, "topic", pa.nulls(1, BODY_SCHEMA.field("topic").type)),
        body([b"x"]).set_column(1, "partition", pa.nulls(1, BODY_SCHEMA.field("partition").type)),
        body([b"x"]).drop_columns("headers"),
        body([b"x"]).set_column(1, "partition", pa.array([1], pa.int64())),
    ],
)
def test_rows_that_are_no_message_bodies_are_a_value_error(rows: pa.Table) -> None:
    assert BODY_SCHEMA.names[5] == "timestamp"
    with pytest.raises(ValueError, match="message bod"):
        codec.decode_letter(encode_letter(Letter("c", 1, [], 0), rows))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"compression": "zstd"}, "compressed"),
        ({"compression": "lz4"}, "compressed"),
        ({"compression": "zstd", "metadata_version": pa.ipc.MetadataVersion.V4}, "V4"),
        ({"metadata_version": pa.ipc.MetadataVersion.V4}, "V4"),
    ],
)
def test_rows_that_are_more_than_their_bytes_are_refused_before_they_are_read(
    options: dict[str, Any], told: str
) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(body([b"x"]))
        writer.write_table(body([bytes(8 << 20)]))
    letter = encode_letter(Letter("c", 1, [], 0)) + bytes(sink.getvalue())
    with pytest.raises(ValueError, match=told):
        codec.decode_letter(letter)


def test_offsets_that_lead_out_of_the_letter_are_a_value_error() -> None:
    good = body([b"abc"])
    head = encode_letter(Letter("c", 1, [], 0))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_table(good)
    stream = bytes(sink.getvalue())
    at = stream.rindex(struct.pack("<ii", 0, 3))  # where the value begins and ends in the batch's bytes
    damaged = stream[:at] + struct.pack("<ii", 0, 1 << 30) + stream[at + 8 :]
    assert codec.decode_letter(head + stream)[1] is not None
    with pytest.raises(ValueError, match="offsets"):
        codec.decode_letter(head + damaged)


# -- a letter never stops the sequencer ---------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(requests, max_size=3), max_size=4), st.integers(0, 6))
def test_any_letter_that_can_be_read_is_decided(letters: list[list[AnyRequest]], inline_rows: int) -> None:
    """And what was decided can be journaled, replayed, projected: one bad letter must not end every sequencer."""
    mq = Harness()
    mq.create("t", 2)
    mq.producer()
    mq.one(InitProducer("etl"))
    for asked in letters:
        results = mq.ask(*asked, inline_rows=inline_rows)
        assert len(results) == len(asked)
        codec.decode_answer(codec.encode_answer(Answer("c", 1, 1, results)))
    replayed = machine.replay(type(mq.state)(), mq.steps)
    assert plain(replayed) == plain(mq.state)
    project(mq.state, mq.steps)


# -- steps --------------------------------------------------------------------------------------------------

some_results: st.SearchStrategy[AnyResult] = (
    st.builds(Refusal, st.just("INVALID_REQUEST"), texts, st.none() | st.integers() | texts, st.none() | texts)
    | st.builds(ProducerDone, small, epochs, st.integers(-1, 3))
    | st.builds(TransactionEnded, small, epochs, st.booleans())
    | st.builds(OffsetsFetched, offsets)
)
moves = st.builds(
    TransactionMoved,
    texts,
    small,
    epochs,
    st.sampled_from(TransactionStatus),
    counts,
    st.none() | counts,
    columns(st.tuples(small, small)),
    columns(texts),
    st.none() | st.just("timeout"),
    st.none() | counts,
    st.none() | counts,
)
records: st.SearchStrategy[AnyRecord] = (
    st.builds(
        Produced,
        target=texts,
        producer_id=st.none() | small,
        producer_epoch=st.none() | small,
        transactional_id=st.none() | texts,
    )
    | moves
    | st.builds(TransactionFailed, texts, texts, texts)
    | st.builds(MarkersWritten, texts)
    | st.builds(OffsetsCommitted, texts, columns(small), offsets, st.none() | texts)
    | st.builds(RecordsDeleted, small, texts, st.dictionaries(small, counts))
    | st.builds(Answered, texts, small, st.lists(some_results, max_size=2))
)
entries = st.builds(JournalEntry, records, st.just(NO_SEGMENTS) | segments, st.none() | texts)
steps = st.builds(Step, counts, counts, counts, st.lists(entries, min_size=1, max_size=4))


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=1, max_size=3, unique_by=lambda s: s.step))
def test_steps_come_out_of_the_journal_as_they_went_in(written: list[Step]) -> None:
    rows = pa.concat_tables([codec.encode_step(step) for step in written])
    assert rows.schema == JOURNAL.stored_schema
    in_order = sorted(written, key=lambda one: one.step)
    assert codec.decode_steps(rows) == in_order
    assert codec.decode_steps(rows.combine_chunks()) == in_order
    assert codec.decode_steps(rows.take(list(reversed(range(rows.num_rows))))) == in_order


@pytest.mark.parametrize(
    ("found", "known", "follow"),
    [([], 4, True), ([5], 4, True), ([6, 5], 4, True), ([5, 7], 4, False), ([6], 4, False), ([4, 5], 4, False)],
)
def test_steps_that_follow_leave_no_gap(found: list[int], known: int, follow: bool) -> None:
    made = [Step(step, 0, 1, [JournalEntry(MarkersWritten("x"))]) for step in found]
    rows = pa.concat_tables([JOURNAL.empty(), *map(codec.encode_step, made)])
    assert codec.steps_after(rows, known) == (sorted(made, key=lambda one: one.step) if follow else None)


def test_a_row_of_the_journal_that_lacks_something_is_refused() -> None:
    rows = codec.encode_step(Step(1, 0, 1, [JournalEntry(MarkersWritten("x"))]))
    at = rows.column_names.index("decision")
    with pytest.raises(ValueError, match=r"journal\.decision is null"):
        codec.decode_steps(rows.set_column(at, rows.schema.field(at), pa.array([None], pa.string())))


def test_no_rows_are_no_steps() -> None:
    assert codec.decode_steps(JOURNAL.empty()) == []


def test_a_newer_format_is_refused() -> None:
    rows = codec.encode_step(Step(1, 0, 1, [JournalEntry(Produced("t"))]))
    index = rows.column_names.index("format_version")
    newer = rows.set_column(index, "format_version", pa.array([99], pa.int32()))
    with pytest.raises(errors.NewerFormat, match="journal format 99"):
        codec.decode_steps(newer)


def test_a_decision_of_a_newer_version_is_refused_as_such() -> None:
    rows = codec.encode_step(Step(1, 0, 1, [JournalEntry(Produced("t"))]))
    index = rows.column_names.index("decision")
    for text, error in (
        ('{"record":"topic_paused","topic_id":1}', errors.NewerFormat),
        ('{"record":"produced","target":5}', msgspec.ValidationError),
        ('{"record":5}', msgspec.ValidationError),
    ):
        with pytest.raises(error, match="topic_paused" if error is errors.NewerFormat else None):
            codec.decode_steps(rows.set_column(index, "decision", pa.array([text])))


def test_inline_rows_of_the_harness_lie_within_their_file() -> None:
    inline = inline_file(1, 5)
    assert inline.first_row + inline.record_count < inline.file.record_count
