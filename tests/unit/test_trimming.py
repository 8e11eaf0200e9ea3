"""Merging trims the history of transactions, markers below the log start, and segments of deleted topics."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from protocol_harness import F, G, Harness, letter_bytes
from stateful.world import World

from lakemq.engine.maintenance.row_trimming import is_mostly_old, read_live_state, trim_rows
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteRecords, DeleteTopic
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.delta.commits import StoredFile

RETENTION_MS = 1000


@pytest.fixture
def mq() -> Harness:
    """A namespace with transactions of `old`, ended long ago, and of `open`.

    Markers are at offset 1 of t-0, u-0 and t-1.
    """
    harness = Harness()
    harness.create("t", 2)
    harness.create("u")
    old = harness.begin("old")
    harness.one(harness.produce_to({("t", 0): 1, ("u", 0): 1, ("t", 1): 1}, F, old))
    harness.one(EndTransaction(old, True, 1))
    harness.one(harness.produce_to({("t", 0): 1}, G, harness.begin("open", 900_000)))
    harness.now_ms += RETENTION_MS + 1
    harness.begin("young")
    return harness


def trim_table(mq: Harness, name: str, whole: bool = True) -> list[dict[str, Any]]:
    table = project(mq.state, mq.steps).get(name, BY_NAME[name].empty())
    return list(trim_rows(BY_NAME[name], table, read_live_state(mq.state), RETENTION_MS, whole).to_pylist())


def test_young_and_open_transactions_stay(mq: Harness) -> None:
    assert [(row["transactional_id"], row["state"]) for row in trim_table(mq, "transactions")] == [
        ("open", "Empty"),
        ("open", "Ongoing"),
        ("young", "Empty"),
    ]
    mq.one(AbortTransaction("open"))
    states = [row["state"] for row in trim_table(mq, "transactions") if row["transactional_id"] == "open"]
    assert states == ["PrepareAbort", "CompleteAbort"]


def test_a_marker_goes_when_the_log_start_has_passed_it(mq: Harness) -> None:
    def places() -> list[tuple[str, int, int]]:
        return [(row["topic"], row["partition"], row["offset"]) for row in trim_table(mq, "control_markers")]

    assert places() == [("t", 0, 1), ("t", 1, 1), ("u", 0, 1)]
    mq.one(DeleteRecords("t", {0: 1, 1: 2}))
    assert places() == [("t", 0, 1), ("u", 0, 1)]
    mq.one(DeleteTopic("t"))
    assert places() == [("u", 0, 1)]


@pytest.mark.parametrize("whole", [True, False])
def test_segments_of_deleted_topics_go(mq: Harness, whole: bool) -> None:
    mq.one(DeleteRecords("t", {0: 1}))
    before = trim_table(mq, "segments", whole)
    mq.one(DeleteTopic("t"))
    of_u = [row for row in before if row["topic"] == "u"]
    segments = trim_table(mq, "segments", whole)
    assert [row for row in segments if row["topic"] == "u"] == of_u
    # otherwise rows of the topic in other files would come back to the views
    assert [row["kind"] for row in segments if row["topic"] == "t"] == ([] if whole else ["topic_deleted"])


def make_stored_file(**statistics: Any) -> StoredFile:
    return StoredFile("f", 1 << 30, 1, {name.replace("_of_", "."): value for name, value in statistics.items()})


def test_large_files_of_which_nothing_stays_are_merged_once_more(mq: Harness) -> None:
    now = read_live_state(mq.state)

    def spent(name: str, **statistics: Any) -> bool:
        return is_mostly_old(BY_NAME[name], make_stored_file(**statistics), now, RETENTION_MS)

    assert spent("transactions", max_of_updated_at_ms=now.now_ms - RETENTION_MS - 1)
    assert not spent("transactions", max_of_updated_at_ms=now.now_ms - RETENTION_MS)
    assert spent("segments", min_of_topic_id=3, max_of_topic_id=9)
    assert not spent("segments", min_of_topic_id=2, max_of_topic_id=9)
    assert not spent("control_markers")
    assert not spent("rejected_rows", min_of_topic_id=3, max_of_topic_id=9)


def test_live_state_is_a_copy(mq: Harness) -> None:
    now = read_live_state(mq.state)
    mq.one(DeleteRecords("t", {0: 1}))
    mq.one(DeleteTopic("u"))
    mq.one(AbortTransaction("open"))
    assert (sorted(now.topics), now.ongoing) == ([1, 2], {"open"})
    assert now.topics[1].log_starts.tolist() == [0, 0]


# -- trimming by a leader -------------------------------------------------------------------------------


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.close()


@pytest.mark.extended
@pytest.mark.slow
def test_a_leader_trims_as_it_merges(world: World) -> None:
    leader, background = world.sequencer()
    world.lead(leader)

    def ask(*requests: AnyRequest) -> Any:
        client_id, now_ms = world.new_id(), world.clock.now_ms()
        letter = letter_bytes(Letter(client_id, 1, list(requests), now_ms), None)
        world.namespace.mailbox.put(client_id, 1, letter, now_ms)
        leader.step()
        background.run()
        return world.take_reply(client_id, 1)

    def table(name: str) -> pa.Table:
        return world.namespace.store.open(BY_NAME[name]).read()

    ask(CreateTopic("kept", 1), CreateTopic("gone", 1), InitProducer("old"))
    assert table("transactions").num_rows == 1
    ask(DeleteTopic("gone"))
    world.clock.ms += 8 * 86_400_000
    for i in range(12):
        ask(InitProducer(f"young-{i % 3}"), CreateTopic(f"short-{i}", 1))
        ask(DeleteTopic(f"short-{i}"))
        world.clock.sleep(11_000)  # the floor is an older watermark
    states = {(row["transactional_id"], row["state"]) for row in table("transactions").to_pylist()}
    assert ("old", "Empty") not in states
    assert ("young-0", "Empty") in states
    few = 15  # rows since the last merge
    for name in ("topics", "partitions", "segments"):
        assert table(name).num_rows < few, name
    fresh = world.reader.refresh()
    assert list(fresh.topic_ids) == ["kept"]
