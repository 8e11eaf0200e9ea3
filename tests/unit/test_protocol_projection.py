"""Projections: the tables say the same as the journal, however the steps are divided into passes (I12).

The steps are those of the stories of `tests/golden`.
"""

import random
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from golden.story import play
from golden.test_golden import STORIES
from protocol_harness import F, Harness, plain
from protocol_tables import Tables, add_pass, mark_of, restored

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.projection import MEMBERS, READERS, RESTORED, project
from lakemq.engine.protocol.rows.clients import build_watermark
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.log import FinalFile, FinalRange, RangesWritten
from lakemq.engine.protocol.values.state import Changes, State
from lakemq.engine.protocol.values.topics import DeleteRecords
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.delta.store import select_newest


@cache
def tell_stories() -> list[Harness]:
    """Return the namespace of each story at its end, and of one with what no story has. Tests only read them."""
    replayable = [story for story in STORIES if not any("as_if" in word for line in story["story"] for word in line)]
    return [*(play(*story["story"]).mq for story in replayable), tell_of_files()]


def tell_of_files() -> Harness:
    """Return a namespace with rejected rows, and with messages in a final file."""
    mq = Harness()
    topic_id = mq.create()
    mq.one(mq.produce({0: 4}, rejected=2))
    mq.see(RangesWritten(topic_id, [FinalFile(F, 1)], [FinalRange(0, 0, 3, 3, 0, 1_000, 2_000)]))
    return mq


def replay(mq: Harness) -> dict[str, Any]:
    """Return the state that all steps give. Check that it is that of the leader."""
    state = machine.replay(State(), mq.steps)
    of_leader = plain(mq.state) | {"step": state.step, "now_ms": state.now_ms}  # a step without decisions is not put
    assert plain(state) == of_leader
    return of_leader


OF_TRANSACTIONS_AND_GROUPS = {
    *("producers", "applications", "clients", "transactions", "has_transactions", "ongoing", "delays", "schedules"),
    *("groups", "groups_with_members", "waiting_groups", "offsets", "deliveries", "dying"),
}
"""Parts of the state that a reader of topics does not know."""


@pytest.mark.slow
def test_state_restored_from_projections_equals_the_replay() -> None:
    """Recovery does the same: it loads what a pass has written, and replays the later steps. Then comes a second pass.

    A reader knows everything about topics, also where transactions are open. A member follows groups without knowing
    transactions.
    """
    chance = random.Random(7)
    for mq in tell_stories():
        cut, expected = chance.randint(0, len(mq.steps)), replay(mq)
        state, tables = State(), Tables()
        add_pass(tables, machine.replay(state, mq.steps[:cut]), mq.steps[:cut])
        for parts, known in (
            (RESTORED, expected.keys()),
            (READERS, expected.keys() - OF_TRANSACTIONS_AND_GROUPS),
            (MEMBERS, {"groups", "offsets"}),
        ):
            actual = plain(machine.replay(restored(mark_of(state), tables, parts), mq.steps[cut:]))
            assert {name: actual[name] for name in known} == {name: expected[name] for name in known}
        add_pass(tables, machine.replay(state, mq.steps[cut:]), mq.steps[cut:])
        assert plain(restored(mark_of(state), tables)) == expected
        check_tables_are_those_of_one_pass(mq, tables)


def check_tables_are_those_of_one_pass(mq: Harness, tables: Tables) -> None:
    single: Tables = {}
    add_pass(single, mq.state, mq.steps)
    assert single.keys() == tables.keys()
    for name, rows in single.items():
        spec = BY_NAME[name]
        if spec.shape == "changelog":
            actual, expected = (select_newest(t, spec.keys).drop_columns("step") for t in (rows, tables[name]))
            order = [(key, "ascending") for key in spec.keys]
            assert actual.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
        else:
            assert rows.to_pylist() == tables[name].to_pylist()


def map_rows_by_key(state: State, step: Step) -> dict[str, dict[Any, Any]]:
    """Return the rows that a projection of this step writes to each changelog, by key and without the step."""
    rows: dict[str, dict[Any, Any]] = {}
    for name, table in project(state, [step]).items():
        spec = BY_NAME[name]
        if spec.shape == "changelog" and name != "delayed":  # delayed rows are projected from records of their own
            listed = table.drop_columns("step").to_pylist()
            rows[name] = {tuple(row[key] for key in spec.keys): row for row in listed}
    return rows


