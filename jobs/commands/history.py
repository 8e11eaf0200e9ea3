"""`lakemq report`: what happened between two times, as one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.commands.shared.progress import show_activity
from lakemq.jobs.commands.shared.times import from_millis, parse_duration, parse_past_option, to_millis
from lakemq.jobs.output import show

_DEFAULT_SINCE = "PT1H"


def add_to(app: typer.Typer) -> None:
    app.command()(report)


def report(
    ctx: typer.Context,
    file: Annotated[Path, typer.Option("-o", "--file", metavar="FILE", help="The HTML file to write.")],
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
    """Write what happened between two times as one HTML file, which needs no network.

    It shows throughput, latency of steps, lag of groups, lateness of delayed messages, who owned which partition, and
    hand-offs, each with its query. Rates, latency and lag come from the journal, which reaches back for
    journal.retention.ms (an hour by default); the rest for group.history.ms and delay.history.ms. Needs the extras
    report and sql.
    """
    until_ms = _parse_until(until)
    since_ms = _parse_since(since, until_ms)
    if since_ms >= until_ms:
        raise typer.BadParameter("it must be before --until", param_hint="--since")
    from lakemq.jobs.reports.history import read_history
    from lakemq.jobs.reports.history_report import build_history_report

    session = get_session(ctx)
    with session.connect() as mq, show_activity("reading the journal and the tables") as tell:
        history = read_history(mq, since_ms, until_ms)
        tell("drawing")
        _write(build_history_report(history, mq.namespace.path), file)
    made = {
        "file": str(file),
        "messages": history.message_count,
        "steps": history.step_count,
        "handoffs": history.handoffs.num_rows,
    }
    show([made], session.output, tuple(made))


def _parse_until(text: str | None) -> int:
    return time.time_ns() // 1_000_000 if text is None else to_millis(parse_past_option(text, "--until"))


def _parse_since(text: str, until_ms: int) -> int:
    if text.startswith("P"):
        try:
            return until_ms - round(parse_duration(text).total_seconds() * 1000)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--since") from None
    return to_millis(parse_past_option(text, "--since", from_millis(until_ms)))


def _write(page: object, file: Path) -> None:
    from lakemq.errors import InvalidRequest
    from lakemq.jobs.reports.report import Report

    assert isinstance(page, Report)
    try:
        page.write(file)
    except OSError as error:
        raise InvalidRequest(f"The file cannot be written: {error.strerror}.", found=str(file)) from None
