"""Pages that ask by SQL: the history, the tables, the query box; and what they show where there is no SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import LakeMQError, MissingExtra
from lakemq.jobs.commands.shared.times import from_millis, parse_past_moment, to_millis
from lakemq.jobs.console.changes import LONGEST_TEXT, BadInput, read_number, read_text
from lakemq.jobs.console.console import Console, NotPossible
from lakemq.jobs.console.parts import (
    Facts,
    Field,
    Form,
    Link,
    Notice,
    Page,
    Part,
    Picture,
    Table,
    draw_bars,
    format_cell,
    format_length,
    format_time,
    make_link,
)
from lakemq.jobs.output import format_size
from lakemq.tables.specs.groups import CUT_KEYS, LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta.store import NewerTable, NotATable
from lakemq.tables.views import VIEWS

if TYPE_CHECKING:
    from lakemq.jobs.reports.history import History, Numbers


def draw_or_explain(title: str, draw: Callable[[], Sequence[Part]]) -> list[Part]:
    """Return parts that need SQL, or a sentence that says why they are not there."""
    try:
        return list(draw())
    except MissingExtra as error:
        return [Notice(f"{title} needs SQL: {error.expected}.", title=title)]
    except (LakeMQError, NotPossible) as error:
        return [Notice(f"{title} cannot be read now: {error}", "bad", title)]


# What happened before a time: rates, lag, owners, handoffs and changes, as `lakemq report` has them.


_MOST_MINUTES = 24 * 60
_MOST_ROWS = 200


def read_history_page(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of the time that a visitor names; by default the last half hour."""
    text = read_text(inputs, "at", 40, "")
    minutes = read_number(inputs, "minutes", 30, low=1, high=_MOST_MINUTES)
    until_ms = _read_until_ms(text)
    fields = [
        Field("at", "until this time (UTC, such as 02:10 or 2026-01-31T02:10; empty: now)", text),
        Field("minutes", "minutes before it", str(minutes)),
    ]
    parts: list[Part] = [Form("When", "/history", fields, "Show")]

    def draw() -> list[Part]:
        from lakemq.jobs.reports.history import read_history

        return _show(read_history(console.mq, until_ms - 60_000 * minutes, until_ms))

    return Page("History", [*parts, *draw_or_explain("The history", draw)])


def _read_until_ms(text: str) -> int:
    now = datetime.now(UTC)
    try:
        return to_millis(parse_past_moment(text, now) if text else now)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"The input at is not a time: {error}.") from None


def _show(history: History) -> list[Part]:
    timeline = history.timeline
    began_ms = history.journal_since_ms
    journal = "nothing of this time" if began_ms is None else f"decisions since {format_time(began_ms)}"
    return [
        *_warn_of_forgotten_times(history),
        Facts(
            "In this time",
            [
                ("from", format_time(timeline.since_ms)),
                ("until", format_time(timeline.until_ms)),
                ("messages", history.message_count),
                ("steps", history.step_count),
                ("the journal has", journal),
            ],
        ),
        _list_groups(history),
        _list_owners(history),
        _list_topics(history),
        _draw_rate("Messages per second", history, _add_up(history.appended.values(), len(timeline.ends_ms))),
        _draw_rate("Steps per second", history, history.steps.tolist()),
        _list_handoffs(history),
        _list_changes(history),
    ]


def _add_up(series: Iterable[Numbers], length: int) -> list[float]:
    """Return the sum of the series, point by point."""
    sums = [0.0] * length
    for rates in series:
        sums = [before + rate for before, rate in zip(sums, rates.tolist(), strict=True)]
    return sums


def _warn_of_forgotten_times(history: History) -> list[Part]:
    if history.is_in_journal:
        return []
    text = "Rates and lag are known only as far back as the journal goes. Raise journal.retention.ms to keep more."
    return [Notice(f"{text} Owners and handoffs reach back for group.history.ms.")]


def _list_groups(history: History) -> Table:
    from lakemq.jobs.reports.history_report import list_lags

    rows = [
        [Link(row["group"], make_link("/group", name=row["group"])), *list(row.values())[1:]]
        for row in list_lags(history)[:_MOST_ROWS]
    ]
    columns = ("group", "lag at the end", "lag at the start", "consumed per second, mean")
    return Table("Groups", columns, rows, "There was no group.")


def _list_topics(history: History) -> Table:
    from lakemq.jobs.reports.history_report import list_topic_rates

    rows = [list(row.values()) for row in list_topic_rates(history)[:_MOST_ROWS]]
    return Table("Topics", ("topic", "messages per second, mean", "at most"), rows, "No message came.")


