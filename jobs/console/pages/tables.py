"""The tables of the namespace, and a box for read-only SQL over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemq.engine.namespace.loading.snapshot import take_snapshot
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.inputs import LONGEST_TEXT, BadInput, read_text
from lakemq.jobs.console.parts import Facts, Field, Form, Link, Notice, Page, Part, Table
from lakemq.jobs.console.rendering import format_cell, format_time, make_link
from lakemq.jobs.output import format_size
from lakemq.tables.specs.live import CUT_KEYS, LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.views import VIEWS

EXAMPLE = "SELECT topic, partition, count(*) AS messages\nFROM log_committed\nGROUP BY topic, partition\nORDER BY 1, 2"


def read_tables(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the list of tables and views."""
    watermark, handles = take_snapshot(console.mq.namespace.store)
    rows = []
    for spec in TABLES:
        files = handles[spec.name].files()
        rows.append(
            [
                Link(spec.name, make_link("/sql", text=f"SELECT * FROM {spec.name} LIMIT 100")),
                spec.comment,
                len(files),
                sum(file.record_count or 0 for file in files),
                format_size(sum(file.size_bytes for file in files)),
                handles[spec.name].version,
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
