"""Times that an operator types when looking back: a time of day is the last one."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lakemq.jobs.commands.shared.times import parse_moment, parse_past_moment

UNTIL = datetime(2026, 3, 1, 3, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("02:10", "2026-03-01T02:10:00+00:00"),
        ("03:00", "2026-03-01T03:00:00+00:00"),
        ("03:00:01", "2026-02-28T03:00:01+00:00"),
        ("23:59", "2026-02-28T23:59:00+00:00"),
        ("2026-02-01T02:10", "2026-02-01T02:10:00+00:00"),
        ("2026-02-01T02:10+01:00", "2026-02-01T01:10:00+00:00"),
        ("1000", "1970-01-01T00:00:01+00:00"),
    ],
)
def test_past_time_is_parsed_relative_to_the_end(text: str, expected: str) -> None:
    assert parse_past_moment(text, UNTIL) == datetime.fromisoformat(expected)


def test_a_time_of_day_is_in_utc_whatever_the_zone_of_the_end() -> None:
    here = UNTIL.astimezone(timezone(timedelta(hours=-8)))
    assert parse_past_moment("02:10", here) == datetime(2026, 3, 1, 2, 10, tzinfo=UTC)


@pytest.mark.parametrize("text", ["24:00", "2:10", "02:60", "02:10:99", "yesterday", "", "9" * 30])
def test_text_that_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time in UTC, such as 02:10 or 2026-01-31T02:10"):
        parse_past_moment(text, UNTIL)


@pytest.mark.parametrize("digits", ["20300101", "203001011200", "20300101120000"])
def test_date_without_dashes_is_no_number_of_milliseconds(digits: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601 with dashes"):
        parse_moment(digits)


@pytest.mark.parametrize("digits", ["0", "915148800000", "1795896339000", "99999999", "20309999"])
def test_digits_that_are_no_date_are_read_as_milliseconds(digits: str) -> None:
    assert parse_moment(digits) == int(digits)
