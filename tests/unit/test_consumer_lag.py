"""All places that show the lag of a group show the same: what the group can still read."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from golden.story import play
from protocol_harness import Harness
from unit.consuming import add, take_messages
from unit.projected import project_tables, run_sql
from unit.served import read_objects, served, until
from unit.test_protocol_projection import tell_stories

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.groups.group_info import describe_group
from lakemq.engine.client.groups.lag import list_partition_lags
from lakemq.jobs.console.console import Console, ConsoleSettings
from lakemq.jobs.console.pages.groups import read_groups as read_groups_page
from lakemq.jobs.console.pages.overview import read_overview
from lakemq.jobs.console.pages.topics import read_topic
from lakemq.jobs.console.parts import Table
from lakemq.jobs.doctor.namespace import check_losses
from lakemq.jobs.metrics.readers import FamilyBuilder, read_groups
from lakemq.jobs.metrics.server import open_registry
from lakemq.jobs.reports.history import list_lags, read_history

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reset", "next_offset", "counted_from", "deleted"),
    [("earliest", 3, "start", 3), ("latest", 10, "start", 0), ("none", 3, "log_start", 0)],
)
def test_lag_before_the_first_commit_counts_from_where_the_group_begins(
    reset: str, next_offset: int, counted_from: str, deleted: int
) -> None:
    story = play(
        {"create": {"t": 2}},
        {"publish": {"t-0": 10}},
        {"join": "C1", "reset": reset},
        {"publish": {"t-0": 5}},
        {"delete_records": {"t-0": 3}},
    )
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


@pytest.mark.extended
@pytest.mark.slow
def test_view_and_groups_lag_agree_after_stories() -> None:
    for mq in tell_stories()[::36]:
        assert query_lags(mq) == compute_lags(mq)


Lags = dict[tuple[str, str, int], int]
"""(group, topic, partition) -> lag."""

ALONE, LATE, WORKERS, LEFT, NEW = "alone", "late", "workers", "left", "new"
EXPECTED: Lags = {
    # committed 2 of 10, and 5 are deleted
    (LATE, "t", 0): 5,
    # 4 messages, 2 aborted ones, a marker, and 2 of an open transaction
    (LATE, "t", 1): 9,
    (LATE, "t", 2): 0,
    (LATE, "empty", 0): 0,
    # of 6 messages 3 were acknowledged, and of the others one was deleted
    (WORKERS, "acked", 0): 2,
    # it has committed nothing, and its member has left
    (LEFT, "t", 0): 5,
    (LEFT, "t", 1): 9,
    (LEFT, "t", 2): 3,
    # it has committed offsets and no members
    (ALONE, "t", 0): 5,
    (ALONE, "t", 1): 6,
}


@dataclass(frozen=True)
class Lagging:
    """A namespace with lag of every kind, and the live members of two groups."""

    mq: Connection
    late: GroupConsumer
    worker: QueueConsumer


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lagging]:
    with ExitStack() as stack:
        mq = stack.enter_context(served(tmp_path_factory.mktemp("lagging"), **{"project.interval.ms": 100}))
        for topic, partitions in (("t", 3), ("empty", 1), ("acked", 1)):
            mq.topics.create(topic, partitions)
        add(mq, "t", {0: 10, 1: 4, 2: 3})
        add(mq, "acked", {0: 6})
        late = stack.enter_context(mq.consumer(LATE, topics=["empty", "t"], protocol="cooperative"))
        until(lambda: bool(late.poll(max_records=1)) and len(late.assignment()) == 4)
        late.commit({("t", 0): 2, ("t", 1): 0, ("t", 2): 3})
        late.seek("t", 0, 2)
        late.seek("t", 1, 0)
        late.seek("t", 2, 3)
        with mq.consumer(ALONE, assign=["t"]) as consumer:
            consumer.commit({("t", 0): 0, ("t", 1): 3})
        with mq.consumer(LEFT, topics=["t"], protocol="cooperative") as consumer:
            consumer.poll(max_records=1)
        mq.groups.create(NEW, {"group.protocol": "queue"})
        worker = stack.enter_context(mq.consumer(WORKERS, topics=["acked"], protocol="queue"))
        messages = take_messages(worker, 6)
        worker.ack([messages[offset] for offset in (1, 3, 4)])
        worker.flush()
        for name, ends in (("aborting", True), ("opening", False)):
            producer = stack.enter_context(mq.producer(name, transaction_timeout_ms=900_000))
            producer.begin_transaction()
            for _ in range(2):
                producer.send("t", "v", partition=1)
            producer.flush()
            if ends:
                producer.abort_transaction()
        mq.topics.delete_records("t", {0: 5})
        mq.topics.delete_records("acked", {0: 1})
        mq.sql("SELECT 1", wait_ms=60_000)
        yield Lagging(mq, late, worker)


def read_lags(rows: Iterable[Any]) -> Lags:
    return {(row["group"], row["topic"], row["partition"]): row["lag"] for row in rows}


def add_up(lags: Lags) -> dict[str, int]:
    """Return group -> its lag. A group without partitions has none."""
    sums = {NEW: 0}
    for (group, _, _), count in lags.items():
        sums[group] = sums.get(group, 0) + count
    return sums


@pytest.mark.slow
def test_calls_commands_views_and_metrics_show_the_lag_of_each_partition(lagging: Lagging) -> None:
    mq, groups = lagging.mq, lagging.mq.groups.list()
    assert read_lags(asdict(row) for group in groups for row in mq.groups.lag(group)) == EXPECTED
    assert (
        read_lags(row for group in groups for row in read_objects(mq.namespace.path, "groups", "lag", group))
        == EXPECTED
    )
    assert read_lags(mq.sql("SELECT * FROM consumer_lag").to_pylist()) == EXPECTED
    with mq.observer().look() as observation:
        families = {family.name: family for family in read_groups(mq, observation, FamilyBuilder())}
    series = {name: families[f"lakemq_group_{name}"].samples for name in ("lag", "deleted_offsets")}
    assert {tuple(sample.labels.values()): sample.value for sample in series["lag"]} == {
        (group, topic, str(partition)): lag for (group, topic, partition), lag in EXPECTED.items()
    }
    # beside the lag stands what the group has missed
    deleted = {tuple(sample.labels.values()): sample.value for sample in series["deleted_offsets"] if sample.value}
    assert deleted == {(LATE, "t", "0"): 3, (ALONE, "t", "0"): 5, (LEFT, "t", "0"): 5, (WORKERS, "acked", "0"): 1}
    rows = mq.sql("SELECT group, topic, CAST(partition AS STRING) AS partition, deleted FROM consumer_lag").to_pylist()
    assert {(row["group"], row["topic"], row["partition"]): row["deleted"] for row in rows if row["deleted"]} == deleted
    assert not check_losses(mq, mq.observer()).ok


@pytest.mark.slow
def test_members_count_what_mq_groups_counts(lagging: Lagging) -> None:
    for group, member in ((LATE, lagging.late), (WORKERS, lagging.worker)):
        expected = {(topic, partition): lag for (name, topic, partition), lag in EXPECTED.items() if name == group}
        assert member.group_lag() == expected
        assert member.lag() == expected, "from the positions, which are at the committed offsets"


@pytest.mark.extended
@pytest.mark.slow
def test_descriptions_status_console_and_history_show_the_lag_of_each_group(lagging: Lagging) -> None:
    mq, expected = lagging.mq, add_up(EXPECTED)
    for rows in (
        map(asdict, mq.groups.all()),
        read_objects(mq.namespace.path, "groups", "describe", "--all-groups"),
        read_objects(mq.namespace.path, "status", "--once")[0]["groups"],
        mq.sql("SELECT * FROM group_state").to_pylist(),
    ):
        assert {row["group"]: row["lag"] for row in rows} == expected
    with open_registry(mq) as metrics:
        console = Console(mq, metrics.observer, metrics.collector, ConsoleSettings(), list)
        for page, title, column in (
            (read_overview(console, {}), "Groups with the most lag", 3),
            (read_groups_page(console, {}), "Groups", 5),
        ):
            (table,) = (part for part in page.parts if isinstance(part, Table) and part.title == title)
            assert {row[0].text: row[column] for row in table.rows} == expected
        (table,) = (part for part in read_topic(console, {"name": "t"}).parts if part.title == "Groups that read it")
    sums = mq.sql("SELECT group, topic, lag FROM group_lag").to_pylist()
    by_topic = {(row["group"], row["topic"]): row["lag"] for row in sums}
    assert {row[0].text: row[2] for row in table.rows} == {
        group: lag for (group, t), lag in by_topic.items() if t == "t"
    }
    assert {group: sum(lag for (name, _), lag in by_topic.items() if name == group) for group in expected} == expected
    now_ms = mq.namespace.files.time_ms() + 1
    history = read_history(mq, now_ms - 600_000, now_ms)
    shown = {group: lag[-1] for group, lag in history.lag.items()}
    assert {NEW: 0, **shown} == expected
    assert {row["group"]: row["lag_at_end"] for row in list_lags(history)} == shown
