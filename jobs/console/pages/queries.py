"""Pages that ask by SQL: the history, the tables, the query box; and what they show where there is no SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import LakeMQError, MissingExtra
from lakemq.jobs.commands.shared.times import parse_past_moment, to_millis
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import BadInput, read_number, read_text
from lakemq.jobs.console.console import Console, NotPossible, quote_sql
from lakemq.jobs.reports.history import read_history
from lakemq.jobs.reports.history_report import list_parts
from lakemq.tables.specs.groups import CUT_KEYS, LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta.store import NewerTable, NotATable
from lakemq.tables.views import VIEWS

if TYPE_CHECKING:
    from lakemq.tables.specs.spec import TableSpec


def draw_or_explain(title: str, draw: Callable[[], Sequence[ui.Part]]) -> list[ui.Part]:
    """Return parts that need SQL, or a sentence that says why they are not there."""
    try:
        return list(draw())
    except MissingExtra as error:
        return [ui.Notice(f"{title} needs SQL: {error.expected}.", title=title)]
    except (LakeMQError, NotPossible) as error:
        return [ui.Notice(f"{title} cannot be read now: {error}", "bad", title)]


# What happened before a time: rates, lag, owners, handoffs and changes, as `lakemq report` has them.


_MOST_MINUTES = 24 * 60


def read_history_page(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of the time that a visitor names; by default the last half hour."""
    text = read_text(inputs, "at", "")
    minutes = read_number(inputs, "minutes", 30, low=1, high=_MOST_MINUTES)
    until_ms = _read_until_ms(text)
    fields = [
        ui.Field("at", "until this time (UTC, such as 02:10 or 2026-01-31T02:10; empty: now)", text),
        ui.Field("minutes", "minutes before it", str(minutes)),
    ]
    parts: list[ui.Part] = [ui.Form("When", "/history", fields, "Show")]

    def draw() -> list[ui.Part]:
        return list_parts(read_history(console.mq, until_ms - 60_000 * minutes, until_ms, console.observer))

    return ui.Page("History", [*parts, *draw_or_explain("The history", draw)])


def _read_until_ms(text: str) -> int:
    now = datetime.now(UTC)
    try:
        return to_millis(parse_past_moment(text, now) if text else now)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"The input at is not a time: {error}.") from None


# What was changed, by whom, when.


_CHANGES = """\
SELECT changed_at, kind, subject, client, left(decision, 500) AS decision FROM admin_changes
WHERE contains(lower(concat(CAST(changed_at AS STRING), ' ', kind, ' ', subject, ' ', client)), {text})
ORDER BY step DESC, position DESC LIMIT 200"""


def read_changes(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the newest administrative changes, those of this console and all others."""
    text = read_text(inputs, "text", "")
    form = ui.make_filter("/changes", "text in day (2026-01-31), kind, subject or client", text)
    columns = "changed_at, kind, subject, client, decision"

    def draw() -> list[ui.Part]:
        rows = console.read_rows(_CHANGES.format(text=quote_sql(text.lower())))
        records = [dict(zip(columns.split(", "), row, strict=True)) for row in rows]
        note = (
            "A client is USER-HOST-PROCESS-ID; of a console it is console-NAME-ADDRESS-PROCESS-ID, with the name of the"
            " token, or visitor. At most 200 are shown, as old as change.retention.ms allows: 90 days by default."
        )
        return [ui.list_records("Changes, newest first", records, columns, note=note)]

    return ui.Page("Changes", [form, *draw_or_explain("The list of changes", draw)])


# The tables of the namespace, and a box for read-only SQL over them.


EXAMPLE = "SELECT topic, partition, count(*) AS messages\nFROM log_committed\nGROUP BY topic, partition\nORDER BY 1, 2"


def read_tables(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the list of tables and views."""
    watermark, handles = take_snapshot(console.mq.namespace.store)

    def measure(spec: TableSpec) -> dict[str, Any]:
        row = {"table": spec.name, "holds": spec.comment}
        try:
            handle = handles.get(spec.name) or console.mq.namespace.store.open(spec)
        except (OSError, NotATable, NewerTable):  # `inbox`, which others write too
            return {**row, "files": "unreadable"}
        files = handle.files()
        row_count, size_bytes = sum(file.record_count or 0 for file in files), sum(file.size_bytes for file in files)
        return {**row, "files": len(files), "rows": row_count, "size_bytes": size_bytes, "version": handle.version}

    def link(row: Mapping[str, Any]) -> ui.Link:
        return ui.Link(row["table"], ui.make_link("/sql", text=f"SELECT * FROM {row['table']} LIMIT 100"))

    # `cut_keys` reads messages without a bound
    live = [{"table": spec.name, "holds": spec.comment} for spec in LIVE_TABLES if spec is not CUT_KEYS]
    views = [{"table": name} for name in sorted(VIEWS)]
    on_views = "A view answers a question over several tables. A link fills the SQL box."
    on_live = "As of now: they are not stored."
    parts: list[ui.Part] = [
        ui.list_facts("As of", watermark, "step, decided_at_ms, leader"),
        ui.list_records("Tables", map(measure, TABLES), "table, holds, files, rows, size_bytes, version", table=link),
        ui.list_records("Live tables", live, "table, holds", note=on_live, table=link),
        ui.list_records("Views", views, "table", note=on_views, table=link),
    ]
    return ui.Page("Tables", parts)


def read_sql_box(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the empty box, or one with a query that a link has filled in. Only the button runs it."""
    return ui.Page("SQL", [_make_box(console, read_text(inputs, "text", EXAMPLE))], [ui.Link("Tables", "/tables")])


def run_sql_box(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the box with the result of its query. Raises InvalidRequest, NotPossible."""
    text = read_text(inputs, "text")
    if not text.strip():
        raise BadInput("There is no statement to run.")
    result = console.run_sql(text)
    rows = [[_show_cell(value) for value in row] for row in result.rows]
    parts: list[ui.Part] = [_make_box(console, text)]
    if result.is_cut:
        parts.append(ui.Notice(f"The result has more rows. The first {console.query_limits.max_rows:,} are shown."))
    parts.append(ui.Table("Result", result.columns, rows, "The result has no rows."))
    return ui.Page("SQL", parts, [ui.Link("Tables", "/tables")])


def _show_cell(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else ui.format_cell(value)


def _make_box(console: Console, text: str) -> ui.Form:
    limits = console.query_limits
    title = f"Spark SQL, read-only: at most {limits.max_rows:,} rows and {limits.timeout_s:g} s"
    return ui.Form(title, "/sql", [ui.Field("text", "query", text, rows=8)], "Run", "post")
