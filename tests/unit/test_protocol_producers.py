"""Idempotence: sequences of producers (docs/semantics.md D) and versions of applications."""

from __future__ import annotations

import pytest
from protocol_harness import HOUR_MS, F, Harness

from lakemq.engine.protocol.machine import fold
from lakemq.engine.protocol.values.journal import JournalEntry
from lakemq.engine.protocol.values.log import Produced, Published, Unit
from lakemq.engine.protocol.values.producers import UnitAppended, next_sequence
from lakemq.engine.protocol.values.topics import AlterTopic, DeleteTopic

MAX = 2**31 - 1


@pytest.fixture
def mq() -> Harness:
    harness = Harness()
    harness.create("t", 2)
    return harness


def test_ids_are_never_given_out_twice(mq: Harness) -> None:
    assert [mq.producer() for _ in range(3)] == [0, 1, 2]
    mq.now_ms += 2 * HOUR_MS
    mq.expire()
    assert mq.state.producers == {}
    assert mq.producer() == 3


def test_each_partition_has_a_sequence_of_its_own(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 2}, producer=(pid, 0), sequence=0))
    mq.one(mq.produce({1: 5}, producer=(pid, 0), sequence=0))
    result = mq.one(mq.produce({0: 1}, producer=(pid, 0), sequence=2))
    assert result == Published([Unit("t", 0, 2, 1)])


@pytest.mark.parametrize("sequence", [0, 1, 3, 4, MAX])
def test_a_sequence_that_is_not_the_next_one_is_refused(mq: Harness, sequence: int) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 2}, producer=(pid, 0), sequence=0))
    refusal = mq.refused(mq.produce({0: 7}, producer=(pid, 0), sequence=sequence))
    assert (refusal.error, refusal.found, refusal.expected) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", sequence, 2)


def test_the_first_sequence_is_zero(mq: Harness) -> None:
    assert mq.refused(mq.produce({0: 1}, producer=(mq.producer(), 0), sequence=1)).expected == 0


def test_one_of_the_last_five_is_acknowledged_with_its_first_offset(mq: Harness) -> None:
    pid = mq.producer()
    sent = [mq.produce({0: n}, producer=(pid, 0), sequence=s) for n, s in [(1, 0), (2, 1), (3, 3), (4, 6), (5, 10)]]
    first = [mq.one(request) for request in sent]
    answers = [mq.one(request) for request in reversed(sent)]
    assert answers == [Published(r.units, duplicate=True) for r in reversed(first)]  # type: ignore[union-attr]
    assert mq.state.topic("t").high_watermarks.tolist() == [15, 0]
    mq.one(mq.produce({0: 1}, producer=(pid, 0), sequence=15))
    assert mq.refused(sent[0]).error == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert mq.one(sent[1]) == Published([Unit("t", 0, 1, 2)], duplicate=True)


def test_the_same_range_only_is_a_repeat(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 5}, producer=(pid, 0), sequence=0))
    for count, sequence in [(4, 0), (6, 0), (4, 1)]:
        refusal = mq.refused(mq.produce({0: count}, producer=(pid, 0), sequence=sequence))
        assert refusal.error == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_repeat_within_one_letter(mq: Harness) -> None:
    request = mq.produce({0: 2}, producer=(mq.producer(), 0))
    first, second = mq.ask(request, request)
    assert first == Published([Unit("t", 0, 0, 2)])
    assert second == Published([Unit("t", 0, 0, 2)], duplicate=True)


def test_a_repeat_in_part_appends_the_rest(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 2}, producer=(pid, 0)))
    mq.one(mq.produce({0: 9}))
    result = mq.one(mq.produce({0: 2, 1: 3}, producer=(pid, 0)))
    assert result == Published([Unit("t", 0, 0, 2), Unit("t", 1, 0, 3)])
    assert mq.state.topic("t").high_watermarks.tolist() == [11, 3]


def test_a_refused_partition_refuses_all_of_the_request(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({1: 1}, producer=(pid, 0)))
    mq.refused(mq.produce({0: 2, 1: 3}, producer=(pid, 0)))
    assert mq.one(mq.produce({0: 2}, producer=(pid, 0))) == Published([Unit("t", 0, 0, 2)])


@pytest.mark.parametrize("change", [AlterTopic("t", {}, 5), AlterTopic("t", {}, None, [">"]), DeleteTopic("t")])
def test_a_repeat_is_answered_whatever_became_of_the_topic(mq: Harness, change: AlterTopic | DeleteTopic) -> None:
    """Otherwise the client would place the rows again, and some of them would be in the log twice."""
    request = mq.produce({0: 2, 1: 1}, producer=(mq.producer(), 0))
    first = mq.one(request)
    mq.one(change)
    mq.missing.add(F)
    assert mq.one(request) == Published(first.units, duplicate=True)  # type: ignore[union-attr]


def test_rejected_rows_are_listed_once(mq: Harness) -> None:
    request = mq.produce({0: 2}, producer=(mq.producer(), 0), rejected=3)
    assert mq.one(request) == Published([Unit("t", 0, 0, 2)], rejected_count=3)
    assert mq.one(request) == Published([Unit("t", 0, 0, 2)], rejected_count=3, duplicate=True)
    kinds = [entry.record.kind for step in mq.steps for entry in step.entries]
    assert kinds.count("rows_rejected") == 1


