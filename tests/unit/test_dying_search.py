"""The search for dying messages: when the sequencer runs it, and when files may be removed beside it."""

from threading import Lock

import pytest
from clocks import ManualClock
from protocol_harness import AtOnce, Harness
from stateful.world import Background

from lakemq.engine.maintenance.dying_messages import DyingMessages, Sighting
from lakemq.engine.protocol.values.dead_letters import DyingFound, RowLocation
from lakemq.engine.protocol.values.deliveries import Acknowledge, Acknowledgement, AckOutcome, Acquire, WantedMessages
from lakemq.engine.protocol.values.groups import JoinGroup
from lakemq.engine.sequencer.searches import PATIENCE_MS, RETRY_MS, DyingSearch


class Tables:
    """A stand-in for the tables of a search. It finds nothing, finds the requested messages, or raises."""

    def __init__(self) -> None:
        self.lookups: list[list[DyingMessages]] = []
        self.knows = True
        self.most: int | None = None
        self.error: Exception | None = None

    def find(self, dying_messages: list[DyingMessages]) -> list[Sighting]:
        self.lookups.append(dying_messages)
        if self.error is not None:
            raise self.error
        sightings: list[Sighting] = []
        for dying in dying_messages:
            rows = _rows(dying)[: self.most]
            end = rows[-1].first + rows[-1].length
            dying_found = DyingFound(dying.group, dying.topic_id, dying.partition, rows if self.knows else [], [], [])
            sightings.append(Sighting(dying_found, end))
        return sightings


def _rows(dying: DyingMessages) -> list[RowLocation]:
    return [RowLocation(first, count, 7, None, first, 0, 1, 1, None, None) for first, count in dying.ranges]


@pytest.fixture
def queue() -> Harness:
    """A state in which messages 0 to 3 of t-0 are dying."""
    mq = Harness()
    mq.create("t", 1)
    mq.ask(mq.produce({0: 9}, "t"))
    mq.ask(JoinGroup("g", "C1", ["t"], config={"group.protocol": "queue"}, auto_offset_reset="earliest"))
    mq.assign()
    reject(mq, 4)
    return mq


def reject(mq: Harness, count: int, kept_count: int = 0) -> None:
    """Acquire the next messages, and reject all but the first `kept_count` of them."""
    tp = mq.state.topic_ids["t"], 0
    epoch = mq.state.groups["g"].assignments[tp].epoch
    first = deliveries.next_offset if (deliveries := mq.state.find_deliveries("g", tp)) else 0
    mq.ask(Acquire("g", "C1", [WantedMessages(*tp, epoch, count)]))
    dying = (first + kept_count, count - kept_count)
    mq.ask(Acknowledge("g", "C1", [Acknowledgement(*tp, epoch, AckOutcome.REJECT, [dying])]))


def test_search_is_repeated_for_missing_rows_and_later_seldom(queue: Harness) -> None:
    clock, tables = ManualClock(), Tables()
    tables.knows = False
    letters = DyingSearch(tables.find, AtOnce(), clock, Lock())
    for _ in range(5):
        letters.take_findings(queue.state)
        clock.sleep(100)
    assert len(tables.lookups) > 1
    assert letters.is_working(queue.state)
    clock.sleep(PATIENCE_MS)
    for _ in range(3):
        letters.take_findings(queue.state)
        clock.sleep(100)
    assert not letters.is_working(queue.state)
    count, due_in_ms = len(tables.lookups), letters.due_in_ms(queue.state)
    assert due_in_ms is not None
    assert RETRY_MS - 1_000 < due_in_ms <= RETRY_MS
    letters.take_findings(queue.state)
    assert len(tables.lookups) == count
    tables.knows = True
    clock.sleep(RETRY_MS)
    letters.take_findings(queue.state)
    assert letters.take_findings(queue.state)


def test_message_that_stays_dying_holds_up_no_later_one(queue: Harness) -> None:
    """A message that may not become a dead letter now is searched again with new ones, or after a while."""
    clock, tables = ManualClock(), Tables()
    letters = DyingSearch(tables.find, AtOnce(), clock, Lock())
    letters.take_findings(queue.state)
    assert letters.take_findings(queue.state)  # and finds nothing
    assert not letters.is_working(queue.state)
    reject(queue, 2)
    clock.sleep(100)
    assert letters.due_in_ms(queue.state) is not None
    for _ in range(2):
        letters.take_findings(queue.state)
    assert tables.lookups[-1][0].ranges == ((0, 6),)


def test_next_search_goes_on_where_the_last_one_ended(queue: Harness) -> None:
    reject(queue, 2, kept_count=1)
    clock, tables = ManualClock(), Tables()
    tables.most = 1
    letters = DyingSearch(tables.find, AtOnce(), clock, Lock())
    for _ in range(2):
        while not letters.take_findings(queue.state):  # and finds nothing
            assert letters.is_working(queue.state)
            clock.sleep(100)
    assert [lookup[0].ranges for lookup in tables.lookups] == [((0, 4), (5, 1)), ((5, 1),)]
    assert not letters.is_working(queue.state)
    clock.sleep(RETRY_MS)
    for _ in range(2):
        letters.take_findings(queue.state)
    assert tables.lookups[-1][0].ranges == ((0, 4), (5, 1))
    assert len(tables.lookups) == 3


@pytest.mark.parametrize("error", [FileNotFoundError("merged"), ValueError("damaged")])
def test_failed_search_is_repeated(queue: Harness, error: Exception) -> None:
    clock, tables = ManualClock(), Tables()
    tables.error = error
    letters = DyingSearch(tables.find, AtOnce(), clock, Lock())
    letters.take_findings(queue.state)
    assert not letters.take_findings(queue.state)
    tables.error = None
    clock.sleep(2_000)
    letters.take_findings(queue.state)
    assert letters.take_findings(queue.state)


def test_no_file_is_removed_while_a_search_may_name_it(queue: Harness) -> None:
    clock, tables, later, removing = ManualClock(), Tables(), Background(), Lock()
    letters = DyingSearch(tables.find, later, clock, removing)
    with removing:
        letters.take_findings(queue.state)  # files are being removed, so this can wait
        assert not later.waiting
    clock.sleep(100)
    letters.take_findings(queue.state)
    assert removing.locked()
    later.run()
    (finding,) = letters.take_findings(queue.state)
    assert removing.locked()  # until the step has landed
    queue.see(finding)
    letters.take_findings(queue.state)
    assert not removing.locked()
