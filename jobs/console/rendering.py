"""Turn what pages have read into HTML. Everything is escaped; templates mark nothing as safe."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from lakemq.engine.namespace.processes.extras import needs

with needs("console"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

from lakemq.jobs.commands.shared.times import from_millis
from lakemq.jobs.console.payloads import escape_invisible, show_payload
from lakemq.jobs.output import format_size, to_iso, to_readable

MOST_ROWS = 1_000
"""How many rows of a table a page shows: browsers draw more only slowly."""

_LENGTHS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def make_templates() -> Environment:
    """Return the templates, with escaping on for all of them."""
    environment = Environment(
        loader=PackageLoader("lakemq.jobs.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escape_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "size": format_size}
    environment.globals |= {"most_rows": MOST_ROWS}
    return environment


def _escape_text(value: Any) -> Any:
    """Escape what a screen obeys or hides in any text of a page. Markup stays, and so do values of inputs (`| e`)."""
    return escape_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def make_link(path: str, **inputs: Any) -> str:
    """Return the address of a page with its inputs, without those of value None."""
    query = urlencode({name: value for name, value in inputs.items() if value is not None})
    return f"{path}?{query}" if query else path


def format_number(value: float | None) -> str:
    """Return a number with separators between thousands; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


def format_time(time: datetime | int | None) -> str:
    """Return a time, or milliseconds since 1970, in ISO 8601 and UTC."""
    moment = from_millis(time) if isinstance(time, int) else time
    if moment is None:
        return "-"
    return to_iso(moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc))


def format_length(length_ms: float | None) -> str:
    """Return a length of time in a unit that suits it."""
    if length_ms is None:
        return "-"
    unit_ms, unit = next((pair for pair in _LENGTHS_MS if length_ms >= pair[0]), (1, "ms"))
    return f"{length_ms / unit_ms:.3g} {unit}"


def format_cell(value: Any) -> str:
    """Return any value of a table or of SQL as short text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return show_payload(value, "text").text
    if isinstance(value, datetime):
        return format_time(value)
    text = str(to_readable(value))
    return escape_invisible(text if len(text) <= 1_000 else f"{text[:1_000]}...")
