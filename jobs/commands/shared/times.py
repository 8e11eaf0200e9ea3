"""Parse times and positions from a command line or a file."""

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

DeliverAt = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Deliver at this time: ISO 8601 (by default UTC), or milliseconds since 1970."),
]
DelayMs = Annotated[int | None, typer.Option(min=0, metavar="N", help="Deliver N milliseconds from now.")]
TtlMs = Annotated[int | None, typer.Option(min=0, metavar="N", help="Time to live: deliver within N milliseconds.")]

AsOf = Annotated[
    str | None, typer.Option(metavar="STEP|TIME", help="Read the tables as of this step, or this time (ISO 8601).")
]

_STEP_MAX = 2**63 - 1
_EPOCH = datetime.fromtimestamp(0, UTC)
_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W)?(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,6})M)?(?:(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,6})?)S)?)?"
)


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time; without an offset it is UTC. Raises ValueError."""
    time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse_as_of(text: str | None) -> int | datetime | None:
    """Parse a step or a time; raise a usage error if it is neither."""
    if text is None:
        return None
    try:
        as_of: int | datetime = int(text) if _is_number(text) else parse_time(text)
    except ValueError:
        as_of = _STEP_MAX + 1
    if isinstance(as_of, int) and as_of > _STEP_MAX:
        raise typer.BadParameter(f"{text!r} is neither a step nor a time in ISO 8601", param_hint="--as-of")
    return as_of


def parse_moment(text: str) -> datetime | int:
    """Parse a time, or milliseconds since 1970. Raises ValueError, also for a date without dashes: it is like both."""
    try:
        if _is_number(text):
            if _is_date(text):
                raise ValueError
            return int(text)
        return parse_time(text)
    except ValueError:
        expected = "a time in ISO 8601 with dashes, or milliseconds since 1970"
        raise ValueError(f"found {text!r}, expected {expected}") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_date(digits: str) -> bool:
    """Return whether digits are a date, perhaps with a time. As milliseconds they would be in 1970 or 1976."""
    layout = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(digits), "")
    try:
        return 1970 <= datetime.strptime(digits, layout).year < 2200
    except ValueError:
        return False


def parse_past_moment(text: str, until: datetime) -> datetime:
    """Parse a time as `parse_moment` does, or a time of day in UTC: the last one that is not after `until`.

    Raises ValueError.
    """
    if match := _TIME_OF_DAY.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        moment = until.astimezone(UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
        return moment if moment <= until else moment - timedelta(days=1)
    try:
        parsed = parse_moment(text)
        return _EPOCH + timedelta(milliseconds=parsed) if isinstance(parsed, int) else parsed
    except (ValueError, OverflowError):
        expected = "a time in UTC, such as 02:10 or 2026-01-31T02:10, or milliseconds since 1970"
        raise ValueError(f"found {text!r}, expected {expected}") from None


def parse_moment_option(text: str | None, option: str = "--deliver-at") -> datetime | int | None:
    """Parse the time of an option; raise a usage error if it is not a time."""
    try:
        return None if text is None else parse_moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def to_millis(moment: datetime | int) -> int:
    """Convert a time to milliseconds since 1970."""
    return moment if isinstance(moment, int) else (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_past_option(text: str, option: str, until: datetime | None = None) -> datetime:
    """Parse an option that names a past time; raise a usage error if it is no time. until: now by default."""
    try:
        return parse_past_moment(text, until or datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_position(text: str) -> str | int | datetime:
    """Parse `earliest`, `latest`, an offset, or a time. Raises ValueError."""
    if text in ("earliest", "latest"):
        return text
    if _is_number(text):
        return int(text)
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected earliest, latest, an offset, or a time in ISO 8601") from None


def parse_duration(text: str) -> timedelta:
    """Parse an ISO 8601 duration of weeks, days, hours, minutes and seconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise ValueError(f"found {text!r}, expected a duration in ISO 8601, such as P1DT12H or PT30M")
    return timedelta(**parts)


def from_millis(time_ms: int | None) -> datetime | None:
    """Convert milliseconds since 1970 to a time."""
    return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)


def to_record(info: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and each point in time also as a time: `joined_at` beside `joined_at_ms`."""
    fields = asdict(info)
    times = {
        name.removesuffix("_ms"): from_millis(value)
        for name, value in fields.items()
        if name.endswith(("_at_ms", "since_ms", "due_ms"))
    }
    return fields | times