def note_all_rows(state: State) -> State:
    """Return the state with a note on each of its rows."""
    step = state.step
    changes = Changes(
        topics=dict.fromkeys(state.topics, step),
        producers=dict.fromkeys(state.producers, step),
        applications=dict.fromkeys(state.applications, step),
        schedules={schedule.name: step for schedule in state.schedules},
        clients=dict.fromkeys(state.clients, step),
        transactions=dict.fromkeys(state.transactions, step),
        offsets={(group, tp): step for group, committed in state.offsets.items() for tp in committed},
        groups=dict.fromkeys(state.groups, step),
        members={(name, member): step for name, group in state.groups.items() for member in group.members},
        assignments={(name, tp): step for name, group in state.groups.items() for tp in group.assignments},
        deleted_topics=state.changes.deleted_topics,
    )
    return replace(state, changes=changes)


@pytest.mark.slow
def test_a_step_notes_all_rows_that_it_changes() -> None:
    """Not all stories: only those in which a step has two kinds of records that no step before has together."""
    seen = set[tuple[str, str]]()
    for mq in tell_stories():
        kinds_of_steps = [{entry.record.kind for entry in step.entries} for step in mq.steps]
        pairs = {pair for kinds in kinds_of_steps for pair in product(kinds, repeat=2)}
        if pairs <= seen:
            continue
        seen |= pairs
        state = State()
        before: dict[str, dict[Any, Any]] = {}
        for step in mq.steps:
            machine.replay(state, [step])
            noted_rows, now = map_rows_by_key(state, step), map_rows_by_key(note_all_rows(state), step)
            for name in before.keys() | now.keys():
                old, new = before.get(name, {}), now.get(name, {})
                changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
                assert changed <= noted_rows.get(name, {}).keys(), (name, [entry.record.kind for entry in step.entries])
            before = now
    assert {kind for kind, _ in seen} == {str(kind.__struct_config__.tag) for kind in machine.EVOLVE}


def test_a_follower_keeps_neither_a_list_of_changes_nor_answers() -> None:
    state = State()
    machine.follow(state, tell_stories()[0].steps)
    assert (state.changes, state.clients) == (Changes(), {})


# -- rows ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("t", 2)
    return harness


def project_last_step(mq: Harness, name: str) -> list[dict[str, Any]]:
    """Return the rows that the last step alone adds to a table."""
    return list(project(mq.state, mq.steps[-1:]).get(name, BY_NAME[name].empty()).to_pylist())


def test_only_changed_partitions_are_written(mq: Harness) -> None:
    assert [row["partition"] for row in project_last_step(mq, "partitions")] == [0, 1]
    mq.one(mq.produce({1: 3}))
    (row,) = project_last_step(mq, "partitions")
    marks = {name: row[name] for name in ("partition", "log_start_offset", "high_watermark", "last_stable_offset")}
    assert marks == {"partition": 1, "log_start_offset": 0, "high_watermark": 3, "last_stable_offset": 3}
    mq.one(DeleteRecords("t", {1: 2}))
    assert [(r["partition"], r["log_start_offset"]) for r in project_last_step(mq, "partitions")] == [(1, 2)]


def test_log_start_row_stands_between_the_segments_of_its_step(mq: Harness) -> None:
    mq.one(mq.produce({0: 2}))
    mq.ask(mq.produce({0: 1}), DeleteRecords("t", {0: 1}), mq.produce({0: 1}))
    mq.one(mq.produce({0: 1}))
    rows = project(mq.state, mq.steps)["segments"]
    assert rows.column("step").to_pylist() == [2, 3, 3, 3, 4]
    assert rows.column("kind").to_pylist() == ["data", "data", "data", "log_start", "data"]


def test_a_step_that_changes_no_table_adds_no_rows() -> None:
    mq = Harness()
    machine.begin_step(mq.state, 5)
    mq.land(machine.fold(mq.state, [clients.decide_take_over(mq.state, "me", 500)]))
    assert project(mq.state, mq.steps) == {}
    (mark,) = build_watermark(mq.state, 7).to_pylist()
    assert (mark["step"], mark["floor"], mark["leader"]) == (1, 7, "me")
