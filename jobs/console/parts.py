"""The parts of a page as values, their charts, and how they become HTML.

`page.html` draws each kind, so that all pages look and behave alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.commands.shared.times import from_millis
from lakemq.jobs.console.payloads import SHORT_CHARACTERS, escape_invisible, show_payload
from lakemq.jobs.output import format_setting, format_size, to_iso, to_readable

with needs("report"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup


# Turn what pages have read into HTML. Everything is escaped; templates mark nothing as safe.


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
    environment.globals |= {"most_rows": MOST_ROWS, "root": ""}
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
    return to_iso(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


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


# A chart of owners as numbers for a small SVG template.


WIDTH = 720
"""The width of the chart in its own units; the page scales it to the width of the screen."""

_ROW_HEIGHT, _LABEL_WIDTH = 18, 140
_COLOURS = 8
"""How many classes of colours the style sheet has."""
_MOST_NUMBERS = 60
"""Rows of the table beside a chart of lines."""


@dataclass(frozen=True)
class Bar:
    """A rectangle with a text that appears beside the pointer."""

    x: float
    y: float
    width: float
    height: float
    title: str
    colour: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart. description: what it shows, for readers that do not see it. labels: x, y, text, and `start` or `end`."""

    title: str
    description: str
    bars: list[Bar]
    width: int
    height: int
    labels: list[tuple[float, float, str, str]]


@dataclass(frozen=True)
class OwnershipPeriod:
    """A time in which a member had a partition. until: None: it has it still."""

    partition: str
    owner: str
    since: datetime
    until: datetime | None
    reason: str


def draw_ownership(title: str, periods: Sequence[OwnershipPeriod], begin: datetime, end: datetime) -> Chart:
    """Return a chart with one row per partition, in which each owner has its colour."""
    rows = {partition: row for row, partition in enumerate(sorted({period.partition for period in periods}))}
    colours = _choose_colours(periods)
    span_s = max(1.0, (end - begin).total_seconds())
    scale = (WIDTH - _LABEL_WIDTH) / span_s
    bars = []
    for period in periods:
        since, until = max(period.since, begin), min(period.until or end, end)
        if until <= since:
            continue
        bars.append(
            Bar(
                x=round(_LABEL_WIDTH + (since - begin).total_seconds() * scale, 2),
                y=rows[period.partition] * _ROW_HEIGHT + 2,
                width=max(1.0, round((until - since).total_seconds() * scale, 2)),
                height=_ROW_HEIGHT - 4,
                title=f"{period.partition}: {period.owner} from {since:%H:%M:%S} to {until:%H:%M:%S}, {period.reason}",
                colour=colours[period.owner],
            )
        )
    labels = [(0.0, (row + 1) * _ROW_HEIGHT - 5.0, partition, "start") for partition, row in rows.items()]
    height = len(rows) * _ROW_HEIGHT
    bottom = height + 14.0
    labels += [(_LABEL_WIDTH, bottom, f"{begin:%H:%M:%S}", "start"), (WIDTH, bottom, f"{end:%H:%M:%S}", "end")]
    return Chart(title, f"{title}: {len(periods)} periods of {len(rows)} partitions", bars, WIDTH, height + 20, labels)


def _choose_colours(periods: Sequence[OwnershipPeriod]) -> Mapping[str, int]:
    owners = dict.fromkeys(period.owner for period in periods)
    return {owner: number % _COLOURS for number, owner in enumerate(owners)}


# The parts, as values.


@dataclass(frozen=True)
class Link:
    """A text that leads to another page."""

    text: str
    href: str


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    kind: ClassVar[str] = "facts"
    title: str
    pairs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Table:
    """Rows with columns. A cell is a number, a text, a Link or a PayloadView. empty: the sentence without rows."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    empty: str = "There is nothing to show."
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A chart."""

    kind: ClassVar[str] = "picture"
    chart: Chart

    @property
    def title(self) -> str:
        """The title of the chart."""
        return self.chart.title


@dataclass(frozen=True)
class LineChart:
    """Lines over time. lines: name -> a value for each time; NaN or None: there is none."""

    kind: ClassVar[str] = "lines"
    title: str
    unit: str
    times_ms: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]

    @property
    def shown(self) -> dict[str, list[float | None]]:
        """The first lines, as many as there are colours."""
        return {
            escape_invisible(name): [None if value is None or value != value else round(value, 3) for value in values]
            for name, values in [*self.lines.items()][:_COLOURS]
        }

    @property
    def left_out(self) -> int:
        return max(0, len(self.lines) - _COLOURS)

    @property
    def json(self) -> str:
        """What the script draws: times in seconds."""
        times_s = [time_ms / 1000 for time_ms in self.times_ms]
        return json.dumps({"unit": self.unit, "times": times_s, "lines": self.shown})

    @property
    def table(self) -> Table:
        """The newest numbers, for browsers without scripts."""
        rows = [*zip(map(format_time, map(int, self.times_ms)), *self.shown.values(), strict=True)][::-1]
        return Table(self.title, ("time", *self.shown), rows[:_MOST_NUMBERS])


