"""Recurring messages: their times, what is published, and what is refused."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given
from protocol_harness import Harness, plain
from unit.served import run_lakemq, run_sql, served, wait_for_files

from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.rules import schedules
from lakemq.engine.protocol.rules.schedules import find_due_occurrences
from lakemq.engine.protocol.values.schedules import (
    CreateSchedule,
    DeleteSchedule,
    MissedPolicy,
    PauseSchedule,
    Schedule,
    ScheduleStatus,
)
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import AlterTopic
from lakemq.engine.sequencer import step_decider
from lakemq.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidSchedule,
    MessageTooLarge,
    ScheduleAlreadyExists,
    SchemaMismatch,
    StorageError,
    UnknownSchedule,
)
from lakemq.testing import MovableClock, read_all, wait_until

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
CHANGES = [
    ("Europe/Berlin", "2026-03-29", "2026-10-25"),
    ("America/New_York", "2026-03-08", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05", "2026-10-04"),  # by half an hour
    ("Africa/Cairo", "2026-04-24", "2026-10-29"),  # at midnight
    ("Asia/Kolkata", "2026-03-29", "2026-12-31"),  # never
]
"""Time zones, and days on which their clocks change."""


# -- times ------------------------------------------------------------------------------------------------


def list_occurrences(cron: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    """Return the occurrences after `begin`, up to `end`."""
    begin_ms, end_ms = (int(at.timestamp() * 1000) for at in (begin, end))
    found = takewhile(lambda at_ms: at_ms <= end_ms, schedules._iterate_occurrences(cron, zone, begin_ms))
    return [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in found]


def fields(most: int) -> st.SearchStrategy[tuple[str, set[int]]]:
    """Draw a field of minutes or hours, and the numbers that it stands for."""
    lists = st.sets(st.integers(0, most), min_size=1, max_size=4).map(lambda n: (",".join(map(str, sorted(n))), n))
    steps = st.integers(1, most).map(lambda step: (f"*/{step}", set(range(0, most + 1, step))))
    return st.one_of(st.just(("*", set(range(most + 1)))), lists, steps)


def expect_occurrences(
    minutes: set[int], hours: set[int], is_fixed: bool, zone: str, begin: datetime, end: datetime
) -> list[datetime]:
    """Compute occurrences minute by minute, as Debian's cron does."""
    tz, expected = ZoneInfo(zone), set[datetime]()
    at = begin + timedelta(minutes=1)
    while at <= end:
        local = at.astimezone(tz)
        if local.minute in minutes and local.hour in hours and not (is_fixed and local.fold):
            expected.add(at)
        if is_fixed:  # minutes that the clocks have left out just before come now
            missing = (local.replace(tzinfo=None) - (at - timedelta(minutes=1)).astimezone(tz).replace(tzinfo=None)) / (
                timedelta(minutes=1)
            )
            skipped = (local.replace(tzinfo=None) - timedelta(minutes=n) for n in range(1, int(missing)))
            if any(time.minute in minutes and time.hour in hours for time in skipped):
                expected.add(at)
        at += timedelta(minutes=1)
    return sorted(expected)


@pytest.mark.slow
@examples(300)
@given(
    # with `*`, CronSim leaves out times where clocks change by half an hour
    st.sampled_from([(zone, day) for zone, *days in CHANGES if "Lord_Howe" not in zone for day in days]),
    fields(59),
    fields(23),
    st.integers(0, 2 * 24 * 60),
)
def test_occurrences_are_those_of_debians_cron(
    zone_and_day: tuple[str, str], minute: tuple[str, set[int]], hour: tuple[str, set[int]], start: int
) -> None:
    """Days on which clocks change are compared with a walk through all minutes."""
    zone, day = zone_and_day
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1) + timedelta(minutes=start)
    end = begin + timedelta(hours=20)
    is_fixed = not (minute[0].startswith("*") or hour[0].startswith("*"))
    expected = expect_occurrences(minute[1], hour[1], is_fixed, zone, begin, end)
    assert list_occurrences(f"{minute[0]} {hour[0]} * * *", zone, begin, end) == expected


