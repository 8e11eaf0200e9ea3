"""Steps as rows of the journal: they survive encoding, and rows of a newer version are refused as such."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from unit.protocol_values import counts, records, segments, texts

from lakemq.engine.protocol import errors
from lakemq.engine.protocol.codec.journal import decode_steps, decode_steps_after, encode_steps
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.log import Produced, RowsJournaled
from lakemq.engine.protocol.values.segments import NO_SEGMENTS, build_segments
from lakemq.engine.protocol.values.transactions import MarkersWritten
from lakemq.tables.specs.journal import JOURNAL

entries = st.builds(JournalEntry, records, st.just(NO_SEGMENTS) | segments, st.none() | texts)
steps = st.builds(Step, counts, counts, counts, st.lists(entries, min_size=1, max_size=4))


@pytest.mark.slow
@examples(40)
@given(st.lists(steps, min_size=1, max_size=3, unique_by=lambda s: s.step))
def test_steps_come_out_of_the_journal_as_they_went_in(written: list[Step]) -> None:
    rows = encode_steps(written)
    assert rows.schema == JOURNAL.stored_schema
    in_order = sorted(written, key=lambda step: step.step)
    assert decode_steps(rows) == in_order
    assert decode_steps(rows.combine_chunks()) == in_order
    assert decode_steps(rows.take(list(reversed(range(rows.num_rows))))) == in_order


def test_message_rows_that_travel_in_a_step_are_not_in_the_journal() -> None:
    riding = Step(1, 0, 1, [JournalEntry(RowsJournaled(7, 0, 2)), JournalEntry(Produced("t"))], b"two rows")
    plain = Step(2, 0, 1, [JournalEntry(Produced("t"))])
    assert decode_steps(encode_steps([riding, plain])) == [msgspec.structs.replace(riding, rows=None), plain]


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 9, 1001])
def test_few_and_many_segments_stay_with_their_entries(count: int) -> None:
    segments = build_segments(
        1,
        kind=["data"],
        topic_id=[1],
        topic=["t"],
        partition=[0],
        base_offset=[0],
        record_count=[1],
        last_offset=[0],
        transactional=[False],
        origin=["publish"],
    )
    entries = [
        entry
        for _ in range(count)
        for entry in (JournalEntry(Produced("t"), segments), JournalEntry(MarkersWritten("x")))
    ]
    steps = [Step(1, 0, 1, entries[:5]), Step(2, 0, 1, entries[5:])]
    assert decode_steps(encode_steps(steps)) == steps


@pytest.mark.parametrize(
    ("step_numbers", "last_step", "follow"),
    [([], 4, True), ([5], 4, True), ([6, 5], 4, True), ([5, 7], 4, False), ([6], 4, False), ([4, 5], 4, False)],
)
def test_steps_that_follow_leave_no_gap(step_numbers: list[int], last_step: int, follow: bool) -> None:
    steps = [Step(step, 0, 1, [JournalEntry(MarkersWritten("x"))]) for step in step_numbers]
    rows = encode_steps(steps)
    assert decode_steps_after(rows, last_step) == (sorted(steps, key=lambda step: step.step) if follow else None)


def test_a_row_of_the_journal_that_lacks_something_is_refused() -> None:
    rows = encode_steps([Step(1, 0, 1, [JournalEntry(MarkersWritten("x"))])])
    index = rows.column_names.index("decision")
    with pytest.raises(ValueError, match=r"journal\.decision is null"):
        decode_steps(rows.set_column(index, rows.schema.field(index), pa.array([None], pa.string())))


def test_no_rows_are_no_steps() -> None:
    assert decode_steps(JOURNAL.empty()) == []


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
