"""Projections: the tables say the same as the journal, however the steps are divided into passes (I12)."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from protocol_harness import HOUR_MS, F, Harness, plain, riding
from protocol_tables import Tables, add_pass, mark_of, restored

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import ClientEnded
from lakemq.engine.protocol.projection import MEMBERS, READERS, project
from lakemq.engine.protocol.rows.clients import build_watermark
from lakemq.engine.protocol.rules import clients
from lakemq.engine.protocol.values.dead_letters import SettleDeadLetters
from lakemq.engine.protocol.values.delays import CancelDelays, RescheduleDelays
from lakemq.engine.protocol.values.deliveries import Acknowledge, Acknowledgement, AckOutcome, Acquire, WantedMessages
from lakemq.engine.protocol.values.groups import (
    Assigned,
    ConfigureGroup,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    MemberSilent,
    ReleasePartitions,
)
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.log import FinalFile, FinalRange, RangesWritten
from lakemq.engine.protocol.values.offsets import CommitOffsets, DeleteOffsets, OffsetCommit, ResetOffsets
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.schedules import (
    CreateSchedule,
    DeleteSchedule,
    MissedPolicy,
    PauseSchedule,
    ResumeSchedule,
)
from lakemq.engine.protocol.values.state import Changes, State
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, Topic
from lakemq.engine.protocol.values.transactions import (
    AbortTransaction,
    EndTransaction,
    TransactionMoved,
    TransactionStatus,
)
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.delta.store import select_newest

SEEDS = 12
STEPS = 90


@cache
def build_busy_namespace(seed: int, steps: int = STEPS) -> Harness:
    """A namespace with many different events, which tests only read."""
    chance, of_schedules, mq = random.Random(seed), random.Random(seed), Harness()
    machine.begin_step(mq.state, mq.now_ms)
    mq.land(machine.fold(mq.state, [clients.decide_take_over(mq.state, "me", 500)]))
    for _ in range(steps):
        mq.now_ms += chance.choice([1, 1000, HOUR_MS // 2])
        happen(mq, chance)
        if of_schedules.random() < 0.1:
            happen_to_schedules(mq, of_schedules)
    return mq


def happen(mq: Harness, chance: random.Random) -> None:
    name = chance.choice("abc")
    if name not in mq.state.topic_ids:
        mq.ask(CreateTopic(name, chance.randint(1, 3), {}, chance.choice([[], ["x/>"]])), client=chance.choice("pq"))
        return
    kind, topic = chance.randrange(49), mq.state.topic(name)
    if kind == 0:
        count = max(1, topic.partition_count + chance.choice([-1, 0, 1]))
        mq.ask(AlterTopic(name, {"retention.ms": chance.randrange(9)}, count, force=True))
    elif kind == 1:
        mq.ask(DeleteTopic(name))
    elif kind == 2:
        mq.ask(DeleteRecords(name, {0: -1}))
    elif kind == 3:
        mq.expire()
    elif kind == 4:
        machine.begin_step(mq.state, mq.now_ms)
        mq.land(machine.refuse_letter(mq.state, "gone", 7, ClientEnded("A gap.")))
    elif kind >= 41:
        happen_in_queue(mq, chance, kind)
    elif kind >= 38:
        happen_to_delays(mq, chance, kind, topic)
    elif kind >= 20:
        happen_in_group(mq, chance, kind)
    elif kind >= 9:
        happen_in_transaction(mq, chance, kind, topic)
    else:
        counts = {p: chance.randint(1, 4) for p in range(topic.partition_count) if chance.random() < 0.7}
        producer = (chance.choice(list(mq.state.producers)), 0) if kind == 5 and mq.state.producers else None
        if kind == 6:
            mq.producer()
        version = ("app", chance.randrange(9)) if kind == 7 else None
        refused = chance.randrange(2)
        request, rows = mq.produce(counts, name, producer, 0, version, refused), 0
        if kind == 8 and (counts or refused):
            request, rows = riding(request), sum(counts.values()) + refused
        mq.ask(request, client="p", number=1, inline_rows=rows)


def happen_to_delays(mq: Harness, chance: random.Random, kind: int, topic: Topic) -> None:
    if kind == 40:
        if mq.state.delays.ranges and chance.randrange(2):
            *place, reschedules = chance.choice(sorted(range_.published.key for range_ in mq.state.delays.ranges))
            row = [*([number] for number in place), [chance.randrange(3)], [reschedules]]
            if chance.randrange(2):
                mq.ask(RescheduleDelays(*row, [mq.now_ms + chance.choice([0, HOUR_MS])]))
            else:
                mq.ask(CancelDelays(*row))
        mq.release({(file_id, row): HOUR_MS * 99 + row for file_id in range(1000) for row in range(9)}, 2)
        return
    name, partition, file_id = chance.choice("xy"), chance.randrange(topic.partition_count), len(mq.steps)
    first_ms = mq.now_ms + chance.choice([0, HOUR_MS])
    due_ms = chance.choice([(first_ms, first_ms), (HOUR_MS * 99, HOUR_MS * 99 + 2)])
    transaction = mq.current(name) if kind == 38 and name in mq.state.transactions else None
    more = {0: 1} if partition and chance.randrange(2) else {}
    mq.ask(mq.produce({partition: 3, **more}, topic.topic, None, 0, None, 0, file_id, transaction, {partition: due_ms}))


def happen_to_schedules(mq: Harness, chance: random.Random) -> None:
    names = [schedule.name for schedule in mq.state.schedules]
    topic = chance.choice(sorted(mq.state.topic_ids) or ["none"])
    if not names or (len(names) < 2 and chance.randrange(2)):
        missed, name = chance.choice(list(MissedPolicy)), chance.choice("ij")
        mq.ask(CreateSchedule(name, topic, "*/20 * * * *", "Asia/Kolkata", missed, None, b"v", [("h", b"1")]))
        return
    request = chance.choice([PauseSchedule, ResumeSchedule, ResumeSchedule, DeleteSchedule])
    mq.ask(request(chance.choice(names)))
    mq.recur()


def happen_in_group(mq: Harness, chance: random.Random, kind: int) -> None:
    group, member = chance.choice("ghq"), chance.choice(["C1", "C2", "C3"])
    group_state = mq.state.groups.get(group)
    if kind == 20 or group_state is None:
        config = {"group.assignor": chance.choice(["range", "sticky"]), "scheduled.rebalance.max.delay.ms": 1_000}
        protocol = {"q": "queue", "h": "classic"}.get(group, "cooperative")
        config |= {"group.protocol": protocol, "rebalance.delay.ms": 1_000, "group.initial.rebalance.delay.ms": 1_000}
        config["offsets.retention.ms"] = chance.choice([1_000, HOUR_MS, -1])
        mq.ask(ConfigureGroup(group, config, create=group_state is None))
    elif kind in (21, 22, 23):
        topics, instance = chance.choice([["a"], ["a", "b"]]), chance.choice([None, None, "i"])
        poll_ms = 1_000 if group == "h" else HOUR_MS
        assignors = {"C1": ["range", "sticky"], "C2": ["sticky", "range"]}.get(member, [])
        join = JoinGroup(group, member, topics, instance_id=instance, max_poll_interval_ms=poll_ms, assignors=assignors)
        mq.ask(join)
    elif kind in (24, 25, 26):
        member = chance.choice([*sorted(group_state.members), member])
        mq.ask(LeaveGroup(group, [member])) if chance.random() < 0.2 else mq.see(MemberSilent(group, member, "session"))
    elif kind < 32:
        mq.assign()
    elif kind == 33:
        happen_in_classic(mq, chance, member)
    elif kind == 34:
        mq.ask(LeaveGroup(group, sorted(group_state.members))) if chance.random() < 0.3 else None
        mq.ask(DeleteGroup(group))
    elif kind == 35:
        mq.ask(ResetOffsets(group, chance.choice(["earliest", "latest"])))
    elif kind in (36, 37):
        mq.ask(DeleteOffsets(group, [(chance.choice("abc"), None)]))
    else:
        paused = [Assigned(*tp, group_state.assignments[tp].epoch) for tp in sorted(group_state.paused)]
        mq.ask(ReleasePartitions(group, member, paused))


def happen_in_classic(mq: Harness, chance: random.Random, member: str) -> None:
    """Some members give up their partitions.

    A member that does not do so in time is removed, or missed if it is static.
    """
    for name, instance in ("S", "s"), (member, None):
        mq.ask(JoinGroup("h", name, chance.choice([["a"], ["a", "b"]]), None, instance, 45_000, 1_000))
        mq.assign()
        mq.now_ms += 1_001
        mq.expire()


def happen_in_queue(mq: Harness, chance: random.Random, kind: int) -> None:
    group_state = mq.state.groups.get("q")
    owned = (
        [(tp, assignment) for tp, assignment in sorted(group_state.assignments.items()) if assignment.owner]
        if group_state
        else []
    )
    if not owned:
        happen_in_group(mq, chance, kind=21)
        return
    tp, assignment = chance.choice(owned)
    member, deliveries = str(assignment.owner), mq.state.find_deliveries("q", tp)
    if kind == 41 and tp[0] in mq.state.topics:
        mq.ask(DeleteRecords(mq.state.topics[tp[0]].topic, {tp[1]: -1}))
    if kind < 44 or deliveries is None or not deliveries.list_acquired_stretches():
        mq.ask(Acquire("q", member, [WantedMessages(*tp, assignment.epoch, chance.randrange(1, 5))]))
        return
    if kind >= 47:
        happen_to_dead_letters(mq, chance, Acknowledgement(*tp, assignment.epoch, AckOutcome.REJECT, []), member)
        return
    outcome, ref = chance.choice(list(AckOutcome)), None
    if chance.random() < 0.4 and "x" in mq.state.transactions:
        outcome, ref = AckOutcome.ACK, mq.current("x")
    stretch = chance.choice(deliveries.list_acquired_stretches())
    part = Acknowledgement(*tp, assignment.epoch, outcome, [(stretch.first, chance.randint(1, stretch.length))], 0)
    mq.ask(Acknowledge("q", member, [part], ref))


def happen_to_dead_letters(mq: Harness, chance: random.Random, part: Acknowledgement, member: str) -> None:
    """Some messages are rejected and found. Some of them go back, at once or later."""
    deliveries = mq.state.find_deliveries("q", part.topic_partition)
    assert deliveries is not None
    stretch = chance.choice(deliveries.list_acquired_stretches())
    rejected = [(stretch.first, chance.randint(1, stretch.length))]
    mq.ask(Acknowledge("q", member, [msgspec.structs.replace(part, ranges=rejected)]))
    find_dying(mq)
    for topic in [topic for topic in mq.state.topics.values() if topic.topic.endswith(".dlq")]:
        ends = {p: int(end) for p, end in enumerate(topic.high_watermarks) if end}
        ranges = {p: [(0, chance.randint(1, end))] for p, end in ends.items()}
        mq.ask(SettleDeadLetters(topic.topic, topic.topic_id, ranges, chance.random() < 0.3))
    if chance.random() < 0.5:
        find_dying(mq)


def find_dying(mq: Harness) -> None:
    for group, topic_id, partition in sorted(mq.state.dying):
        mq.see(mq.dying(group, (topic_id, partition)))
    finalize(mq)


def finalize(mq: Harness) -> None:
    """Let half of what may become final in each partition do so."""
    for topic in list(mq.state.topics.values()):
        for partition, (first, end) in enumerate(zip(topic.final_offsets, topic.last_stable_offsets, strict=True)):
            if last := (int(end) - int(first)) // 2:
                range_ = FinalRange(partition, int(first), int(first) + last, last, 0, 1_000, 2_000)
                mq.see(RangesWritten(topic.topic_id, [FinalFile(F, 1)], [range_]))


def happen_in_transaction(mq: Harness, chance: random.Random, kind: int, topic: Topic) -> None:
    name, partition = chance.choice("xy"), chance.randrange(topic.partition_count)
    ref = mq.current(name) if name in mq.state.transactions else TransactionRef(name, 0, 0)
    reached = int(topic.high_watermarks[partition]) + chance.choice([0, 0, 1])
    offset = OffsetCommit(topic.topic, partition, reached, chance.choice([None, "note"]))
    if kind == 9 or name not in mq.state.transactions:
        mq.ask(InitProducer(name, chance.choice([1, 900_000])))
    elif kind in (10, 12):
        missing = chance.randrange(6) == 0
        parts = mq.state.transactions[name].part_count + missing
        mq.ask(EndTransaction(ref, chance.random() < 0.7, parts, chance.choice([None, None, chance.randrange(9)])))
    elif kind == 11:
        mq.ask(chance.choice([AbortTransaction(name), EndTransaction(ref, True)]))
    elif kind in (13, 14):
        mq.ask(CommitOffsets(chance.choice("gh"), [offset] * chance.randrange(3), chance.choice([ref, ref, None])))
    else:
        producer = (ref.producer_id, ref.producer_epoch) if chance.randrange(3) == 0 else None
        mq.ask(mq.produce({partition: 2, 0: 1}, topic.topic, producer, transaction=ref))


def project_in_passes(steps: list[Step], sizes: list[int]) -> tuple[State, Tables]:
    """Return the state, and the tables after passes over these numbers of steps."""
    state, tables, todo = State(), dict[str, pa.Table](), list(steps)
    for size in [*sizes, len(steps)]:
        now, todo = todo[:size], todo[size:]
        if now:
            machine.replay(state, now)
            add_pass(tables, state, now)
    return state, tables


@pytest.mark.slow
@examples(25)
@given(st.integers(0, SEEDS - 1), st.lists(st.integers(1, 20), max_size=6))
def test_state_restored_from_projections_equals_the_replay(seed: int, sizes: list[int]) -> None:
    """The steps are divided into passes in several ways, and the state equals a replay of the journal."""
    mq = build_busy_namespace(seed)
    state, tables = project_in_passes(mq.steps, sizes)
    assert plain(state) == plain(mq.state)
    assert plain(restored(mark_of(state), tables)) == plain(mq.state)


@pytest.mark.slow
@examples(15)
@given(st.integers(0, SEEDS - 1), st.lists(st.integers(1, 20), max_size=6))
def test_tables_do_not_depend_on_the_cut_into_passes(seed: int, sizes: list[int]) -> None:
    mq = build_busy_namespace(seed)
    (_, single), (_, many) = project_in_passes(mq.steps, []), project_in_passes(mq.steps, sizes)
    assert single.keys() == many.keys()
    for name, rows in single.items():
        spec = BY_NAME[name]
        if spec.shape == "changelog":
            actual, expected = (select_newest(t, spec.keys).drop_columns("step") for t in (rows, many[name]))
            order = [(key, "ascending") for key in spec.keys]
            assert actual.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
        else:
            assert rows.to_pylist() == many[name].to_pylist()


@pytest.mark.slow
@examples(15)
@given(st.integers(0, SEEDS - 1), st.integers(0, STEPS))
def test_snapshot_and_later_steps_give_the_state(seed: int, step_count: int) -> None:
    """Recovery does the same: it loads the projections and replays the later steps."""
    mq = build_busy_namespace(seed)
    state, tables = project_in_passes(mq.steps[:step_count], [step_count])
    recovered = machine.replay(restored(mark_of(state), tables), mq.steps[step_count:])
    assert plain(recovered) == plain(mq.state)


@pytest.mark.slow
@examples(15)
@given(st.integers(0, SEEDS - 1), st.integers(0, STEPS))
def test_reader_without_producers_follows_topics(seed: int, step_count: int) -> None:
    """It lacks producers, but knows everything about topics, also where transactions are open."""
    mq = build_busy_namespace(seed)
    state, tables = project_in_passes(mq.steps[:step_count], [step_count])
    reader = machine.replay(restored(mark_of(state), tables, READERS), mq.steps[step_count:])
    actual, expected = plain(reader), plain(mq.state)
    of_groups = ("groups", "groups_with_members", "waiting_groups", "offsets", "deliveries", "dying")
    left_out = (
        "producers",
        "applications",
        "clients",
        "transactions",
        "has_transactions",
        "ongoing",
        "delays",
        "schedules",
        *of_groups,
    )
    for name in left_out:
        del actual[name], expected[name]
    assert actual == expected
    for topic_id, topic in mq.state.topics.items():
        assert reader.topics[topic_id].last_stable_offsets.tolist() == topic.last_stable_offsets.tolist()


@pytest.mark.slow
@examples(10)
@given(st.integers(0, SEEDS - 1), st.integers(0, STEPS))
def test_a_member_follows_groups_without_knowing_transactions(seed: int, step_count: int) -> None:
    mq = build_busy_namespace(seed)
    state, tables = project_in_passes(mq.steps[:step_count], [step_count])
    member = machine.replay(restored(mark_of(state), tables, MEMBERS), mq.steps[step_count:])
    assert plain(member)["groups"] == plain(mq.state)["groups"]
    assert plain(member)["offsets"] == plain(mq.state)["offsets"]


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
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, SEEDS))])
def test_a_step_notes_all_rows_that_it_changes(seed: int) -> None:
    state = State()
    before: dict[str, dict[Any, Any]] = {}
    for step in build_busy_namespace(seed).steps:
        machine.replay(state, [step])
        noted_rows, now = map_rows_by_key(state, step), map_rows_by_key(note_all_rows(state), step)
        for name in before.keys() | now.keys():
            old, new = before.get(name, {}), now.get(name, {})
            changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
            assert changed <= noted_rows.get(name, {}).keys(), (name, [entry.record.kind for entry in step.entries])
        before = now


def test_a_follower_keeps_neither_a_list_of_changes_nor_answers() -> None:
    state = State()
    machine.follow(state, build_busy_namespace(1).steps)
    assert (state.changes, state.clients) == (Changes(), {})


def test_the_busy_namespace_knows_every_kind_of_decision() -> None:
    """Otherwise the tests above would prove less than they claim."""
    kinds = {
        entry.record.kind
        for seed in range(SEEDS)
        for step in build_busy_namespace(seed).steps
        for entry in step.entries
    }
    assert kinds == {str(kind.__struct_config__.tag) for kind in machine.EVOLVE}
    moves = [
        entry.record
        for seed in range(SEEDS)
        for step in build_busy_namespace(seed).steps
        for entry in step.entries
        if isinstance(entry.record, TransactionMoved)
    ]
    assert {move.status for move in moves} == set(TransactionStatus)
    assert {move.reason for move in moves} == {None, "producer", "timeout", "fenced", "operator"}


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


def test_cut_of_a_log_follows_the_segments_of_its_step(mq: Harness) -> None:
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