@examples(50)
@given(
    st.sampled_from(["* * * * *", "* * * 1 *", "*/7 1 L * *", "30 2 * * *", "0 0 29 2 *"]),
    st.sampled_from([zone for zone, *_ in CHANGES]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
    st.integers(0, 100 * 24 * 60),
)
def test_the_last_of_many_missed_occurrences_is_found_without_a_walk_through_them(
    cron: str, zone: str, begin: datetime, minutes: int
) -> None:
    first_ms = schedules.find_next_ms(cron, zone, int(begin.replace(tzinfo=UTC).timestamp() * 1000))
    now_ms = first_ms + minutes * MINUTE_MS
    schedule = Schedule("s", 1, "t", cron, zone, MissedPolicy.ONCE, None, None, [], first_ms)
    iterate, found = schedules._iterate_occurrences, list[int]()

    def count(*arguments: Any) -> Iterator[int]:
        for at_ms in iterate(*arguments):
            found.append(at_ms)
            yield at_ms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "_iterate_occurrences", count)
        last_ms, next_ms = schedules._find_times(schedule, now_ms)
    assert first_ms <= last_ms <= now_ms < next_ms == schedules.find_next_ms(cron, zone, last_ms)
    assert len(found) <= 2 * 18  # 2 ** 18 minutes are half a year


@examples(500)
@given(st.text(st.sampled_from("0123456789*/,-#LWMONJAN abc²\0"), max_size=300), st.text(max_size=80))
def test_any_text_is_an_expression_and_a_zone_or_is_refused(cron: str, zone: str) -> None:
    for expression, name in ((cron, "UTC"), (f"0 0 * * {cron.split(' ')[0]}", "UTC"), ("0 0 * * *", zone)):
        with suppress(InvalidSchedule):
            assert schedules.find_next_ms(expression, name, 0) > 0


# -- decisions --------------------------------------------------------------------------------------------


@pytest.fixture
def mq() -> Harness:
    """The core at a full hour, with a topic `t`, and schedules `a` and `b` that are due at the next one."""
    harness = Harness()
    harness.now_ms = 100 * HOUR_MS
    harness.create("t", 2)
    for name in "ab":
        harness.ask(CreateSchedule(name, "t", "0 * * * *", key=name.encode(), value=b"v"))
    return harness


def test_letters_of_a_step_are_decided_before_its_occurrences(mq: Harness) -> None:
    """The leader looks for due occurrences first, because it writes their rows. Then it decides letters."""
    mq.now_ms += HOUR_MS
    due = find_due_occurrences(mq.state, mq.now_ms, 10)
    mq.ask(DeleteSchedule("a"), PauseSchedule("b"))
    assert mq.recur(due) == []
    assert mq.state.topic("t").high_watermarks.tolist() == [0, 0]


def test_an_occurrence_waits_a_step_if_its_topic_has_changed(mq: Harness) -> None:
    mq.now_ms += HOUR_MS
    due = find_due_occurrences(mq.state, mq.now_ms, 10)
    mq.ask(AlterTopic("t", partitions=3))
    assert mq.recur(due) == []
    assert mq.recur() == ["occurrence_decided"] * 2
    assert sum(mq.state.topic("t").high_watermarks) == 2


def test_an_occurrence_that_was_decided_is_not_decided_again(mq: Harness) -> None:
    mq.now_ms += HOUR_MS
    due = find_due_occurrences(mq.state, mq.now_ms, 10)
    assert mq.recur(due) == ["occurrence_decided"] * 2
    assert mq.recur(due) == []


