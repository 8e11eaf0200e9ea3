"""The view `consumer_lag` shows the same figures of each group as `mq.groups.lag`."""

from __future__ import annotations

from typing import Any

import pytest
from golden.story import Story
from protocol_harness import Harness
from unit.projected import project_tables, run_sql
from unit.test_protocol_projection import build_busy_namespace

from lakemq.engine.client.groups.group_info import describe_group
from lakemq.engine.client.groups.lag import list_partition_lags

Lag = tuple[str, str, int, int, str, int, int]


def query_lags(mq: Harness) -> list[Lag]:
    columns = "l.group, topic, partition, next_offset, counted_from, lag, deleted"
    query = f"SELECT {columns} FROM consumer_lag l ORDER BY ALL"
    return [tuple(row) for row in run_sql(project_tables(mq), query)]


def compute_lags(mq: Harness) -> list[Lag]:
    state = mq.state
    groups = {*state.offsets, *state.groups}
    partitions = {(group, *tp) for group in groups for tp in state.list_group_partitions(group)}
    rows = [row for group in groups for row in list_partition_lags(state, group)]
    return sorted(
        (row.group, row.topic, row.partition, row.next_offset, row.counted_from, row.lag, row.deleted)
        for row in rows
        # the tables of offsets do not show offsets that only an open transaction holds
        if (row.group, state.topic_ids[row.topic], row.partition) in partitions
    )


@pytest.fixture
def story() -> Story:
    """Return a story in which C1 has got ten messages of `t-0`."""
    story = Story()
    for line in (
        {"create": {"t": 1}},
        {"publish": {"t-0": 10}},
        {"join": "C1", "config": {"group.protocol": "queue", "isolation.level": "read_uncommitted"}},
        {"acquire": "C1"},
    ):
        story.tell(line)
    return story


def read_committed_offset(story: Story) -> int:
    return story.mq.state.offsets["g"][story.mq.state.topic_ids["t"], 0].offset


@pytest.mark.parametrize(
    ("acknowledged", "expected_lag"),
    [(["0-1", "4-5"], 6), (["3", "5", "7", "9"], 6), (["0-9"], 0)],
)
def test_lag_excludes_messages_acknowledged_past_the_committed_offset(
    story: Story, acknowledged: list[str], expected_lag: int
) -> None:
    story.tell({"ack": {"t-0": acknowledged}})
    assert (
        query_lags(story.mq)
        == compute_lags(story.mq)
        == [("g", "t", 0, read_committed_offset(story), "committed", expected_lag, 0)]
    )


def test_lag_includes_rejected_and_returned_messages(story: Story) -> None:
    story.tell({"ack": {"t-0": "2-9"}})
    story.tell({"reject": {"t-0": 0}})
    story.tell({"nack": {"t-0": 1}})
    expected_lag = ("g", "t", 0, read_committed_offset(story), "committed", 2, 0)
    assert query_lags(story.mq) == compute_lags(story.mq) == [expected_lag]


def test_offsets_behind_an_open_transaction_are_left_unless_they_are_acknowledged(story: Story) -> None:
    story.tell({"who": "A", "init": "x"})
    story.tell({"who": "A", "publish": {"t-0": 6}})
    story.tell({"acquire": "C1"})
    story.tell({"ack": {"t-0": ["8-13"]}})
    expected_lag = ("g", "t", 0, read_committed_offset(story), "committed", 10, 0)
    assert query_lags(story.mq) == compute_lags(story.mq) == [expected_lag]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reset", "next_offset", "counted_from", "deleted"),
    [("earliest", 3, "start", 3), ("latest", 10, "start", 0), ("none", 3, "log_start", 0)],
)
def test_lag_before_the_first_commit_counts_from_where_the_group_begins(
    reset: str, next_offset: int, counted_from: str, deleted: int
) -> None:
    story = Story()
    for line in (
        {"create": {"t": 2}},
        {"publish": {"t-0": 10}},
        {"join": "C1", "reset": reset},
        {"publish": {"t-0": 5}},
        {"delete_records": {"t-0": 3}},
    ):
        story.tell(line)
    rest = ("g", "t", 1, 0, counted_from, 0, 0)
    assert (
        query_lags(story.mq)
        == compute_lags(story.mq)
        == [("g", "t", 0, next_offset, counted_from, 15 - next_offset, deleted), rest]
    )
    described = describe_group(story.mq.state, "g", -1, 0)
    assert (described.partitions, described.lag, described.lag_counted_from) == (2, 15 - next_offset, [counted_from])
    story.tell({"commit_offsets": {"t-0": 12}, "member": "C1"})
    assert query_lags(story.mq) == compute_lags(story.mq) == [("g", "t", 0, 12, "committed", 3, deleted), rest]
    assert describe_group(story.mq.state, "g", -1, 0).lag_counted_from == ["committed", counted_from]


def test_lag_with_offsets_only_in_an_open_transaction_counts_from_the_log_start() -> None:
    story = Story()
    for line in (
        {"create": {"t": 1}},
        {"publish": {"t-0": 4}},
        {"who": "A", "init": "x"},
        {"who": "A", "commit_offsets": {"t-0": 2}},
    ):
        story.tell(line)
    (row,) = list_partition_lags(story.mq.state, "g")
    assert (row.committed_offset, row.next_offset, row.counted_from, row.lag) == (None, 0, "log_start", 4)
    assert row.pending == "x"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_view_and_groups_lag_agree_after_random_requests(seed: int) -> None:
    mq: Any = build_busy_namespace(seed)
    assert query_lags(mq) == compute_lags(mq)
