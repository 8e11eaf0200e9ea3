"""A deleted topic disappears completely: from the state, the tables, committed offsets and transactions."""

import pyarrow as pa
import pytest
from protocol_harness import Harness, plain
from protocol_tables import add_pass, mark_of, restored

from lakemq.engine.maintenance.housekeeping import _drop_outdated_rows
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.offsets import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic, DeleteTopic
from lakemq.tables.specs.registry import BY_NAME


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("t", 2)
    harness.create("u")
    return harness


def commit(mq: Harness, group: str, topic: str, partition: int = 0) -> None:
    assert mq.one(CommitOffsets(group, [OffsetCommit(topic, partition, 0)])) == Done()


def test_groups_forget_the_offsets_of_a_deleted_topic(mq: Harness) -> None:
    for group, topic, partition in (("g", "t", 0), ("g", "t", 1), ("g", "u", 0), ("h", "t", 1)):
        commit(mq, group, topic, partition)
    mq.one(DeleteTopic("t"))
    assert {group: list(topic_partitions) for group, topic_partitions in mq.state.offsets.items()} == {"g": [(2, 0)]}
    assert mq.one(FetchOffsets("g")) == OffsetsFetched([OffsetCommit("u", 0, 0, topic_id=2)])


@pytest.mark.parametrize("size", [1, 2, 100])
def test_whole_merge_removes_the_rows_of_a_deleted_topic(mq: Harness, size: int) -> None:
    commit(mq, "g", "t")
    commit(mq, "g", "u")
    mq.one(DeleteTopic("t"))
    mq.one(CreateTopic("v", 1))
    mq.one(DeleteTopic("v"))
    state, tables = State(), dict[str, pa.Table]()
    for start in range(0, len(mq.steps), size):
        machine.replay(state, mq.steps[start : start + size])
        add_pass(tables, state, mq.steps[start : start + size])
    assert plain(restored(mark_of(state), tables)) == plain(mq.state)
    remaining = {
        name: _drop_outdated_rows(BY_NAME[name], tables[name], state.step, whole=True)
        for name in ("topics", "partitions", "consumer_offsets")
    }
    assert {name: table.column("topic_id").to_pylist() for name, table in remaining.items()} == {
        name: [2] for name in remaining
    }
    assert plain(restored(mark_of(state), {**tables, **remaining})) == plain(mq.state)
