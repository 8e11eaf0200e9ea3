"""The figures of `mq.groups` for a group that waits, and the clients of its members."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from golden.story import Story, play
from unit.projected import project_tables, run_sql

from lakemq.engine.client.arguments import format_time
from lakemq.engine.client.groups.groups import Groups
from lakemq.engine.client.groups.stalls import MemberNotes, write_advice
from lakemq.engine.client.operator_tools import Observation
from lakemq.engine.protocol.codec.beat import OverdueMember
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.errors import InvalidRequest
from lakemq.jobs.metrics.readers import FamilyBuilder, read_groups

FOR_GOOD = -1


def make_groups(story: Story, passed_ms: int = 0, *overdue: OverdueMember) -> Groups:
    """Return the groups of the story, some time after its last line."""
    unused: Any = None
    now_ms, notes = story.mq.state.now_ms + passed_ms, MemberNotes(overdue)
    return Groups(lambda: story.mq.state, unused, unused, FOR_GOOD, lambda: now_ms, lambda: None, lambda _: notes)


# -- how long a rebalance waits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "setting"), [("queue", "rebalance.delay.ms"), ("cooperative", "scheduled.rebalance.max.delay.ms")]
)
def test_partitions_of_a_lost_member_show_the_time_left_of_their_delay(protocol: str, setting: str) -> None:
    config = {"group.protocol": protocol, setting: 4_000}
    story = play(
        {"create": {"t": 2}}, {"join": "C1", "config": config}, {"join": "C2", "config": config}, {"silent": "C1"}
    )
    lost_ms = story.mq.state.now_ms
    for passed_ms, left_ms in (0, 4_000), (1_500, 2_500), (9_000, 0):
        groups = make_groups(story, passed_ms)
        assert groups.describe("g").delay_left_ms == left_ms
        waits = {(assignment.state, assignment.delay_left_ms) for assignment in groups.assignments("g")}
        # in a cooperative group the member had not yet given up its partitions
        assert waits - {("ready", None)} == {("unbound", left_ms)}
        unbound = [a for a in groups.assignments("g") if a.state == "unbound"]
        assert {a.lost_by for a in unbound} == {"C1"}
        (stall,) = groups.stalls("g")
        assert (stall.kind, stall.member_id) == ("unbound", "C1")
        assert f"t-{unbound[0].partition}" in stall.found
        assert f"may return until {format_time(lost_ms + 4_000)} ({setting})" in stall.found
        tables = project_tables(story.mq)
        query = "SELECT DISTINCT lost_by FROM group_assignments WHERE state = 'unbound'"
        assert run_sql(tables, query) == [("C1",)]
    story.tell({"wait_ms": 4_001})
    groups = make_groups(story)
    assert groups.describe("g").delay_left_ms == 0
    assert [(a.delay_left_ms, a.lost_by) for a in groups.assignments("g")] == [(None, None)] * 2
    assert groups.stalls("g") == []


# -- whose a member is ----------------------------------------------------------------------------------------


def test_member_shows_its_client_host_and_process() -> None:
    story = play({"create": {"t": 1}})
    story.mq.ask(JoinGroup("g", "C1", ["t"], client_id="billing", host="rack-1", process_id=4711))
    story.mq.ask(JoinGroup("g", "C2", ["t"]))
    rows = run_sql(
        project_tables(story.mq), "SELECT member_id, client_id, host, process_id FROM group_members ORDER BY member_id"
    )
    assert [tuple(row) for row in rows] == [("C1", "billing", "rack-1", 4711), ("C2", None, None, None)]
    members = make_groups(story).members("g")
    assert [(member.client_id, member.host, member.process_id) for member in members] == [
        ("billing", "rack-1", 4711),
        (None, None, None),
    ]


def test_too_long_client_or_host_is_refused() -> None:
    story = play({"create": {"t": 1}})
    for field in "client_id", "host":
        refusal = story.mq.refused(JoinGroup("g", "C1", ["t"], **{field: "x" * 250}))
        assert refusal.error == InvalidRequest.name


# What holds up a group of any protocol: members that are overdue, and transactions that stay open.


def count_waits(story: Story, groups: Groups) -> dict[tuple[str, ...], float]:
    """Return (group, cause) -> the value of the metric `lakemq_group_waits`."""
    unused: Any = None
    mq: Any = SimpleNamespace(namespace=SimpleNamespace(files=SimpleNamespace(time_ms=lambda: story.mq.state.now_ms)))
    observation = Observation(story.mq.state, 0, groups, unused, unused)
    (family,) = (
        family for family in read_groups(mq, observation, FamilyBuilder()) if family.name == "lakemq_group_waits"
    )
    return {(sample.labels["group"], sample.labels["cause"]): sample.value for sample in family.samples}


@pytest.mark.parametrize("protocol", ["classic", "queue"])
def test_member_without_heartbeats_is_named_with_process_and_session_end(protocol: str) -> None:
    story = play({"create": {"t": 3}})
    story.mq.ask(
        JoinGroup(
            "g",
            "C1",
            ["t"],
            session_timeout_ms=45_000,
            host="rack-1",
            process_id=4711,
            config={"group.protocol": protocol, "group.initial.rebalance.delay.ms": 0},
        )
    )
    story.tell({"wait_ms": 1})
    groups = make_groups(story, 0, OverdueMember("g", "C1", 1_000, None), OverdueMember("other", "C1", 1_000, None))
    (stall,) = groups.stalls("g")
    assert (stall.kind, stall.member_id, stall.topic) == ("no heartbeat", "C1", None)
    assert stall.found == (
        "Member C1 (process 4711 on rack-1) has sent no heartbeat since 1970-01-01T00:00:01Z. It keeps 3 partitions"
        " until its session ends at 1970-01-01T00:00:46Z."
    )
    assert stall.commands == [["groups", "remove-members", "g", "--member", "C1"]]
    assert groups.describe("g").waits_for == [str(stall)]
    assert stall.is_overdue(story.mq.state.now_ms)


def test_stall_of_a_forgotten_consumer_names_the_later_one_of_its_process() -> None:
    story = play({"create": {"t": 1}})
    for member_id, host in (("C1", "rack-1"), ("C2", "rack-1"), ("C3", "rack-2")):
        story.mq.ask(JoinGroup("g", member_id, ["t"], host=host, process_id=4711))
    notes = [OverdueMember("g", member_id, None, 1_000) for member_id in ("C1", "C2", "C3")]
    stalls = make_groups(story, 0, *notes).stalls("g")
    expected = " The same process has joined again since, as member C2: close the first."
    assert [expected in stall.found for stall in stalls] == [True, False, False]


@pytest.mark.parametrize(
    ("protocol", "advice"),
    [
        ("cooperative", "It has to poll; after max_poll_interval_ms (300000) it loses them."),
        ("queue", "It has to acknowledge what it has of them; after max.handoff.ms (3000) it loses them."),
    ],
)
def test_member_that_is_to_give_up_partitions_is_named(protocol: str, advice: str) -> None:
    config = {"group.protocol": protocol} | ({"max.handoff.ms": 3_000} if protocol == "queue" else {})
    story = play(
        {"create": {"t": 2}},
        {"publish": {"t-0": 2, "t-1": 2}},
        {"join": "C1", "config": config},
        *([{"acquire": "C1"}] if protocol == "queue" else []),
        {"join": "C2", "config": config},
    )
    groups = make_groups(story)
    (paused,) = (assignment for assignment in groups.assignments("g") if assignment.state == "paused")
    (stall,) = groups.describe("g").stalls
    assert (stall.kind, stall.member_id, stall.advice) == ("handover", "C1", advice)
    assert f" to give up t-{paused.partition}, and has not yet." in stall.found
    assert groups.stalls("g") == [stall]
    assert groups.describe("g").waits_for == [str(stall)]
    assert not stall.is_overdue(stall.since_ms + 10_000_000), "it ends by itself"
    assert count_waits(story, groups) == {("g", "handover"): 1}


@pytest.mark.parametrize("word", ["a\nb", "it's \\ \x1b[31mred", "\u202eid\u00e9", "plain", "a b"])
def test_command_of_an_advice_is_one_printable_line_that_a_shell_reads_as_meant(word: str) -> None:
    text = write_advice("Abort it.", [["transactions", "abort", word]])
    assert text.isprintable()
    command = text.partition("`")[2].removesuffix("`.").removeprefix("lakemq transactions abort ")
    done = subprocess.run(["bash", "-c", f"printf %s {command}"], capture_output=True, check=True, timeout=60)
    assert done.stdout.decode() == word


def test_open_transaction_is_named_when_the_group_has_read_up_to_it() -> None:
    story = play(
        {"create": {"t": 2}},
        {"publish": {"t-0": 2}},
        {"who": "A", "init": "etl"},
        {"who": "A", "publish": {"t-0": 1}},
        {"publish": {"t-0": 5}},
        {"commit_offsets": {"t-0": 1}},
    )
    assert make_groups(story, 11_000).stalls("g") == [], "a message is left that it may read"
    story.tell({"commit_offsets": {"t-0": 2}})
    assert make_groups(story, 5_000).stalls("g") == [], "most transactions end within seconds"
    groups = make_groups(story, 11_000)
    (stall,) = groups.stalls("g")
    assert (stall.kind, stall.topic, stall.partition, stall.offset) == ("open transaction", "t", 0, 2)
    assert "have read t-0 up to transaction etl, which is open for 11 s, since" in stall.found
    assert "transaction_timeout_ms is 60000" in stall.found
    assert stall.commands == [["transactions", "abort", "etl"]]
    assert groups.describe("g").waits_for == [str(stall)]
    assert count_waits(story, groups) == {("g", "open transaction"): 1}
    assert not stall.is_overdue(story.mq.state.now_ms + 50_000)
    assert stall.is_overdue(story.mq.state.now_ms + 61_000)
    story.tell({"who": "A", "commit": None})
    assert make_groups(story, 11_000).stalls("g") == []
    assert count_waits(story, make_groups(story, 11_000)) == {}
