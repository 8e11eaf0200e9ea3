"""Samples: the totals of a minute as rows of a table, which outlast the leader that has written them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden.story import Story
from unit.served import read_objects, run_sql, served, until

import lakemq
from lakemq.engine.maintenance.retention import read_live_state, trim_rows
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.namespace.progress import MINUTE_MS, MOST_SUBJECTS, Sampler
from lakemq.engine.protocol.projection import project
from lakemq.engine.protocol.values.groups import JoinGroup, LeaveGroup
from lakemq.engine.protocol.values.journal import StepBatch
from lakemq.engine.protocol.values.state import State
from lakemq.jobs.console.pages.overview import describe_since
from lakemq.jobs.reports.samples import read_samples
from lakemq.tables.specs.journal import SAMPLES
from lakemq.testing import MovableClock

Row = tuple[int, str, str, int | None, int | None]


class Leader:
    """Projects the steps of a story, as a leader does."""

    def __init__(self, story: Story) -> None:
        self.overdue: list[tuple[str, str]] = []
        self.mq, self.done = story.mq, len(story.mq.steps)
        self.sampler = Sampler(story.mq.state, lambda: self.overdue)

    def project(self, is_last: bool = False) -> list[Row]:
        """Write a pass, and return its rows: minute, topic, group, offsets, lag."""
        return [
            (row["minute_ms"] // MINUTE_MS, row["topic"], row["group"], row["offsets"], row["lag"])
            for row in self.write(is_last)
        ]

    def find_trouble(self) -> list[tuple[int, str, int | None]]:
        """Write a pass, and return its rows without a topic: minute, group, longest step or pause in minutes."""
        return [
            (row["minute_ms"] // MINUTE_MS, row["group"], row["step_p99_ms"] and row["step_p99_ms"] // MINUTE_MS)
            for row in self.write()
            if not row["topic"]
        ]

    def write(self, is_last: bool = False) -> list[dict[str, Any]]:
        """Write a pass, and return its rows."""
        steps = StepBatch(self.mq.steps[self.done :])
        self.done += len(steps)
        rows = self.sampler.take_rows(self.mq.state, steps, project(self.mq.state, steps), is_last)
        self.mq.state.changes.clear()
        return rows.to_pylist()


@pytest.fixture
def story() -> Story:
    story = Story()
    story.mq.now_ms = MINUTE_MS
    story.mq.state.lease_ms = 10 * MINUTE_MS
    story.tell({"create": {"t": 2}})
    return story


def go_on_to(story: Story, minute: int) -> None:
    """Put a renewal of the lease into this minute."""
    story.mq.now_ms = minute * MINUTE_MS
    story.mq.see()


def test_a_minute_gives_a_row_for_each_topic_and_group_that_changed(story: Story) -> None:
    leader = Leader(story)
    story.tell({"publish": {"t-0": 5, "t-1": 5}})
    assert leader.project() == [], "the minute goes on"
    story.tell({"commit_offsets": {"t-0": 3}})
    assert leader.project() == []
    go_on_to(story, 2)
    assert leader.project() == [(1, "t", "", 10, None), (1, "t", "g", 3, 2), (1, "", "", None, None)]
    story.tell({"publish": {"t-0": 1}})
    leader.project()
    go_on_to(story, 9)
    assert (2, "t", "g", 3, 3) in leader.project(), "a group lags more without doing anything"


def test_minutes_in_which_only_the_lease_is_renewed_give_no_row(story: Story) -> None:
    leader = Leader(story)
    for minute in range(2, 6):
        go_on_to(story, minute)
        assert leader.project() == []


# -- pauses, in which no step was decided -----------------------------------------------------------------


def test_pause_longer_than_the_lease_gives_a_row_at_once(story: Story) -> None:
    leader = Leader(story)
    story.mq.state.leader = "leader"
    go_on_to(story, 11)
    assert leader.find_trouble() == [], "as long as the lease"
    go_on_to(story, 22)
    assert leader.find_trouble() == [(22, "", 11)]
    go_on_to(story, 23)
    assert leader.find_trouble() == []


def test_pause_is_noted_in_the_minute_in_which_it_ends(story: Story) -> None:
    """Also by the next leader, and although the minute before the pause has no row yet."""
    leader = Leader(story)
    story.mq.state.leader = "leader"
    story.tell({"publish": {"t-0": 5}})
    assert leader.project() == []
    go_on_to(story, 62)
    assert leader.find_trouble() == [(62, "", 61), (1, "", None)]
    successor = Leader(story)
    go_on_to(story, 162)
    assert (162, "", 100) in successor.find_trouble()


def test_no_pause_is_noted_after_a_leader_that_has_resigned(story: Story) -> None:
    """Also if no pass has come after it has, so that the next leader projects its last step."""
    Leader(story).project(is_last=True)
    story.mq.state.leader = "dead"
    successor = Leader(story)
    story.mq.state.leader = ""
    story.mq.see()
    story.mq.state.leader = "successor"
    go_on_to(story, 62)
    assert successor.find_trouble() == []
    go_on_to(story, 90)
    assert successor.find_trouble() == [(90, "", 28)]


def test_pause_is_not_drawn_as_a_time_of_steps(story: Story) -> None:
    leader = Leader(story)
    leader.sampler.took_ms.extend([5, 5, 7])
    story.tell({"publish": {"t-0": 5}})
    assert leader.write() == []
    go_on_to(story, 480)
    stored = SAMPLES.table(SAMPLES.row(**row) for row in leader.write())
    handle: Any = SimpleNamespace(read=lambda columns, where: stored.select(columns))
    lines = read_samples(handle, MINUTE_MS, 482 * MINUTE_MS)
    assert np.nanmax(lines.step_p50_ms) == 5
    assert np.nanmax(lines.step_p99_ms) == 6


# -- rows of groups, of ends, and of many subjects --------------------------------------------------------


def test_group_has_a_row_for_each_minute_with_overdue_members(story: Story) -> None:
    story.mq.ask(JoinGroup("g", "C1", ["t"]))
    leader = Leader(story)
    leader.overdue = [("g", "C1"), ("g", "gone"), ("gone", "C1")]
    assert leader.find_trouble() == [(1, "g", None)]
    story.mq.see()
    assert leader.find_trouble() == [], "this minute has one"
    go_on_to(story, 2)
    assert ("g", None) in [row[1:] for row in leader.find_trouble() if row[0] == 2]
    story.mq.ask(LeaveGroup("g", ["C1"]))
    for minute in (3, 4):
        go_on_to(story, minute)
        assert [group for _, group, _ in leader.find_trouble() if group] == []


def test_a_leader_that_resigns_leaves_nothing_and_one_that_dies_leaves_all_to_the_next(story: Story) -> None:
    leader = Leader(story)
    story.tell({"publish": {"t-0": 5}})
    leader.project()
    assert (1, "t", "", 5, None) in leader.project(is_last=True)
    go_on_to(story, 2)
    assert Leader(story).project() == []
    story.mq.state.leader = "dead"
    successor = Leader(story)
    go_on_to(story, 3)
    assert successor.project() == [(2, "t", "", 5, None)]


def test_last_sample_of_a_deleted_topic_has_no_offsets(story: Story) -> None:
    leader = Leader(story)
    story.tell({"publish": {"t-0": 5}})
    story.tell({"commit_offsets": {"t-0": 3}})
    leader.project(is_last=True)
    story.tell({"delete": "t"})
    assert leader.project(is_last=True)[:2] == [(1, "t", "", None, None), (1, "t", "g", None, None)]


def test_more_subjects_than_a_minute_may_have_follow_in_the_next(story: Story) -> None:
    leader, topics = Leader(story), [f"u{number}" for number in range(MOST_SUBJECTS + 1)]
    for topic in topics:
        story.tell({"create": {topic: 1}})
    leader.project()
    passes = []
    for minute in (2, 3, 4):
        go_on_to(story, minute)
        passes.append({topic for _, topic, *_ in leader.project() if topic})
    assert passes == [{*topics[:-1]}, {topics[-1]}, set()]


def test_the_last_row_of_what_exists_outlives_the_retention() -> None:
    rows = SAMPLES.table(
        SAMPLES.row(step=step, minute_ms=minute, topic=topic, group="", offsets=offsets)
        for step, minute, topic, offsets in ((1, 0, "t", 1), (2, 10, "t", 2), (2, 10, "gone", None), (3, 100, "t", 3))
    )
    kept = trim_rows(SAMPLES, rows, read_live_state(State(now_ms=110)), 50, whole=True)
    assert kept.column("offsets").to_pylist() == [2, 3]


MESSAGES_PER_MINUTE = """
SELECT minute_ms, offsets - lag(offsets, 1, 0) OVER (PARTITION BY topic ORDER BY step) AS messages
FROM samples WHERE topic = 't' AND `group` = '' ORDER BY step"""


# -- a served namespace -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restart_loses_no_sample_and_sql_shows_messages_per_minute(tmp_path: Path) -> None:
    clock = MovableClock()
    with served(tmp_path, clock, **{"project.interval.ms": 50}) as mq:
        mq.topics.create("t", 2)
        mq.publish("t", pa.table({"value": ["x"] * 3}))
        until(lambda: read_watermark(mq.namespace.store).step >= mq.state().step)
        clock.advance(minutes=2)
        until(lambda: run_sql(mq, "SELECT max(offsets) FROM samples WHERE topic = 't'") == [(3,)])
        mq.publish("t", pa.table({"value": ["x"] * 4}))
    with served(tmp_path, clock, **{"project.interval.ms": 50}) as mq:
        mq.publish("t", pa.table({"value": ["x"] * 5}))
        until(lambda: read_watermark(mq.namespace.store).step >= mq.state().step)
        clock.advance(minutes=2)
        until(lambda: run_sql(mq, "SELECT max(offsets) FROM samples WHERE topic = 't'") == [(12,)])
        rows = read_objects(mq.namespace.path, "sql", MESSAGES_PER_MINUTE)
        assert [row["messages"] for row in rows if row["messages"]] == [3, 4, 5]
        ((steps, p50_ms, p99_ms),) = run_sql(
            mq, "SELECT sum(steps), min(step_p50_ms), max(step_p99_ms) FROM samples WHERE topic = ''"
        )
        assert steps >= 4
        assert 0 <= p50_ms <= p99_ms


MINUTE = 28_000_000
FIRST, END = (f"2023-03-28T{time}:00.000Z" for time in ("10:40", "10:43"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("troubles", "expected"),
    [
        ([], f" since at least {FIRST}"),
        ([("", None, 9_000)], f" since at least {FIRST}"),
        ([("", 75_000, None)], f" since {END}: before, no step came for 1.25 min"),
        ([("", None, 30_000)], f" since {END}: before, a delayed message was 30 s late"),
        ([("", 75_000, None), ("billing", None, None)], f" since {END}: before, members of billing were overdue"),
    ],
)
def test_overview_says_since_when_all_is_well_and_what_was_not(
    tmp_path: Path, troubles: list[tuple[str, int | None, int | None]], expected: str
) -> None:
    rows = [
        SAMPLES.row(step=step, minute_ms=(MINUTE + step) * MINUTE_MS, topic="", group="", steps=1) for step in (0, 9)
    ]
    for step, (group, pause_ms, late_ms) in enumerate(troubles, 3 - len(troubles)):
        moment = {"step": step, "minute_ms": (MINUTE + step) * MINUTE_MS}
        steps = {"steps": 0, "step_p99_ms": pause_ms} if pause_ms else {"steps": 1, "step_p99_ms": 9_000}
        rows.append(SAMPLES.row(**moment, topic="", group=group, **steps, late_ms=late_ms))
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        assert describe_since(SimpleNamespace(mq=mq)) == "", "there is no row yet"
        with mq.serving():
            mq.topics.create("t")
        handle = mq.namespace.store.open(SAMPLES)
        handle.append_at(handle.version, SAMPLES.table(rows))
        assert describe_since(SimpleNamespace(mq=mq)) == expected
