"""The views `assignment_history` and `handoffs`: the owners of each partition over time, and how it moved."""

from typing import Any

import pyarrow as pa
import pytest
from golden.story import Story, play
from protocol_harness import HOUR_MS, Harness
from unit import projected
from unit.projected import project_tables, time_at
from unit.test_protocol_projection import tell_stories

from lakemq.engine.maintenance.retention import is_mostly_old, read_live_state, trim_rows
from lakemq.engine.protocol.values.groups import DeleteGroup, LeaveGroup
from lakemq.tables.specs.groups import ASSIGNMENT_MOVES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta.commits import StoredFile

QUEUE = {"group.protocol": "queue", "max.handoff.ms": 3_000, "rebalance.delay.ms": 5_000}
HANDOFFS = """
SELECT "group", topic, partition, from_member, to_member, took_ms, reason, redelivered
FROM handoffs
ORDER BY began_at, partition"""


def project_moves(mq: Harness) -> pa.Table:
    return project_tables(mq)[ASSIGNMENT_MOVES.name]


def sql(rows: pa.Table, query: str) -> list[tuple[Any, ...]]:
    empty_tables = {spec.name: spec.empty() for spec in TABLES}
    return projected.run_sql({**empty_tables, ASSIGNMENT_MOVES.name: rows}, query)


def find_owners(rows: pa.Table, at_ms: int) -> dict[int, str | None]:
    """Return the owner of each partition at that time."""
    at = time_at(at_ms).isoformat()
    query = (
        f"SELECT partition, owner FROM assignment_history WHERE since <= '{at}' AND (until > '{at}' OR until IS NULL)"
    )
    return dict(sql(rows, query))  # type: ignore[arg-type]


@pytest.fixture
def story() -> Story:
    """Return a story in which C1 alone owns both partitions of `t`, with five messages each, from 1000 ms on."""
    return play(
        {"create": {"t": 2}}, {"publish": {"t-0": 5, "t-1": 5}}, {"join": "C1", "config": QUEUE}, {"acquire": "C1"}
    )


@pytest.mark.slow
def test_assignment_history_shows_owners_times_and_reasons(story: Story) -> None:
    story.mq.now_ms = 10_000
    story.tell({"join": "C2"})
    assert sql(project_moves(story.mq), HANDOFFS) == [("g", "t", 1, "C1", None, None, "balance", 0)]
    story.tell({"wait_ms": 2_000})
    story.tell({"ack": {"t-1": "0-4"}})
    rows = project_moves(story.mq)
    assert sql(rows, HANDOFFS) == [("g", "t", 1, "C1", "C2", 2_000, "balance", 0)]
    assert find_owners(rows, 999) == {}
    assert find_owners(rows, 9_999) == {0: "C1", 1: "C1"}
    assert find_owners(rows, 11_999) == {0: "C1", 1: "C1"}
    assert find_owners(rows, 12_000) == {0: "C1", 1: "C2"}
    history = sql(
        rows,
        "SELECT state, owner, since, until, reason FROM assignment_history WHERE partition = 1 ORDER BY since, until",
    )
    assert [row for row in history if row[2] != row[3]] == [
        ("ready", "C1", time_at(1_000), time_at(10_000), "balance"),
        ("paused", "C1", time_at(10_000), time_at(12_000), "balance"),
        ("ready", "C2", time_at(12_000), None, "balance"),
    ]
    assert ("unassigned", None, time_at(12_000), time_at(12_000), "handed over") in history


def test_handoff_counts_messages_that_are_delivered_again(story: Story) -> None:
    story.tell({"ack": {"t-1": ["0-1", 3]}})
    story.tell({"join": "C2"})
    story.tell({"wait_ms": 3_000})
    assert sql(project_moves(story.mq), HANDOFFS) == [("g", "t", 1, "C1", "C2", 3_000, "balance", 2)]


@pytest.mark.slow
def test_lost_member_hands_over_after_the_rebalance_delay(story: Story) -> None:
    story.mq.now_ms = 10_000
    story.tell({"join": "C2"})
    story.tell({"ack": {"t-1": "0-4"}})
    story.mq.now_ms = 20_000
    story.tell({"silent": "C1"})
    assert find_owners(project_moves(story.mq), 20_001) == {0: None, 1: "C2"}
    story.tell({"wait_ms": 5_000})
    assert sql(project_moves(story.mq), HANDOFFS)[1:] == [("g", "t", 0, "C1", "C2", 5_000, "session", 5)]


@pytest.mark.slow
def test_member_that_returns_in_time_has_no_handoff(story: Story) -> None:
    assert {row["epoch"] for row in project_moves(story.mq).to_pylist()} == {
        story.mq.state.groups["g"].assignments[1, 0].epoch
    }
    epochs = {tp: assignment.epoch for tp, assignment in story.mq.state.groups["g"].assignments.items()}
    story.tell({"silent": "C1"})
    assert [row[3:5] for row in sql(project_moves(story.mq), HANDOFFS)] == [("C1", None)] * 2
    story.tell({"join": "C1", "knows": True})
    assert {tp: assignment.epoch for tp, assignment in story.mq.state.groups["g"].assignments.items()} == epochs
    assert sql(project_moves(story.mq), HANDOFFS) == []


@pytest.mark.slow
def test_newest_history_rows_match_the_state_after_stories() -> None:
    query = "SELECT g.group, topic, partition, state, owner FROM assignment_history g WHERE until IS NULL"
    for mq in tell_stories()[::12]:
        expected = {
            (group.group, assignment.topic, tp[1], assignment.status.value, assignment.owner)
            for group in mq.state.groups.values()
            for tp, assignment in group.assignments.items()
            if assignment.status.value != "unassigned"
        }
        assert {row for row in sql(project_moves(mq), query) if row[3] != "unassigned"} == expected


# -- retention ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_trimming_keeps_the_last_old_move_of_each_partition(story: Story, whole: bool) -> None:
    story.tell({"create": {"u": 1}})
    story.tell({"join": "C9", "topics": ["u"], "group": "other"})
    story.mq.ask(LeaveGroup("other", ["C9"]), DeleteGroup("other"))
    story.tell({"join": "C2"})
    story.tell({"ack": {"t-1": "0-4"}})
    story.mq.now_ms += HOUR_MS
    story.tell({"silent": "C1"})
    rows, now = project_moves(story.mq), read_live_state(story.mq.state)
    remaining = trim_rows(ASSIGNMENT_MOVES, rows, now, HOUR_MS - 1, whole)
    old_moves = [] if whole else [("u", 0, "gone", None)]
    assert [(row["topic"], row["partition"], row["state"], row["owner"]) for row in remaining.to_pylist()] == [
        ("t", 0, "ready", "C1"),
        *old_moves,
        ("t", 1, "ready", "C2"),
        ("t", 0, "unbound", None),
    ]
    assert find_owners(remaining, story.mq.now_ms) == find_owners(rows, story.mq.now_ms)
    assert [row[3:5] for row in sql(remaining, HANDOFFS)] == [("C1", None)]
    assert trim_rows(ASSIGNMENT_MOVES, remaining, now, HOUR_MS - 1, whole) == remaining


def test_large_file_of_old_moves_is_merged_again(story: Story) -> None:
    now = read_live_state(story.mq.state)
    old = StoredFile("f", 1 << 30, 1, {"max.moved_at_ms": now.now_ms - HOUR_MS})
    assert is_mostly_old(ASSIGNMENT_MOVES, old, now, HOUR_MS - 1)
    assert not is_mostly_old(ASSIGNMENT_MOVES, old, now, HOUR_MS)
