"""Transactions beyond the stories: records of one step, rows of the tables, and state that is never dropped."""

from typing import Any

import pytest
from protocol_harness import F, Harness

from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.log import Published
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit, OffsetsCommitted
from lakemq.engine.protocol.values.producers import TransactionRef
from lakemq.engine.protocol.values.transactions import (
    EndTransaction,
    MarkersWritten,
    TransactionEnded,
    TransactionMoved,
)
from lakemq.tables.specs.registry import BY_NAME


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("t", 2)
    harness.create("u", 1)
    return harness


def publish(mq: Harness, ref: TransactionRef, *topic_partitions: tuple[str, int], rows: int = 2) -> None:
    result = mq.one(mq.produce_to(dict.fromkeys(topic_partitions, rows), F, ref))
    assert isinstance(result, Published), result


def commit_offsets(mq: Harness, group: str, offset: int, ref: TransactionRef | None, topic: str = "t") -> None:
    assert mq.one(CommitOffsets(group, [OffsetCommit(topic, 0, offset, "note")], ref)) == Done()


def rows(mq: Harness, name: str, steps: int = 1) -> list[dict[str, Any]]:
    """Return the rows that the last steps, projected in one pass, add to a table."""
    return list(project(mq.state, mq.steps[-steps:]).get(name, BY_NAME[name].empty()).to_pylist())


def test_commit_writes_prepare_markers_offsets_and_complete_in_one_step(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0), ("u", 0))
    commit_offsets(mq, "h", 2, ref)
    commit_offsets(mq, "g", 1, ref)
    mq.now_ms = 7_000
    assert mq.one(EndTransaction(ref, True, 3)) == TransactionEnded(0, 1)
    prepare, markers, of_g, of_h, complete, answered = (entry.record for entry in mq.steps[-1].entries)
    about = {
        "transactional_id": "etl",
        "producer_id": 0,
        "timeout_ms": 60_000,
        "started_at_ms": 1_000,
        "partitions": [(1, 0), (2, 0)],
        "groups": ["g", "h"],
        "reason": "producer",
    }
    assert prepare == TransactionMoved(**about, producer_epoch=0, status="PrepareCommit")
    assert markers == MarkersWritten("etl")
    assert of_g == OffsetsCommitted("g", [1], [OffsetCommit("t", 0, 1, "note", 1)])
    assert of_h == OffsetsCommitted("h", [1], [OffsetCommit("t", 0, 2, "note", 1)])
    assert complete == TransactionMoved(**about, producer_epoch=1, status="CompleteCommit")
    assert answered.kind == "answered"


def test_long_transaction_holds_one_offset_per_partition(mq: Harness) -> None:
    mq.one(mq.produce({0: 9}))
    ref = mq.begin("etl")
    for offset in range(9):
        commit_offsets(mq, "g", offset, ref)
    assert mq.state.transactions["etl"].offsets == {"g": [(1, OffsetCommit("t", 0, 8, "note", 1))]}
    assert mq.state.transactions["etl"].part_count == 1


def test_markers_are_rows_of_control_markers(mq: Harness) -> None:
    for name, commit in [("a", True), ("b", False)]:
        ref = mq.begin(name)
        publish(mq, ref, ("t", 0), ("u", 0))
        mq.one(EndTransaction(ref, commit, 1))
    names = ("topic", "partition", "offset", "first_offset", "marker", "transactional_id", "producer_id")
    marker_rows = [tuple(row[name] for name in names) for row in rows(mq, "control_markers", steps=6)]
    assert marker_rows == [
        ("t", 0, 2, 0, "COMMIT", "a", 0),
        ("u", 0, 2, 0, "COMMIT", "a", 0),
        ("t", 0, 5, 3, "ABORT", "b", 1),
        ("u", 0, 5, 3, "ABORT", "b", 1),
    ]
    assert [row["producer_epoch"] for row in rows(mq, "control_markers")] == [0, 0]
    assert [row["kind"] for row in rows(mq, "segments")] == ["abort", "abort"]
