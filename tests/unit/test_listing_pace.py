"""How often a leader lists the mailbox of a store while clients have lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import ManualClock
from unit.test_direct_line import letter_of, until
from unit.test_intake_lines import LineOffice, decide
from unit.test_line_deadlines import EXPIRATION_MS, SteppedLeader, leader

from lakemq.engine.sequencer.letters.listing_pace import BUSY_MS, LONGEST_MS, SHORTEST_MS, ListingPace
from lakemq.engine.sequencer.sequencer import EXPIRY_INTERVAL_MS

__all__ = ["leader"]  # a fixture


def count_listings(pace: ListingPace, clock: ManualClock, duration_ms: int, clients: int = 1) -> int:
    """Return how many steps list an empty mailbox. A step takes 10 ms."""
    count, end_ms = 0, clock.ms + duration_ms
    while clock.ms < end_ms:
        if pace.is_due(clients):
            count += 1
            pace.note_listing(has_letters=False)
        clock.ms += 10
    return count


def test_an_empty_mailbox_is_listed_every_one_to_five_seconds() -> None:
    clock = ManualClock()
    pace = ListingPace(clock)
    assert count_listings(pace, clock, SHORTEST_MS) == 1
    assert count_listings(pace, clock, 60_000) <= 60_000 // LONGEST_MS + 4
    assert count_listings(pace, clock, 60_000) == 60_000 // LONGEST_MS


def test_without_lines_each_step_lists_the_mailbox() -> None:
    clock = ManualClock()
    assert count_listings(ListingPace(clock), clock, 1_000, clients=0) == 100


def test_after_a_letter_each_step_lists_the_mailbox_for_two_seconds() -> None:
    clock = ManualClock()
    pace = ListingPace(clock)
    count_listings(pace, clock, 60_000)
    pace.request()
    assert pace.is_due(1)
    pace.note_listing(has_letters=True)
    assert count_listings(pace, clock, BUSY_MS) == BUSY_MS // 10
    assert count_listings(pace, clock, LONGEST_MS) < 5


def test_a_client_that_has_left_its_line_may_have_put_a_letter() -> None:
    clock = ManualClock()
    pace = ListingPace(clock)
    count_listings(pace, clock, 60_000, clients=3)
    pace.note_listing(has_letters=False)
    assert not pace.is_due(3)
    assert pace.is_due(2)
    assert not pace.is_due(2)


def test_pace_stays_slow_after_the_last_idle_client_has_left_its_line() -> None:
    clock = ManualClock()
    pace = ListingPace(clock)
    count_listings(pace, clock, 60_000)
    assert count_listings(pace, clock, BUSY_MS, clients=0) == BUSY_MS // 10, "its letter may follow"
    assert count_listings(pace, clock, 60_000, clients=0) <= 60_000 // LONGEST_MS + 1
    pace.note_listing(has_letters=True)
    clock.sleep(BUSY_MS)
    assert count_listings(pace, clock, 1_000, clients=0) == 100, "that client has no line"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[LineOffice]:
    office = LineOffice(tmp_path)
    office.intake._listing_pace = ListingPace(office.clock)
    yield office
    office.close()


def test_a_step_that_is_not_due_takes_letters_of_lines_only(office: LineOffice) -> None:
    line = office.connect("c1")
    decide(office, office.take_letters())
    office.put("c2", 1)
    office.receive(line, "c1", 1)
    letters = office.take_letters()
    decide(office, letters)
    assert [opened.name.client_id for opened in letters.taken] == ["c1"]
    assert letters.is_mailbox_skipped
    office.clock.sleep(LONGEST_MS)
    letters = office.take_letters()
    assert [opened.name.client_id for opened in letters.taken] == ["c2"]
    assert not letters.is_mailbox_skipped


def test_letters_that_wait_for_an_earlier_one_are_looked_for_in_each_step(office: LineOffice) -> None:
    office.connect("c1")
    office.put("c2", 2)
    assert office.take_letters().gaps
    office.clock.sleep(BUSY_MS + 1)
    assert office.intake._listing_pace is not None
    office.intake._listing_pace.note_listing(has_letters=False)
    office.put("c2", 1)
    assert [opened.name.number for opened in office.take_letters().taken] == [1, 2]


def test_nothing_expires_in_a_step_that_has_not_listed_the_mailbox(leader: SteppedLeader) -> None:
    """A letter of the client may wait there."""
    pace = ListingPace(leader.clock)
    leader.sequencer._intake._listing_pace = pace
    leader.lines.table._by_client["other"] = leader.lines.table._by_client.get("other")  # type: ignore[assignment]
    leader.sequencer.step()
    leader.clock.ahead_ms += EXPIRATION_MS + 1_000
    pace.note_listing(has_letters=False)
    leader.lines.request_drain()
    leader.wait_for_drain()
    leader.sequencer.step()
    assert leader.knows_client, "the mailbox was not listed"
    leader.wait_for_drain()
    leader.sequencer.step()
    assert not leader.knows_client


def test_a_letter_that_waits_in_the_mailbox_keeps_its_client(leader: SteppedLeader) -> None:
    pace = ListingPace(leader.clock)
    leader.sequencer._intake._listing_pace = pace
    leader.lines.table._by_client["other"] = leader.lines.table._by_client.get("other")  # type: ignore[assignment]
    leader.sequencer.step()
    leader.clock.ahead_ms += EXPIRATION_MS + EXPIRY_INTERVAL_MS
    leader.sequencer._ns.mailbox.put("c1", 2, letter_of("c1", 2, "u"), 0)
    pace.note_listing(has_letters=False)
    leader.sequencer.step()
    assert leader.sequencer.state.clients["c1"].number == 1, "the mailbox was not listed"
    until(lambda: leader.lines._drained_at_ms is not None)
    leader.sequencer.step()
    assert leader.sequencer.state.clients["c1"].number == 2
