"""`lakemq report`: what happened between two times, as tables or as one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.commands.shared.progress import show_activity
from lakemq.jobs.commands.shared.times import from_millis, parse_duration, parse_past_option, to_millis
from lakemq.jobs.output import Output, note, show

if TYPE_CHECKING:
    from lakemq.jobs.reports.history import History

_DEFAULT_SINCE = "PT1H"


def add_to(app: typer.Typer) -> None:
    app.command()(report)


def report(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--file", metavar="FILE", help="Write this HTML file. Default: print tables."),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="From here on: ISO 8601 (by default UTC), a time of day in UTC such as 02:10 (the last one before "
            "--until), milliseconds since 1970, or a duration before --until, such as PT30M.",
        ),
    ] = _DEFAULT_SINCE,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Until then: a time as for --since; a time of day is the last one. Default: now."
        ),
    ] = None,
) -> None:
    """Show what happened between two times: as tables here, or as one HTML file, which needs no network.

    The tables show lag and rates of groups, who owned which partition at the end, what came into topics, handoffs, and
    who changed topics and groups. JSON is one object with all of them, CSV has the groups. The file also draws
    throughput, latency of steps, lag of groups, lateness of delayed messages and owners over time, each with its query.

    Rates, latency, lag and changes come from the journal, which reaches back for journal.retention.ms (an hour by
    default); the rest for group.history.ms and delay.history.ms. Needs the extra sql, and for a file also report.
    """
    until_ms = _parse_until(until)
    since_ms = _parse_since(since, until_ms)
    if since_ms >= until_ms:
        raise typer.BadParameter("it must be before --until", param_hint="--since")
    from lakemq.jobs.reports.history import read_history

    session = get_session(ctx)
    with session.connect() as mq, show_activity("reading the journal and the tables") as tell:
        history = read_history(mq, since_ms, until_ms)
        if file is not None:
            tell("drawing")
            _write_page(history, mq.namespace.path, file)
    if file is None:
        _show_tables(history, session.output)
    else:
        made = {
            "file": str(file),
            "messages": history.message_count,
            "steps": history.step_count,
            "handoffs": history.handoffs.num_rows,
        }
        show([made], session.output, tuple(made))
    if not history.is_in_journal:
        note("rates and lag are known only as far back as the journal goes; journal.retention.ms keeps more")


def _show_tables(history: History, output: Output) -> None:
    from lakemq.jobs.reports.history_tables import list_tables

    timeline, tables = history.timeline, list_tables(history)
    summary = {
        "since": from_millis(timeline.since_ms),
        "until": from_millis(timeline.until_ms),
        "messages": history.message_count,
        "steps": history.step_count,
    }
    if output is Output.json:
        show([{**summary, **{name: rows for name, _, rows in tables}}], output, ())
    elif output is Output.csv:
        _, columns, rows = tables[0]
        show(rows, output, columns)
    else:
        show([summary], output, tuple(summary))
        for _, columns, rows in tables:
            typer.echo()
            show(rows, output, columns)


def _parse_until(text: str | None) -> int:
    return time.time_ns() // 1_000_000 if text is None else to_millis(parse_past_option(text, "--until"))


def _parse_since(text: str, until_ms: int) -> int:
    if text.startswith("P"):
        try:
            return until_ms - round(parse_duration(text).total_seconds() * 1000)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--since") from None
    return to_millis(parse_past_option(text, "--since", from_millis(until_ms)))


def _write_page(history: History, path: str, file: Path) -> None:
    from lakemq.errors import InvalidRequest
    from lakemq.jobs.reports.history_report import build_history_report

    page = build_history_report(history, path)
    try:
        page.write(file)
    except OSError as error:
        raise InvalidRequest(f"The file cannot be written: {error.strerror}.", found=str(file)) from None
