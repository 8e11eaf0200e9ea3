"""Times and positions as they are written on a command line or in a file."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Annotated

import typer

DeliverAt = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="A time in ISO 8601 (UTC unless it says otherwise), or milliseconds since 1970."),
]
DelayMs = Annotated[int | None, typer.Option(min=0, metavar="N", help="So many milliseconds from now.")]
TtlMs = Annotated[int | None, typer.Option(min=0, metavar="N", help="Delivered for so many milliseconds.")]

AsOf = Annotated[
    str | None, typer.Option(metavar="STEP|TIME", help="What the tables held at that step, or time (ISO 8601).")
]

_STEP_MAX = 2**63 - 1
_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W)?(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,6})M)?(?:(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,6})?)S)?)?"
)


def parse_time(text: str) -> datetime:
    """An ISO 8601 time; without an offset it is UTC. Raises ValueError."""
    time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def parse_as_of(given: str | None) -> int | datetime | None:
    """A step, or a time. Ends with a usage message."""
    try:
        as_of = None if given is None else parse_moment(given)
    except ValueError:
        as_of = _STEP_MAX + 1
    if isinstance(as_of, int) and as_of > _STEP_MAX:
        raise typer.BadParameter(f"{given!r} is no step, and no time in ISO 8601", param_hint="--as-of")
    return as_of


def parse_moment(text: str) -> datetime | int:
    """A time, or milliseconds since 1970. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected a time in ISO 8601, or milliseconds since 1970") from None


def moment_of(given: str | None, option: str = "--deliver-at") -> datetime | int | None:
    """What an option says; a usage error where it is no time."""
    try:
        return None if given is None else parse_moment(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def millis_of(moment: datetime | int) -> int:
    """Milliseconds since 1970."""
    return moment if isinstance(moment, int) else (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_position(text: str) -> str | int | datetime:
    """`earliest`, `latest`, an offset, or a time. Raises ValueError."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected earliest, latest, an offset, or a time in ISO 8601") from None


def parse_duration(text: str) -> timedelta:
    """An ISO 8601 duration of weeks, days, hours, minutes and seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in found.groupdict().items() if value} if found else {}
    if not parts:
        raise ValueError(f"found {text!r}, expected a duration in ISO 8601, as P1DT12H or PT30M")
    return timedelta(**parts)


def of_millis(time_ms: int | None) -> datetime | None:
    """Milliseconds since 1970 as a time."""
    return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)
