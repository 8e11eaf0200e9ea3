"""One request may name a message of a queue in several parts: the first part settles it, once."""

import pytest
from protocol_harness import Harness

from lakemq.engine.protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Acquire,
    Range,
    WantedMessages,
)
from lakemq.engine.protocol.values.groups import JoinGroup

Parts = list[tuple[AckOutcome, list[Range]]]

ACCEPT, RELEASE, REJECT = AckOutcome.ACK, AckOutcome.NACK, AckOutcome.REJECT


@pytest.fixture
def mq() -> Harness:
    """A state in which the member C1 has messages 0 to 5 of t-0."""
    mq = Harness()
    mq.create("t", 1)
    mq.ask(mq.produce({0: 6}, "t"))
    mq.ask(JoinGroup("g", "C1", ["t"], config={"group.protocol": "queue"}, auto_offset_reset="earliest"))
    mq.assign()
    mq.ask(Acquire("g", "C1", [WantedMessages(*find_place(mq), find_epoch(mq), 6)]))
    return mq


def find_place(mq: Harness) -> tuple[int, int]:
    return mq.state.topic_ids["t"], 0


def find_epoch(mq: Harness) -> int:
    return mq.state.groups["g"].assignments[find_place(mq)].epoch


def build_parts(mq: Harness, parts: Parts) -> list[Acknowledgement]:
    return [Acknowledgement(*find_place(mq), find_epoch(mq), outcome, ranges, 0) for outcome, ranges in parts]


def list_deliveries(mq: Harness) -> list[tuple[int, int, str]]:
    deliveries = mq.state.find_deliveries("g", find_place(mq))
    assert deliveries is not None
    return [(stretch.first, stretch.length, stretch.status.value) for stretch in deliveries.stretches]


@pytest.mark.parametrize(
    ("parts", "refused", "expected"),
    [
        (
            [(ACCEPT, [(1, 3)]), (ACCEPT, [(2, 3)])],
            [],
            [(0, 1, "acquired"), (1, 4, "acknowledged"), (5, 1, "acquired")],
        ),
        ([(ACCEPT, [(0, 2)]), (ACCEPT, [(0, 2)])], [], [(2, 4, "acquired")]),
        (
            [(ACCEPT, [(1, 2)]), (RELEASE, [(2, 2)])],
            [[(2, 1)]],
            [(0, 1, "acquired"), (1, 2, "acknowledged"), (3, 1, "available"), (4, 2, "acquired")],
        ),
        (
            [(RELEASE, [(1, 2)]), (ACCEPT, [(2, 2)])],
            [[(2, 1)]],
            [(0, 1, "acquired"), (1, 2, "available"), (3, 1, "acknowledged"), (4, 2, "acquired")],
        ),
        (
            [(REJECT, [(1, 1)]), (REJECT, [(1, 1)])],
            [[(1, 1)]],
            [(0, 1, "acquired"), (1, 1, "dying"), (2, 4, "acquired")],
        ),
    ],
    ids=["accept overlaps accept", "accept repeats", "accept, then release", "release, then accept", "reject repeats"],
)
def test_first_part_of_a_request_settles_a_message(
    mq: Harness, parts: Parts, refused: list[list[Range]], expected: list[tuple[int, int, str]]
) -> None:
    judged = mq.one(Acknowledge("g", "C1", build_parts(mq, parts)))
    assert judged == AcknowledgementsJudged([], [1] if refused else [], refused)
    assert list_deliveries(mq) == expected