def test_decisions_are_folded_without_cron_and_time_zones(mq: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    mq.now_ms += HOUR_MS
    mq.recur()
    monkeypatch.setattr(schedules, "_iterate_occurrences", None)
    assert plain(machine.replay(State(), mq.steps))["schedules"] == plain(mq.state)["schedules"]


def test_a_schedule_is_paused_if_its_next_time_cannot_be_computed(
    mq: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mq.ask(DeleteSchedule("b"))
    mq.now_ms += HOUR_MS
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "ZoneInfo", {}.__getitem__)
        assert mq.recur() == ["schedule_paused"]
        assert mq.recur() == []
    (schedule,) = mq.state.schedules
    assert "The time zone is not known. Found 'UTC'" in str(schedule.reason)
    assert "The schedule a is paused." in caplog.text


def fail_to_open(name: str) -> ZoneInfo:
    raise OSError(errno.EMFILE, "Too many open files", name)


def test_an_occurrence_waits_while_the_file_of_its_time_zone_cannot_be_read(
    mq: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.now_ms += HOUR_MS
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "ZoneInfo", fail_to_open)
        assert mq.recur() == []
        refusal = mq.refused(CreateSchedule("c", "t", "0 * * * *"))
        assert (refusal.error, refusal.found) == (StorageError.name, "Too many open files")
    assert {schedule.status for schedule in mq.state.schedules} == {ScheduleStatus.ACTIVE}
    assert mq.recur() == ["occurrence_decided"] * 2


def test_a_name_that_is_a_folder_of_time_zones_is_refused(mq: Harness) -> None:
    assert mq.refused(CreateSchedule("c", "t", "0 * * * *", "Europe")).error == InvalidSchedule.name


def test_an_occurrence_that_fails_unexpectedly_pauses_its_schedule_and_no_other(
    mq: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, failures = schedules.decide_produce, [ZeroDivisionError("defect")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return decide(*arguments)

    monkeypatch.setattr(schedules, "decide_produce", fail_once)
    mq.now_ms += HOUR_MS
    assert mq.recur() == ["schedule_paused", "occurrence_decided"]


def test_there_are_at_most_ten_thousand_schedules(mq: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_SCHEDULES", 2)
    refusal = mq.refused(CreateSchedule("c", "t", "0 * * * *"))
    assert (refusal.error, refusal.found) == (InvalidRequest.name, 2)


# -- a served namespace -----------------------------------------------------------------------------------


class Served:
    """A served namespace, and its clock."""

    def __init__(self, mq: Connection, clock: MovableClock) -> None:
        self.mq, self.clock = mq, clock

    def wait_for(self, topic: str, count: int) -> list[Any]:
        wait_until(lambda: len(read_all(self.mq, topic)) >= count, f"{count} messages", 60)
        return read_all(self.mq, topic)


@pytest.fixture(params=[{}, {"journal.rows.max.bytes": 0}], ids=["in steps", "in files"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Rows of recurring messages go into steps, or into data files."""
    clock = MovableClock()
    with served(tmp_path, clock, **request.param) as mq:
        yield Served(mq, clock)


@pytest.mark.slow
def test_a_message_has_its_key_value_and_headers_and_those_of_the_occurrence(shop: Served) -> None:
    shop.mq.topics.create("t", 3)
    created = shop.mq.schedules.create(
        "daily", "t", cron="0 8 * * *", time_zone="Europe/Berlin", key="k", value="v", headers={"h": b"x"}
    )
    assert created == shop.mq.schedules.describe("daily")
    with shop.mq.producer() as producer:
        same = producer.send("t", "other", key="k").result()
    shop.clock.advance(days=1)
    message = shop.wait_for("t", 2)[-1]
    assert (message.partition, message.key, message.value) == (same.partition, b"k", b"v")
    assert created.next_at is not None
    headers = dict(message.headers)
    time = int(headers["schedule.time"])
    assert (headers["h"], headers["schedule.name"]) == (b"x", b"daily")
    assert time % 86_400_000 == int(created.next_at.timestamp() * 1000) % 86_400_000
    assert message.timestamp.timestamp() * 1000 >= time
    described = shop.mq.schedules.describe("daily")
    assert described.last_at is not None
    assert described.last_at.timestamp() * 1000 == time
    assert described.next_at == described.last_at + timedelta(days=1)


@pytest.mark.slow
def test_a_schedule_that_exists_is_accepted_with_exist_ok_if_its_arguments_are_the_same(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("t", 1)
        arguments: dict[str, Any] = {"cron": "0 8 * * *", "key": "k", "headers": {"h": "x"}}
        created = mq.schedules.create("daily", "t", **arguments, exist_ok=True)
        assert mq.schedules.create("daily", "t", **arguments, exist_ok=True) == created
        mq.schedules.pause("daily")
        assert mq.schedules.create("daily", "t", **arguments, exist_ok=True).state == "paused"
        with pytest.raises(ScheduleAlreadyExists, match="exists with another cron, value"):
            mq.schedules.create("daily", "t", **{**arguments, "cron": "0 9 * * *", "value": "v"}, exist_ok=True)
        with pytest.raises(ScheduleAlreadyExists):
            mq.schedules.create("daily", "t", **arguments)


@pytest.mark.slow
def test_occurrences_above_the_limit_of_a_step_come_in_the_next(shop: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_decider, "MAX_OCCURRENCES", 2)
    shop.mq.topics.create("t", 2)
    for number in range(5):
        shop.mq.schedules.create(f"s{number}", "t", cron="* * * * *", value=str(number), missed="once")
        shop.mq.schedules.pause(f"s{number}")
    shop.clock.advance(minutes=30)
    for number in range(5):
        shop.mq.schedules.resume(f"s{number}")
    assert {message.value for message in shop.wait_for("t", 5)} == {b"0", b"1", b"2", b"3", b"4"}


@pytest.mark.extended
@pytest.mark.slow
def test_another_leader_knows_schedules_and_sql_shows_them(tmp_path: Path) -> None:
    clock = MovableClock()
    with served(tmp_path, clock) as mq:
        mq.topics.create("t", 1)
        mq.schedules.create("b", "t", cron="0 8 29 2 *", headers=[("h", None), ("h", b"2")], missed="skip")
        mq.schedules.create("a", "t", cron="* * * * *")
        mq.schedules.pause("a")
        mq.schedules.create("c", "t", cron="* * * * *")
        mq.schedules.delete("c")
        before = mq.schedules.list()
        wait_for_files(mq)
        names = mq.sql("SELECT * FROM current_schedules").column_names
        assert sorted(names) == sorted(asdict(before[0])), "SQL, Python and the command use the same words"
        rows = run_sql(mq, "SELECT name, state, reason, next_at IS NULL, missed FROM current_schedules ORDER BY name")
        assert [tuple(row) for row in rows] == [
            ("a", "paused", "paused by request", True, "once"),
            ("b", "active", None, False, "skip"),
        ]
    with served(tmp_path, clock) as mq:
        assert mq.schedules.list() == before
        assert [schedule.name for schedule in before] == ["a", "b"]
        mq.schedules.resume("a")
        clock.advance(minutes=2)
        assert read_all(mq, "t")
        with pytest.raises(UnknownSchedule):
            mq.schedules.describe("c")


@pytest.mark.slow
def test_a_message_that_its_topic_cannot_take_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("t", 1, config={"schema": "id BIGINT NOT NULL"})
        mq.topics.create("all", 1, config={"max.message.bytes": 11}, subscriptions=["*"])
        create: Callable[..., Any] = mq.schedules.create
        with pytest.raises(SchemaMismatch, match="does not fit the topic's schema"):
            create("s", "t", cron="* * * * *", value='{"id": "x"}')
        with pytest.raises(MessageTooLarge):  # for the subscriber
            create("s", "t", cron="* * * * *", value='{"id": 1}   ')
        with pytest.raises(InvalidRecord, match="cannot be delayed"):
            create("s", "t", cron="* * * * *", value='{"id": 1}', headers={"DELAY_MS": b"5"})
        with pytest.raises(InvalidRequest, match="once or skip"):
            create("s", "t", cron="* * * * *", missed="all")
        assert mq.schedules.list() == []


@pytest.mark.slow
def test_commands_create_pause_resume_and_delete(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("t", 1)
        lake = partial(run_lakemq, mq.namespace.path, "--output", "json", "schedules")

        def show(*arguments: str) -> dict[str, Any]:
            return dict(json.loads(lake(*arguments).stdout))

        create = ("create", "daily", "t", "--cron", "0 8 * * MON-FRI", "--time-zone", "Europe/Berlin")
        created = show(*create, "--value", "go", "--header", "a=1", "--missed", "skip")
        assert (created["state"], created["missed"], created["value"]) == ("active", "skip", "go")
        assert show("pause", "daily") | {"state": 1} == created | {
            "state": 1,
            "next_at": None,
            "reason": "paused by request",
        }
        assert show("resume", "daily") == created == show("list")
        assert "SCHEDULE_ALREADY_EXISTS" in lake(*create, code=1).stderr
        assert "UNKNOWN_SCHEDULE" in lake("delete", "nobody", "--yes", code=1).stderr
        assert "all" in lake(*create, "--missed", "all", code=2).stderr
        assert "NAME=VALUE" in lake(*create, "--header", "a", code=2).stderr
        lake("delete", "daily", "--yes")
        assert mq.schedules.list() == []