@dataclass(frozen=True)
class Field:
    """An input of a form. choices: of a list to choose from, also with a text for each; rows: of a text with lines."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[str] | Mapping[str, str] = ()
    rows: int = 0
    is_hidden: bool = False
    is_secret: bool = False


@dataclass(frozen=True)
class Form:
    """A form. method: `get` for what only reads; `post` for the rest. destroys: its button is red."""

    kind: ClassVar[str] = "form"
    title: str
    action: str
    fields: Sequence[Field]
    button: str
    method: str = "get"
    is_change: bool = False
    destroys: bool = False


def make_filter(path: str, label: str, text: str) -> Form:
    """Return a form that shows the same page with those rows that have a text."""
    return Form("Filter", path, [Field("text", label, text)], "Show")


@dataclass(frozen=True)
class TextBlock:
    """A text in its own lines, such as a payload."""

    kind: ClassVar[str] = "block"
    title: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Notice:
    """A sentence that stands out. level: info, good or bad."""

    kind: ClassVar[str] = "notice"
    text: str
    level: str = "info"
    title: str = ""


@dataclass(frozen=True)
class Actions:
    """Links to what can be done with the object of the page."""

    kind: ClassVar[str] = "actions"
    links: Sequence[Link]
    title: str = ""


Part = Facts | Table | Picture | LineChart | Form | TextBlock | Notice | Actions


@dataclass(frozen=True)
class Page:
    """A page: its title and its parts, from top to bottom. follows: a script puts new rows into its last table."""

    title: str
    parts: Sequence[Part]
    trail: Sequence[Link] = field(default_factory=tuple)
    follows: bool = False

    @property
    def has_lines(self) -> bool:
        """Whether a script has something to draw. Pages of messages and of SQL have no script, but the tail has one."""
        return any(isinstance(part, LineChart) for part in self.parts)


# Tables and facts of records. Their columns are fields, with the names that the command has.


_PAGE_OF = {"group": "/group", "consumer_group": "/group", "topic": "/topic", "source_topic": "/topic"}
"""Field -> the page of the thing that it names."""
_TIMES = ("_at_ms", "_due_ms", "since_ms")
_PAYLOADS = ("key", "value", "hot_key")
_SHORT_PAYLOAD = 200

Record = Any
"""A mapping, or an object with attributes."""


def list_records(
    title: str,
    records: Iterable[Record],
    columns: str,
    empty: str = "There is nothing to show.",
    note: str = "",
    how: str = "auto",
    has_links: bool = True,
    **cells: Callable[[Any], Any],
) -> Table:
    """Return a table with a row per record.

    Args:
        title: the title.
        records: the records.
        columns: names of fields, separated by commas.
        empty: the sentence without records.
        note: a sentence below.
        how: the form in which payloads are shown.
        has_links: whether names of topics and groups lead to their pages.
        cells: name of a column -> a function from a record to its cell, where it is not just the field.
    """
    names = columns.split(", ")
    rows = [
        [cells[name](record) if name in cells else _show_field(record, name, how, has_links) for name in names]
        for record in records
    ]
    return Table(title, [_name_column(name) for name in names], rows, empty, note)


def list_facts(title: str, record: Record, fields: str) -> Facts:
    """Return fields of one record, whose names are separated by commas."""
    return Facts(title, [(_name_column(name), _show_field(record, name)) for name in fields.split(", ")])


def _name_column(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")


def _show_field(record: Record, name: str, how: str = "auto", has_links: bool = True) -> Any:
    value = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    if name in _PAYLOADS and not isinstance(value, str):
        return show_payload(value, how, SHORT_CHARACTERS if name == "value" else _SHORT_PAYLOAD)
    if value is None or value == "":
        return None
    if name in _PAGE_OF and has_links:
        return Link(value, make_link(_PAGE_OF[name], name=value))
    if isinstance(value, datetime) or name.endswith(_TIMES):
        return format_time(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format_length(value) if name.endswith("_ms") else _show_number(name, value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={format_setting(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ("; " if name == "waits_for" else ", ").join(map(str, value))
    return str(value)


def _show_number(name: str, value: float) -> Any:
    if name.endswith("bytes"):
        return format_size(int(value))
    return f"{value:.1%}" if name.endswith("share") else value
