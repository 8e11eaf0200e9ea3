"""Times and positions as they are written on a command line or in a file."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


def parse_time(text: str) -> datetime:
    """An ISO 8601 time; without an offset it is UTC. Raises ValueError."""
    time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


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


def of_millis(time_ms: int | None) -> datetime | None:
    """Milliseconds since 1970 as a time."""
    return None if time_ms is None else datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=time_ms)
