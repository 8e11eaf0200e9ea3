"""Bounds of a member's requests: the largest is accepted, one more is refused. Ended members and groups are not due."""

from typing import Any

import pytest
from golden.story import Story
from protocol_harness import Harness

from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.names import MAX_LENGTH
from lakemq.engine.protocol.rules import group_operations
from lakemq.engine.protocol.rules.offsets import estimate_answer_bytes
from lakemq.engine.protocol.rules.timers import Time
from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.deliveries import MAX_RANGES, Acknowledge, Acknowledgement, AckOutcome
from lakemq.engine.protocol.values.groups import (
    MAX_ASSIGNORS,
    MAX_PATTERN,
    MAX_POLL_MS,
    MAX_TOPICS,
    SESSION_MS,
    Assigned,
    JoinGroup,
    LeaveGroup,
)
from lakemq.engine.protocol.values.offsets import (
    MAX_OFFSETS,
    CommitOffsets,
    FetchOffsets,
    OffsetCommit,
    OffsetsChanged,
    ResetOffsets,
    ResetPartition,
)
from lakemq.engine.protocol.values.state import MAX_METADATA


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("s")
    harness.create("t", 2)
    return harness


def make_join(**fields: Any) -> JoinGroup:
    return JoinGroup("g", fields.pop("member_id", "C1"), fields.pop("topics", ["t"]), **fields)


BOUNDS: list[tuple[Any, Any]] = [
    (make_join(member_id="m" * MAX_LENGTH), make_join(member_id="m" * (MAX_LENGTH + 1))),
    (make_join(instance_id="i"), make_join(instance_id="")),
    (make_join(session_timeout_ms=SESSION_MS[0]), make_join(session_timeout_ms=SESSION_MS[0] - 1)),
    (make_join(session_timeout_ms=SESSION_MS[1]), make_join(session_timeout_ms=SESSION_MS[1] + 1)),
    (make_join(max_poll_interval_ms=1), make_join(max_poll_interval_ms=0)),
    (make_join(max_poll_interval_ms=MAX_POLL_MS), make_join(max_poll_interval_ms=MAX_POLL_MS + 1)),
    (make_join(pattern="p" * MAX_PATTERN), make_join(pattern="p" * (MAX_PATTERN + 1))),
    (make_join(assignors=["range"] * MAX_ASSIGNORS), make_join(assignors=["range"] * (MAX_ASSIGNORS + 1))),
    (make_join(assignors=["a" * MAX_LENGTH]), make_join(assignors=["a" * (MAX_LENGTH + 1)])),
    (make_join(topics=["t"] * MAX_TOPICS), make_join(topics=["t"] * (MAX_TOPICS + 1))),
    (make_join(bound=[Assigned(2, 0, 1)] * MAX_TOPICS), make_join(bound=[Assigned(2, 0, 1)] * (MAX_TOPICS + 1))),
    (
        CommitOffsets("g", [OffsetCommit("t", 0, 0)] * MAX_OFFSETS),
        CommitOffsets("g", [OffsetCommit("t", 0, 0)] * (MAX_OFFSETS + 1)),
    ),
    (
        CommitOffsets("g", [OffsetCommit("t", 0, 0, "x" * MAX_METADATA)]),
        CommitOffsets("g", [OffsetCommit("t", 0, 0, "x" * (MAX_METADATA + 1))]),
    ),
]


@pytest.mark.slow
def test_request_at_each_bound_is_accepted_and_one_more_is_refused() -> None:
    wrong = []
    for within, beyond in BOUNDS:
        mq = Harness()
        mq.create("s")
        mq.create("t", 2)
        if isinstance(mq.one(within), Refusal) or not isinstance(mq.one(beyond), Refusal):
            wrong.append(str(beyond)[:200])
    assert not wrong


def test_acknowledgement_of_too_many_ranges_is_refused(mq: Harness) -> None:
    mq.one(make_join(config={"group.protocol": "queue"}))
    mq.assign()
    epoch = mq.state.groups["g"].assignments[2, 0].epoch

    def acknowledge(count: int) -> Any:
        ranges = [(2 * i, 1) for i in range(count)]
        return mq.one(Acknowledge("g", "C1", [Acknowledgement(2, 0, epoch, AckOutcome.ACK, ranges)]))

    assert acknowledge(MAX_RANGES).invalid == [0], "nothing was ever delivered"
    assert isinstance(acknowledge(MAX_RANGES + 1), Refusal)


def test_reset_of_too_many_offsets_is_refused(mq: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_operations, "MAX_OFFSETS", 2)
    assert isinstance(mq.one(ResetOffsets("g", "earliest", 0, [ResetPartition("t")])), OffsetsChanged)
    refused = mq.refused(ResetOffsets("g", "earliest", 0, [ResetPartition("t"), ResetPartition("s")]))
    assert (refused.error, refused.found, refused.expected) == ("INVALID_REQUEST", 3, "at most 2")


@pytest.mark.parametrize(("protocol", "wait_ms"), [("queue", 3_000), ("cooperative", 300_001)])
def test_wait_that_a_request_ended_in_the_step_does_not_end_again(protocol: str, wait_ms: int) -> None:
    story = Story()
    story.tell({"create": {"t": 2}})
    story.tell({"publish": {"t-0": 1, "t-1": 1}})
    story.tell({"join": "C1", "config": {"group.protocol": protocol}})
    story.tell({"acquire": "C1"}) if protocol == "queue" else None
    story.tell({"join": "C2"})
    mq = story.mq
    assert mq.state.groups["g"].paused
    mq.now_ms += wait_ms
    time = Time(mq.now_ms, mq.now_ms, waits=mq.waits)
    due = machine.find_due(mq.state, time, with_expiries=False)
    assert due
    mq.one(LeaveGroup("g", ["C1"]))
    assert machine.decide_timers(mq.state, due, time) == []


def test_group_joined_in_the_step_that_would_forget_it_stays(mq: Harness) -> None:
    mq.one(CommitOffsets("g", [OffsetCommit("t", 0, 0)]))
    mq.now_ms += 604_800_001
    time = Time(mq.now_ms, mq.now_ms, waits=mq.waits)
    due = [event for event in machine.find_due(mq.state, time) if event[1] == "g"]
    assert due
    mq.one(make_join())
    assert machine.decide_timers(mq.state, due, time) == []
    assert mq.state.offsets["g"][2, 0].offset == 0


def test_letter_with_too_large_answers_must_repeat_the_rest(mq: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = [OffsetCommit("t", 0, 0, "n" * MAX_METADATA)]
    mq.one(CommitOffsets("g", commits))
    fetch = FetchOffsets("g")
    monkeypatch.setattr(machine, "MAX_OFFSET_ANSWER_BYTES", estimate_answer_bytes(mq.one(fetch)))
    dry = ResetOffsets("g", "earliest", dry_run=True)
    first, second, third, reset, commit = mq.ask(fetch, fetch, fetch, dry, CommitOffsets("g", commits))
    assert first == second == mq.one(fetch)
    assert isinstance(third, Refusal)
    assert third.error == "THROTTLING_QUOTA_EXCEEDED"
    assert isinstance(reset, Refusal)
    assert commit == Done()
    assert isinstance(mq.one(dry), OffsetsChanged)
