"""Publishing: ranges of rows get dense offsets. The columns are compared with a model that goes row by row."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from examples import examples
from hypothesis import given
from protocol_harness import F, G, Harness, facts_of, inline_file
from stateful.model import Model

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import InvalidRequest, Refusal
from lakemq.engine.protocol.rules.units import RangeColumns, RowSource
from lakemq.engine.protocol.values.decision import DecisionInputs
from lakemq.engine.protocol.values.log import (
    ApplicationVersion,
    DataFile,
    PendingFile,
    Produce,
    Published,
    Ranges,
    RejectedRows,
    Unit,
)
from lakemq.engine.protocol.values.producers import InitProducer, ProducerSequences
from lakemq.engine.protocol.values.segments import Segments, segments_to_table
from lakemq.engine.protocol.values.topics import CreateTopic, TopicRef
from lakemq.tables.specs.messages import FILE_IDS, SEQUENCERS_FILES, FileFacts


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("t", 3)
    harness.create("u", 2)
    return harness


def list_segments(mq: Harness) -> Segments:
    """Return the segments of the last step."""
    (segments,) = [entry.segments for entry in mq.steps[-1].entries if entry.record.kind == "produced"]
    return segments


# -- offsets ------------------------------------------------------------------------------------------------


def test_segment_has_all_columns_of_its_rows(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({1: 4}))
    mq.one(mq.produce({0: 2, 1: 3}, producer=(pid, 0), file_id=G))
    assert [entry.record.kind for entry in mq.steps[-1].entries] == ["files_added", "produced", "answered"]
    columns = segments_to_table([list_segments(mq)]).to_pylist()[1]
    assert {name: value for name, value in columns.items() if value is not None} == {
        "kind": "data",
        "topic_id": 1,
        "topic": "t",
        "partition": 1,
        "base_offset": 4,
        "record_count": 3,
        "last_offset": 6,
        "file_id": G,
        "footer_hash": 7,
        "first_row": 2,
        "file_partition": 1,
        "min_timestamp_ms": 1_000,
        "max_timestamp_ms": 2_000,
        "producer_id": pid,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": False,
        "origin": "publish",
    }


def test_messages_of_a_log_append_time_topic_get_the_time_of_their_step(mq: Harness) -> None:
    mq.create("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})
    mq.now_ms = 77_000
    mq.one(mq.produce({0: 2}, "stamped"))
    segments = list_segments(mq)
    for name in ("append_time_ms", "min_timestamp_ms", "max_timestamp_ms"):
        assert segments.column(name) == [77_000]


def test_segments_of_a_letters_rows_name_the_sequencers_file(mq: Harness) -> None:
    ranges = Ranges([0, 0], [1, 0], [-1, -1], [0, 2], [2, 1], [0, 0], [0, 0])
    rejected = [RejectedRows("t", -1, 3, 1, "INVALID_TIMESTAMP", "before 1970")]
    first = Produce(mq.refs("t"), ranges, mq.state.step, rejected=rejected)
    second = msgspec.structs.replace(first, first_row=4)
    results = mq.ask(first, second, inline_rows=8)
    assert results[1] == Published([Unit("t", 0, 1, 1), Unit("t", 1, 2, 2)], rejected_count=1)
    produced = [entry for entry in mq.steps[-1].entries if entry.record.kind == "produced"]
    assert [entry.segments.column("first_row") for entry in produced] == [[10, 12], [14, 16]]
    assert set(produced[0].segments.column("file_id")) == {inline_file(3, 8).file.file_id}
    dead = [entry.record for entry in mq.steps[-1].entries if entry.record.kind == "rows_rejected"]
    assert [(d.first_row, d.record_count, d.error) for d in dead] == [  # type: ignore[union-attr]
        (13, 1, "INVALID_TIMESTAMP"),
        (17, 1, "INVALID_TIMESTAMP"),
    ]


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": Ranges([0], [0], [0], [0], [], [0], [0])},
        {"topics": [TopicRef("t", 1, 3), TopicRef("t", 1, 3)]},
        {"rejected": [RejectedRows("t", 0, 4, 2, "E", "r")]},
        {"producer": ProducerSequences(0, 0, [0], [1], [0])},
        {"producer": ProducerSequences(0, 0, [1], [0], [0])},
        {"application": ApplicationVersion("app", 1, "a b")},
    ],
)
def test_publish_that_contradicts_itself_is_refused(mq: Harness, change: dict[str, Any]) -> None:
    mq.producer()
    request = Produce(
        mq.refs("t"), Ranges([0], [0], [0], [0], [2], [0], [0]), mq.state.step, [DataFile(F, 9, 5, 0, 0, 7)]
    )
    refusal = mq.refused(msgspec.structs.replace(request, **change))
    assert refusal.error in ("INVALID_REQUEST", "INVALID_TOPIC_EXCEPTION")


@pytest.mark.parametrize(("first_row", "count"), [(0, 9), (7, 2), (8, 1), (2**40, 1)])
def test_request_that_names_rows_of_another_letter_is_refused(mq: Harness, first_row: int, count: int) -> None:
    """The sequencer writes the rows of many letters to one file."""
    request = Produce(mq.refs("t"), Ranges([0], [0], [-1], [first_row], [count], [0], [0]), mq.state.step)
    assert mq.refused(request, inline_rows=8).error == "INVALID_REQUEST"


def test_missing_or_changed_file_is_refused(mq: Harness) -> None:
    request = mq.produce({0: 1})
    declared = facts_of(request.files[0])
    for facts, expected in [
        ({}, "no file"),
        ({F: None}, "no file"),
        ({F: declared._replace(size_bytes=99)}, "99 bytes, 1 rows, footer 7"),
        ({F: declared._replace(record_count=2)}, "100 bytes, 2 rows, footer 7"),
        ({F: declared._replace(footer_hash=8)}, "100 bytes, 1 rows, footer 8"),
        ({F: FileFacts(100, flaw="no Parquet file")}, "100 bytes, no Parquet file"),
    ]:
        decision = machine.decide_request(mq.state, request, DecisionInputs(facts=facts))
        assert isinstance(decision.result, Refusal)
        assert (decision.result.error, decision.result.found) == ("FILE_MISSING", expected)
        assert decision.entries == ()


@pytest.mark.parametrize("file_id", [SEQUENCERS_FILES, SEQUENCERS_FILES | F, FILE_IDS - 1])
def test_file_with_an_id_of_the_sequencers_is_refused(mq: Harness, file_id: int) -> None:
    refusal = mq.refused(mq.produce({0: 1}, file_id=file_id))
    assert refusal.error == "INVALID_REQUEST"
    assert f"{file_id:016x}" in refusal.message


# -- columns against the model ------------------------------------------------------------------------------

SHAPES = [3, 1, 2]


@st.composite
def produces(draw: st.DrawFn) -> tuple[Ranges, list[int], ProducerSequences | None]:
    """Draw ranges of up to three topics in any order over two files, and sequences near the next ones."""
    topics = draw(st.permutations(range(3)))[: draw(st.integers(1, 3))]
    rows = draw(st.lists(st.tuples(*(st.integers(0, 5),) * 4, st.integers(1, 3)), max_size=12))
    ranges = Ranges()
    for topic, partition, file, first, count in rows:
        t = topic % len(topics)
        values = (t, partition % SHAPES[topics[t]], file % 2, first, count, 0, 0, -1, -1)
        for name, value in zip(ranges.__struct_fields__, values, strict=True):
            getattr(ranges, name).append(value)
    if not draw(st.booleans()):
        return ranges, topics, None
    units = sorted(set(zip(ranges.topic_index, ranges.partition, strict=True)), reverse=draw(st.booleans()))
    bases = [draw(st.sampled_from([0, 0, 0, 1, 2, 3])) for _ in units]
    if not units:
        return ranges, topics, None
    epoch = draw(st.sampled_from([0, 0, 1]))
    return ranges, topics, ProducerSequences(0, epoch, [t for t, _ in units], [p for _, p in units], bases)


@examples(80)
@given(st.lists(produces(), min_size=1, max_size=5))
def test_core_decides_columns_as_a_model_decides_rows(drawn_requests: list[Any]) -> None:
    mq, model = Harness(), Model()
    rows = [[f"{file}.{row}" for row in range(9)] for file in (F, G)]
    for request in [*(CreateTopic(f"t{i}", n) for i, n in enumerate(SHAPES)), InitProducer()]:
        assert mq.one(request) == model.decide(request, [], mq.now_ms)
    for ranges, topics, producer in drawn_requests:
        files = [DataFile(F, 9, 9, 0, 0, 7), DataFile(G, 9, 9, 0, 0, 7)]
        request = Produce(mq.refs(*(f"t{i}" for i in topics)), ranges, mq.state.step, files, producer=producer)
        result = mq.one(request)
        assert (result.error if isinstance(result, Refusal) else result) == model.decide(request, rows, mq.now_ms)
    logs: dict[tuple[int, int], dict[int, str]] = {}
    for segment in segments_to_table([entry.segments for step in mq.steps for entry in step.entries]).to_pylist():
        log = logs.setdefault((segment["topic_id"], segment["partition"]), {})
        for i in range(segment["record_count"]):
            offset = segment["base_offset"] + i
            assert offset not in log, "an offset is one message for ever"
            log[offset] = f"{segment['file_id']}.{segment['first_row'] + i}"
    expected = {(t.topic_id, p): log for t in model.topics.values() for p, log in enumerate(t.logs) if log}
    assert {key: [log[i] for i in range(len(log))] for key, log in logs.items()} == expected
    marks = {i: t.high_watermarks.tolist() for i, t in mq.state.topics.items()}
    assert marks == {i: [len(log) for log in t.logs] for i, t in model.topics.items()}


small = st.integers(-1, 4)


@examples()
@given(st.lists(st.tuples(small, small, small, small, small), max_size=4), small, st.sampled_from([0, -1]))
def test_ranges_outside_topics_files_and_rows_are_refused(
    ranges: list[tuple[int, ...]], shift: int, first_file: int
) -> None:
    topic_index, partition, file, first_row, record_count = [list(column) for column in zip(*ranges, strict=True)] or [
        []
    ] * 5
    source = RowSource([PendingFile(7, 3), PendingFile(8, 2)], [3, 2], shift, first_file)
    times_ms = [0] * len(ranges)
    requested = Ranges(topic_index, partition, file, first_row, record_count, times_ms, times_ms)
    expected = all(
        0 <= t < 2 and 0 <= p < (1, 3)[t] and 0 <= f - first_file < 2 and r + shift >= 0
        and c > 0 and r + shift + c <= (3, 2)[f - first_file]
        for t, p, f, r, c in ranges
    )  # fmt: skip
    try:
        RangeColumns.from_ranges(requested, [1, 3], source)
    except InvalidRequest:
        assert not expected
    else:
        assert expected
