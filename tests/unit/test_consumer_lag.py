"""The view `consumer_lag` says of each group what `mq.groups.lag` says."""

from __future__ import annotations

from typing import Any

import pytest
from golden.story import Story
from protocol_harness import Harness
from unit.projected import sql, tables
from unit.test_protocol_projection import SEEDS, busy

from lakemq.engine.client.consume.groups import _rows

Lag = tuple[str, str, int, int]


def in_sql(mq: Harness) -> list[Lag]:
    query = "SELECT l.group, topic, partition, lag FROM consumer_lag l ORDER BY ALL"
    return [(group, topic, partition, lag) for group, topic, partition, lag in sql(tables(mq), query)]


def in_python(mq: Harness) -> list[Lag]:
    rows = (row for group in mq.state.offsets for row in _rows(mq.state, group))
    return sorted((one.group, one.topic, one.partition, one.lag) for one in rows if one.lag is not None)


@pytest.fixture
def story() -> Story:
    """C1 has been given ten messages of `t-0`."""
    story = Story()
    for line in (
        {"create": {"t": 1}},
        {"publish": {"t-0": 10}},
        {"join": "C1", "config": {"group.protocol": "queue", "isolation.level": "read_uncommitted"}},
        {"acquire": "C1"},
    ):
        story.tell(line)
    return story


@pytest.mark.parametrize(
    ("acknowledged", "left"),
    [([], 10), (["0-1"], 8), (["0-1", "4-5"], 6), (["3", "5", "7", "9"], 6), (["1-9"], 1), (["0-9"], 0)],
)
def test_what_is_acknowledged_past_the_committed_offset_is_not_left(
    story: Story, acknowledged: list[str], left: int
) -> None:
    if acknowledged:
        story.tell({"ack": {"t-0": acknowledged}})
    assert in_sql(story.mq) == in_python(story.mq) == [("g", "t", 0, left)]


def test_what_is_rejected_or_given_back_is_left(story: Story) -> None:
    story.tell({"ack": {"t-0": "2-9"}})
    story.tell({"reject": {"t-0": 0}})
    story.tell({"nack": {"t-0": 1}})
    assert in_sql(story.mq) == in_python(story.mq) == [("g", "t", 0, 2)]


def test_beyond_what_is_stable_nothing_is_left_whatever_is_acknowledged_there(story: Story) -> None:
    story.tell({"who": "A", "init": "x"})
    story.tell({"who": "A", "publish": {"t-0": 6}})
    story.tell({"acquire": "C1"})
    story.tell({"ack": {"t-0": ["8-13"]}})
    assert in_sql(story.mq) == in_python(story.mq) == [("g", "t", 0, 8)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_so_it_is_whatever_has_happened(seed: int) -> None:
    mq: Any = busy(seed)
    assert in_sql(mq) == in_python(mq)