def _list_owners(history: History) -> Table:
    from lakemq.jobs.reports.history_report import list_owners_at_end

    rows = [
        [*list(row.values())[:4], row["owner"] or "", format_time(row["since"])] for row in list_owners_at_end(history)
    ]
    columns = ("group", "topic", "partition", "state", "owner", "since")
    return Table("Who owned what at the end", columns, rows[:_MOST_ROWS], "No partition had an owner.")


def _list_handoffs(history: History) -> Table:
    from lakemq.jobs.reports.history_report import list_handoffs

    rows = [
        [
            *list(row.values())[:4],
            row["to_member"] or "-",
            format_time(row["began_at"]),
            format_length(row["took_ms"]),
            row["reason"],
        ]
        for row in list_handoffs(history)[:_MOST_ROWS]
    ]
    columns = ("group", "topic", "partition", "from", "to", "began", "took", "reason")
    return Table("Handoffs, newest first", columns, rows, "No partition moved.")


def _list_changes(history: History) -> Table:
    from lakemq.jobs.reports.history_report import list_changes

    rows = [[format_time(row["changed_at"]), *list(row.values())[1:]] for row in list_changes(history)[:_MOST_ROWS]]
    columns = ("changed", "kind", "subject", "client")
    return Table("Administrative changes, newest first", columns, rows, "No client changed topics, groups or offsets.")


def _draw_rate(title: str, history: History, rates: Sequence[float]) -> Picture:
    labels = [from_millis(int(end_ms)) for end_ms in history.timeline.ends_ms]
    bars = [(f"{label:%H:%M:%S} UTC", rate) for label, rate in zip(labels, rates, strict=True)]
    return Picture(draw_bars(title, bars, "per second", are_rates=True))


# The tables of the namespace, and a box for read-only SQL over them.


EXAMPLE = "SELECT topic, partition, count(*) AS messages\nFROM log_committed\nGROUP BY topic, partition\nORDER BY 1, 2"


def read_tables(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the list of tables and views."""
    watermark, handles = take_snapshot(console.mq.namespace.store)
    rows = []
    for spec in TABLES:
        link = Link(spec.name, make_link("/sql", text=f"SELECT * FROM {spec.name} LIMIT 100"))
        try:
            handle = handles.get(spec.name) or console.mq.namespace.store.open(spec)
        except (OSError, NotATable, NewerTable):  # `inbox`, which others write too
            rows.append([link, spec.comment, "unreadable", "-", "-", "-"])
            continue
        files = handle.files()
        rows.append(
            [
                link,
                spec.comment,
                len(files),
                sum(file.record_count or 0 for file in files),
                format_size(sum(file.size_bytes for file in files)),
                handle.version,
            ]
        )
    views = [[Link(name, make_link("/sql", text=f"SELECT * FROM {name} LIMIT 100"))] for name in sorted(VIEWS)]
    live = [
        [Link(spec.name, make_link("/sql", text=f"SELECT * FROM {spec.name} LIMIT 100")), spec.comment]
        for spec in LIVE_TABLES
        if spec is not CUT_KEYS  # it reads messages without a bound
    ]
    parts: list[Part] = [
        Facts(
            "As of",
            [
                ("step", watermark.step),
                ("decided at", format_time(watermark.decided_at_ms)),
                ("leader", watermark.leader or "-"),
            ],
        ),
        Table("Tables", ("table", "holds", "files", "rows in files", "size", "version"), rows),
        Table("Live tables", ("table", "holds"), live, note="As of now: they are not stored."),
        Table(
            "Views", ("view",), views, note="A view answers a question over several tables. A link fills the SQL box."
        ),
    ]
    return Page("Tables", parts)


def read_sql_box(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the empty box, or one with a query that a link has filled in. Only the button runs it."""
    return Page(
        "SQL", [_make_box(console, read_text(inputs, "text", LONGEST_TEXT, EXAMPLE))], [Link("Tables", "/tables")]
    )


def run_sql_box(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the box with the result of its query. Raises InvalidRequest, NotPossible."""
    text = read_text(inputs, "text", LONGEST_TEXT)
    if not text.strip():
        raise BadInput("There is no statement to run.")
    result = console.run_sql(text)
    rows = [[_show_cell(value) for value in row] for row in result.rows]
    parts: list[Part] = [_make_box(console, text)]
    if result.is_cut:
        parts.append(Notice(f"The result has more rows. The first {console.query_limits.max_rows:,} are shown."))
    parts.append(Table("Result", result.columns, rows, "The result has no rows."))
    return Page("SQL", parts, [Link("Tables", "/tables")])


def _show_cell(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else format_cell(value)


def _make_box(console: Console, text: str) -> Form:
    limits = console.query_limits
    title = f"Spark SQL, read-only: at most {limits.max_rows:,} rows and {limits.timeout_s:g} s"
    return Form(title, "/sql", [Field("text", "query", text, rows=8)], "Run", "post")