def test_after_the_last_sequence_comes_zero(mq: Harness) -> None:
    pid = mq.producer()
    topic_id = mq.state.topic("t").topic_id
    # as if two thousand million records had come before
    fold(mq.state, [JournalEntry(Produced("t", pid, 0, [UnitAppended(topic_id, 0, MAX - 4, 3, 0)]))])
    result = mq.one(mq.produce({0: 5}, producer=(pid, 0), sequence=MAX - 1))
    assert isinstance(result, Published)
    (segments,) = [entry.segments for entry in mq.steps[-1].entries if entry.record.kind == "produced"]
    assert segments.column("base_sequence") == [MAX - 1]
    assert mq.refused(mq.produce({0: 1}, producer=(pid, 0), sequence=4)).expected == 3
    assert isinstance(mq.one(mq.produce({0: 1}, producer=(pid, 0), sequence=3)), Published)
    assert (next_sequence(MAX, 1), next_sequence(MAX - 1, 1), next_sequence(0, MAX)) == (0, MAX, MAX)


def test_a_newer_epoch_restarts_at_zero_everywhere_and_fences_the_older(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 2, 1: 2}, producer=(pid, 0)))
    assert mq.refused(mq.produce({0: 1}, producer=(pid, 3), sequence=2)).expected == 0
    assert mq.one(mq.produce({0: 2}, producer=(pid, 3))) == Published([Unit("t", 0, 2, 2)])
    zombie = mq.refused(mq.produce({0: 2}, producer=(pid, 0)))
    assert (zombie.error, zombie.found) == ("INVALID_PRODUCER_EPOCH", 0)
    assert mq.refused(mq.produce({1: 1}, producer=(pid, 3), sequence=2)).error == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert mq.one(mq.produce({1: 1}, producer=(pid, 3))) == Published([Unit("t", 1, 2, 1)])


def test_a_producer_nobody_gave_out_is_unknown(mq: Harness) -> None:
    assert mq.refused(mq.produce({0: 1}, producer=(7, 0))).error == "UNKNOWN_PRODUCER_ID"


def test_a_silent_producer_is_forgotten_and_not_before_its_time(mq: Harness) -> None:
    pid = mq.producer()
    mq.now_ms += HOUR_MS
    assert mq.expire() == []
    mq.one(mq.produce({0: 1}, producer=(pid, 0)))
    mq.now_ms += HOUR_MS
    assert "producer_expired" not in mq.expire()
    mq.now_ms += 1
    assert "producer_expired" in mq.expire()
    assert mq.refused(mq.produce({0: 1}, producer=(pid, 0), sequence=1)).error == "UNKNOWN_PRODUCER_ID"


def test_a_topic_of_the_same_name_has_sequences_of_its_own(mq: Harness) -> None:
    pid = mq.producer()
    mq.one(mq.produce({0: 2}, producer=(pid, 0)))
    mq.one(DeleteTopic("t"))
    mq.create("t", 2)
    assert mq.one(mq.produce({0: 2}, producer=(pid, 0))) == Published([Unit("t", 0, 0, 2)])


# -- txn_app_id, txn_version --------------------------------------------------------------------------------


def test_a_version_not_above_the_last_is_not_published_again(mq: Harness) -> None:
    assert mq.one(mq.produce({0: 2}, version=("app", 7))) == Published([Unit("t", 0, 0, 2)])
    for version in (7, 6, 0):
        assert mq.one(mq.produce({0: 2}, version=("app", version))) == Published([], duplicate=True)
    assert mq.one(mq.produce({0: 1}, version=("app", 9))) == Published([Unit("t", 0, 2, 1)])
    assert mq.one(mq.produce({0: 1}, version=("app", 8))) == Published([], duplicate=True)


def test_versions_are_per_application_and_target(mq: Harness) -> None:
    mq.create("u")
    mq.one(mq.produce({0: 1}, version=("app", 3)))
    assert mq.one(mq.produce({0: 1}, version=("other", 3))) == Published([Unit("t", 0, 1, 1)])
    assert mq.one(mq.produce({0: 1}, "u", version=("app", 3))) == Published([Unit("u", 0, 0, 1)])


def test_an_empty_version_counts_too(mq: Harness) -> None:
    assert mq.one(mq.produce({}, version=("app", 3))) == Published([])
    assert mq.one(mq.produce({0: 1}, version=("app", 3))) == Published([], duplicate=True)


def test_a_refused_version_does_not_count(mq: Harness) -> None:
    mq.missing.add(F)
    assert mq.refused(mq.produce({0: 1}, version=("app", 3))).error == "FILE_MISSING"
    mq.missing.clear()
    assert mq.one(mq.produce({0: 1}, version=("app", 3))) == Published([Unit("t", 0, 0, 1)])


def test_an_old_version_is_told_so_whatever_became_of_its_topic(mq: Harness) -> None:
    request = mq.produce({0: 1}, version=("app", 3))
    mq.one(request)
    mq.one(DeleteTopic("t"))
    assert mq.one(request) == Published([], duplicate=True)


@pytest.mark.parametrize(("app", "version"), [("app", -1), ("app", 2**63), ("", 1), ("a" * 250, 1)])
def test_a_version_that_cannot_be_kept_is_refused(mq: Harness, app: str, version: int) -> None:
    assert mq.refused(mq.produce({0: 1}, version=(app, version))).error == "INVALID_REQUEST"


def test_the_largest_version_is_kept(mq: Harness) -> None:
    mq.one(mq.produce({0: 1}, version=("a" * 249, 2**63 - 1)))
    assert mq.one(mq.produce({0: 1}, version=("a" * 249, 5))) == Published([], duplicate=True)
