"""Transactions beyond the stories: records of one step, rows of the tables, and state that is never dropped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from protocol_harness import HOUR_MS, F, G, Harness, plain
from protocol_tables import Tables, add_pass, mark_of, restored

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.consuming.offsets import CommitOffsets, OffsetCommit, OffsetsCommitted
from lakemq.engine.protocol.values.decision import DecisionInputs, Limits
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import Published, Unit
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.segments import segments_to_table
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import DeleteRecords, DeleteTopic
from lakemq.engine.protocol.values.transactions import (
    AbortTransaction,
    EndTransaction,
    MarkersWritten,
    Transaction,
    TransactionEnded,
    TransactionMoved,
    TransactionStatus,
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


def list_last_entries(mq: Harness) -> list[JournalEntry]:
    """Return the entries of the last step."""
    return list(mq.steps[-1].entries)


def rows(mq: Harness, name: str, steps: int = 1) -> list[dict[str, Any]]:
    """Return the rows that the last steps, projected in one pass, add to a table."""
    return list(project(mq.state, mq.steps[-steps:]).get(name, BY_NAME[name].empty()).to_pylist())


# -- one step -----------------------------------------------------------------------------------------------


def test_a_commit_is_one_step_prepare_markers_offsets_complete(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0), ("u", 0))
    commit_offsets(mq, "h", 2, ref)
    commit_offsets(mq, "g", 1, ref)
    mq.now_ms = 7_000
    assert mq.one(EndTransaction(ref, True, 3)) == TransactionEnded(0, 1)
    prepare, markers, of_g, of_h, complete, answered = (entry.record for entry in list_last_entries(mq))
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


def test_an_abort_holds_no_offsets(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0))
    commit_offsets(mq, "g", 2, ref)
    mq.one(EndTransaction(ref, False))
    kinds = [entry.record.kind for entry in list_last_entries(mq)]
    assert kinds == ["transaction_moved", "markers_written", "transaction_moved", "answered"]


@pytest.mark.parametrize(("commit", "kind"), [(True, "commit"), (False, "abort")])
def test_markers_are_segments_that_say_where_the_transaction_began(mq: Harness, commit: bool, kind: str) -> None:
    mq.one(mq.produce({1: 5}))
    ref = mq.begin("etl")
    publish(mq, ref, ("u", 0), ("t", 1))
    mq.one(mq.produce({1: 1}))
    publish(mq, ref, ("t", 1))
    mq.one(EndTransaction(ref, commit, 2))
    (segments,) = [entry.segments for entry in list_last_entries(mq) if len(entry.segments)]
    common = {"kind": kind, "record_count": 1, "transactional": True, "producer_id": 0, "producer_epoch": 0}
    common.update(file_id=None, first_row=None, base_sequence=None, origin="publish")
    on_t = {**common, "topic": "t", "topic_id": 1, "partition": 1, "base_offset": 10, "last_offset": 10}
    on_u = {**common, "topic": "u", "topic_id": 2, "partition": 0, "base_offset": 2, "last_offset": 2}
    marker_rows = segments_to_table([segments]).to_pylist()
    assert [{**row, **expected} for row, expected in zip(marker_rows, [on_t, on_u], strict=True)] == marker_rows
    assert segments.column("first_offset") == [5, 0]
    assert mq.state.topic("t").high_watermarks.tolist() == [0, 11]


def test_data_of_a_transaction_says_so(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0))
    (segments,) = [entry.segments for entry in list_last_entries(mq) if len(entry.segments)]
    columns = [segments.column(name) for name in ("transactional", "producer_id", "producer_epoch", "base_sequence")]
    assert columns == [[True], [0], [0], [None]]
    request = mq.produce({0: 1}, producer=(ref.producer_id, ref.producer_epoch), transaction=ref)
    mq.one(request)
    (segments,) = [entry.segments for entry in list_last_entries(mq) if len(entry.segments)]
    assert segments.column("base_sequence") == [0]


def test_two_that_time_out_in_one_step_mark_one_partition_one_after_the_other(mq: Harness) -> None:
    for name in "ba":
        publish(mq, mq.begin(name), ("t", 0))
    mq.now_ms += 60_001
    moved = ["transaction_moved", "markers_written", "transaction_moved"]
    assert mq.expire() == moved + moved
    markers = [
        (entry.record.subject, entry.segments.column("base_offset"))
        for entry in list_last_entries(mq)
        if len(entry.segments)
    ]
    assert markers == [("a", [4]), ("b", [5])]
    assert mq.state.topic("t").high_watermarks.tolist() == [6, 0]
    assert mq.state.topic("t").last_stable_offsets.tolist() == [6, 0]


def test_one_that_is_taken_over_ends_in_the_step_of_the_init(mq: Harness) -> None:
    publish(mq, mq.begin("etl"), ("t", 0))
    mq.one(InitProducer("etl"))
    statuses = [entry.record.status for entry in list_last_entries(mq) if isinstance(entry.record, TransactionMoved)]
    assert statuses == ["PrepareAbort", "CompleteAbort", "Empty"]


def test_a_transaction_within_one_letter(mq: Harness) -> None:
    ref = mq.begin("etl")
    results = mq.ask(mq.produce({0: 2}, transaction=ref), EndTransaction(ref, True, 1), mq.produce({0: 1}, file_id=G))
    assert results == [Published([Unit("t", 0, 0, 2)]), TransactionEnded(0, 1), Published([Unit("t", 0, 3, 1)])]


def test_a_refused_end_changes_nothing(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0))
    assert mq.refused(EndTransaction(ref, True, 2)).error == "INVALID_TXN_STATE"
    assert mq.refused(EndTransaction(ref, True, 0)).error == "INVALID_TXN_STATE"
    stranger = msgspec.structs.replace(ref, producer_epoch=3)
    assert mq.refused(EndTransaction(stranger, False)).error == "PRODUCER_FENCED"


def test_what_was_refused_is_told_to_who_wants_to_commit(mq: Harness) -> None:
    ref = mq.begin("etl")
    mq.missing.add(F)
    refusal = mq.one(mq.produce({0: 1}, transaction=ref))
    assert isinstance(refusal, Refusal)
    assert refusal.error == "FILE_MISSING"
    for later in (mq.produce({0: 1}, transaction=ref), EndTransaction(ref, True, 1)):
        assert str(mq.refused(later).found).startswith("FILE_MISSING: Data file 0000000000000001 does not exist")


def test_sequences_are_those_of_the_transactions_producer(mq: Harness) -> None:
    ref, other = mq.begin("etl"), mq.producer()
    result = mq.one(mq.produce({0: 1}, producer=(other, 0), transaction=ref))
    assert isinstance(result, Refusal)
    assert result.error == "INVALID_REQUEST"
    assert mq.state.producers[other].units == {}


# -- state that is kept -------------------------------------------------------------------------------------


def test_a_long_transaction_holds_one_offset_per_partition(mq: Harness) -> None:
    mq.one(mq.produce({0: 9}))
    ref = mq.begin("etl")
    for offset in range(9):
        commit_offsets(mq, "g", offset, ref)
    assert mq.state.transactions["etl"].offsets == {"g": [(1, OffsetCommit("t", 0, 8, "note", 1))]}
    assert mq.state.transactions["etl"].part_count == 1


def test_nothing_of_an_ended_transaction_is_held(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0), ("u", 0))
    commit_offsets(mq, "g", 0, ref)
    mq.one(EndTransaction(ref, True, 2))
    transaction = mq.state.transactions["etl"]
    assert (transaction.partitions, transaction.offsets, transaction.part_count, transaction.started_at_ms) == (
        set(),
        {},
        0,
        None,
    )
    assert [topic.open_transactions for topic in mq.state.topics.values()] == [{}, {}]
    assert mq.state.ongoing == set()


def test_an_offset_commit_without_offsets_does_nothing(mq: Harness) -> None:
    ref = mq.begin("etl")
    assert mq.one(CommitOffsets("g", [], ref)) == Done()
    assert mq.one(CommitOffsets("g", [])) == Done()
    assert mq.state.ongoing == set()
    mq.one(EndTransaction(ref, True, 0))
    assert mq.state.offsets == {}


def test_the_producer_of_an_id_lives_as_long_as_the_id(mq: Harness) -> None:
    """However long the producer is silent, a repeat must still be recognised."""
    ref, idempotent = mq.begin("etl", 900_000), mq.producer()
    request = mq.produce({0: 1}, producer=(ref.producer_id, 0), transaction=ref)
    first = mq.one(request)
    mq.now_ms += 900_000
    mq.expire(producer_ms=1, transactional_id_ms=2 * HOUR_MS)
    assert set(mq.state.producers) == {ref.producer_id}
    assert idempotent not in mq.state.producers
    assert mq.one(request) == Published(first.units, duplicate=True)  # type: ignore[union-attr]
    mq.one(EndTransaction(ref, True, 1))
    mq.now_ms += 2 * HOUR_MS
    mq.expire(producer_ms=1, transactional_id_ms=2 * HOUR_MS)
    assert set(mq.state.producers) == {ref.producer_id}
    mq.now_ms += 1
    assert "transaction_moved" in mq.expire(producer_ms=1, transactional_id_ms=2 * HOUR_MS)
    assert (mq.state.producers, mq.state.transactions) == ({}, {})


def test_a_producer_id_that_is_used_up_is_forgotten_as_any_other(mq: Harness) -> None:
    mq.begin("etl")
    machine.fold(mq.state, [JournalEntry(TransactionMoved("etl", 0, 32_766, TransactionStatus.EMPTY, 60_000))])
    assert mq.begin("etl") == TransactionRef("etl", 1, 0)
    assert {i: (p.epoch, p.transactional_id) for i, p in mq.state.producers.items()} == {
        0: (32_767, None),
        1: (0, "etl"),
    }
    mq.now_ms += HOUR_MS + 1
    mq.expire(transactional_id_ms=2 * HOUR_MS)
    assert set(mq.state.producers) == {1}


def test_the_longest_timeout_is_a_setting(mq: Harness) -> None:
    request = InitProducer("etl", 5_000)
    for longest, error in [(4_999, "INVALID_TRANSACTION_TIMEOUT"), (5_000, None)]:
        limits = Limits(transaction_max_timeout_ms=longest)
        result = machine.decide_request(mq.state, request, DecisionInputs(limits)).result
        assert getattr(result, "error", None) == error


def test_an_open_transaction_keeps_its_id_from_expiring(mq: Harness) -> None:
    ref = mq.begin("etl", 900_000)
    publish(mq, ref, ("t", 0))
    mq.now_ms += 900_000
    mq.expire(transactional_id_ms=1)
    assert mq.state.transactions["etl"].status == "Ongoing"


def test_last_stable_offsets_never_move_back(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0))
    mq.one(DeleteRecords("t", {0: -1}))
    assert mq.state.topic("t").last_stable_offsets.tolist() == [2, 0]
    publish(mq, ref, ("t", 0))
    assert mq.state.topic("t").last_stable_offsets.tolist() == [2, 0]
    mq.one(EndTransaction(ref, False))
    assert mq.state.topic("t").last_stable_offsets.tolist() == [5, 0]
    # the messages that the marker ends began before everything that is left
    assert list_last_entries(mq)[1].segments.column("first_offset") == [0]


# -- tables -------------------------------------------------------------------------------------------------


def test_the_transaction_log_has_a_row_per_transition(mq: Harness) -> None:
    ref = mq.begin("etl", 5_000)
    publish(mq, ref, ("t", 1))
    commit_offsets(mq, "g", 0, ref)
    mq.now_ms = 3_000
    mq.one(EndTransaction(ref, True, 2, batch_id=4))
    log_rows = rows(mq, "transactions", steps=4)
    names = ("producer_epoch", "state", "started_at_ms", "updated_at_ms", "topics", "groups", "reason", "batch_id")
    assert [tuple(row[name] for name in names) for row in log_rows] == [
        (0, "Empty", None, 1_000, [], [], None, None),
        (0, "Ongoing", 1_000, 1_000, ["t-1"], [], None, None),
        (0, "Ongoing", 1_000, 1_000, ["t-1"], ["g"], None, None),
        (0, "PrepareCommit", 1_000, 3_000, ["t-1"], ["g"], "producer", 4),
        (1, "CompleteCommit", 1_000, 3_000, ["t-1"], ["g"], "producer", 4),
    ]
    assert {(row["transactional_id"], row["producer_id"], row["timeout_ms"]) for row in log_rows} == {("etl", 0, 5_000)}
    assert [row["position"] for row in rows(mq, "transactions")] == [0, 3]


def test_markers_have_a_table_of_their_own(mq: Harness) -> None:
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


def test_consumer_offsets_are_written_when_they_count(mq: Harness) -> None:
    mq.one(mq.produce({0: 3}))
    ref = mq.begin("etl")
    commit_offsets(mq, "g", 2, ref)
    assert rows(mq, "consumer_offsets") == []
    mq.now_ms = 9_000
    mq.one(EndTransaction(ref, True, 1))
    (row,) = rows(mq, "consumer_offsets")
    assert row == {
        "step": mq.state.step,
        "group": "g",
        "topic_id": 1,
        "topic": "t",
        "partition": 0,
        "committed_offset": 2,
        "ranges": None,
        "metadata": "note",
        "committed_at_ms": 9_000,
        "deleted_count": 0,
        "expired_count": 0,
        "silent_since_ms": 0,
        "shard": 3,
        "removed": False,
    }


def test_partitions_say_where_they_are_stable_and_who_is_open(mq: Harness) -> None:
    mq.one(mq.produce({0: 3}))
    for name in "ab":
        publish(mq, mq.begin(name), ("t", 0))
    names = ("partition", "high_watermark", "last_stable_offset", "open_transactions")
    (row,) = rows(mq, "partitions")
    open_transactions = [{"producer_id": 0, "first_offset": 3}, {"producer_id": 1, "first_offset": 5}]
    assert tuple(row[name] for name in names) == (0, 7, 3, open_transactions)
    mq.one(EndTransaction(mq.current("a"), True, 1))
    (row,) = rows(mq, "partitions")
    assert tuple(row[name] for name in names) == (0, 8, 5, open_transactions[1:])


def test_producers_say_who_has_an_id_and_who_had_it(mq: Harness) -> None:
    mq.begin("etl")
    machine.fold(mq.state, [JournalEntry(TransactionMoved("etl", 0, 32_766, TransactionStatus.EMPTY, 60_000))])
    mq.begin("etl")
    assert {row["producer_id"]: row["producer_epoch"] for row in rows(mq, "producers")} == {0: 32_767, 1: 0}
    (row,) = rows(mq, "transactional_ids")
    assert (row["transactional_id"], row["producer_id"], row["producer_epoch"]) == ("etl", 1, 0)
    mq.now_ms += HOUR_MS + 1
    mq.expire()
    assert all(row["removed"] for row in rows(mq, "producers"))


def test_a_restart_after_any_step_finds_the_transaction_as_it_was(mq: Harness) -> None:
    """The restart may come after a step that changes nothing, such as a second offset commit, or a refusal."""
    first = mq.begin("etl")
    offsets = [CommitOffsets("g", [OffsetCommit("t", 0, offset)], first) for offset in (0, 1)]
    gap = mq.produce({0: 1}, producer=(first.producer_id, 0), sequence=9, transaction=first)
    story: list[AnyRequest] = [
        mq.produce({0: 2}, transaction=first),
        mq.produce({0: 1}, transaction=first),
        *offsets,
        gap,
        EndTransaction(first, False),
        InitProducer("etl"),
        InitProducer("other"),
        mq.produce({1: 1}, transaction=TransactionRef("etl", first.producer_id, 2)),
        AbortTransaction("etl"),
        InitProducer("other"),
    ]
    tables: Tables = {}
    add_pass(tables, mq.state, mq.steps)
    for request in story:
        mq.one(request)
        add_pass(tables, mq.state, mq.steps[-1:])
        assert plain(restored(mark_of(mq.state), tables)) == plain(mq.state), request


def test_a_transaction_is_the_same_row_however_it_came_about() -> None:
    topic_partitions = [(topic, partition) for topic in range(40) for partition in (1, 0)]
    moved = TransactionMoved("etl", 0, 0, TransactionStatus.ONGOING, 1)
    steps = [Step(1, 0, 1, [JournalEntry(moved)])]
    first, other = (
        State(step=1, transactions={"etl": Transaction(0, 0, 1, TransactionStatus.ONGOING, 0, partitions=set(order))})
        for order in (topic_partitions, topic_partitions[::-1])
    )
    for state in (first, other):
        assert state.change_transaction("etl")
    assert project(first, steps)["transactional_ids"] == project(other, steps)["transactional_ids"]


def test_of_a_topic_deleted_meanwhile_a_transaction_leaves_nothing(mq: Harness) -> None:
    ref = mq.begin("etl")
    publish(mq, ref, ("t", 0), ("u", 0))
    mq.one(DeleteTopic("u"))
    mq.one(EndTransaction(ref, True, 1))
    assert [row["topic"] for row in rows(mq, "control_markers")] == ["t"]
    assert [row["topics"] for row in rows(mq, "transactions")] == [["t-0"], ["t-0"]]
    assert plain(machine.replay(State(), mq.steps)) == plain(mq.state)
