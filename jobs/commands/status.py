"""`lakemq status`: a live page in the terminal of what a namespace does; and `lakemq report`: what happened in it."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import connect, get_session, show
from lakemq.jobs.commands.shared.printing import show_activity
from lakemq.jobs.commands.shared.times import from_millis, parse_duration, parse_past_option, to_millis
from lakemq.jobs.output import Output
from lakemq.jobs.process.native_memory import collect_rarely

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.jobs.reports.history import History


_REFRESH_S = 1.0
_OUTLOOK_S = 10.0
"""Due messages and findings are read less often: a flood of delayed messages takes seconds to count."""

_FIGURES = "leader, leader_epoch, step, last_step_age_ms, steps_per_s, in_per_s, out_per_s"


def status(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once and end, which is the default if stdout is not a terminal.")
    ] = False,
) -> None:
    """Show what the namespace does, refreshed each second: leader, rates, disk, topics, groups, transactions, findings.

    in_per_s counts offsets that were appended since the last refresh. out_per_s counts offsets that groups committed or
    acknowledged over the last minute. Delayed messages that are due soon, dead letters, and the doctor's findings are
    read every ten seconds. The page needs no sequencer, and sends it no requests. Ctrl-C ends it.
    """
    live = not once and get_session().output is Output.table and sys.stdout.isatty()
    with collect_rarely(), connect() as mq:
        if live:
            with suppress(KeyboardInterrupt):
                _show_live(mq)
        else:
            _show_once(mq)


def _show_once(mq: Connection) -> None:
    from lakemq.jobs.status import OutlookReader, read_status, status_record, take_sample

    before, observer = take_sample(mq), mq.observer()
    outlook = OutlookReader(mq, observer).read()
    # Rates need a second between two samples; reading the outlook has taken a part of it.
    time.sleep(max(0.0, before.monotonic_s + _REFRESH_S - time.monotonic()))
    current = read_status(mq, observer, before, take_sample(mq))
    if get_session().output is not Output.table:
        show([status_record(current, outlook)], _FIGURES)
        return
    from rich.console import Console

    from lakemq.jobs.status_page import draw_status

    # In a pipe a line is as long as it needs to be, as with every other command.
    width = None if sys.stdout.isatty() else 1_000
    console = Console(width=width, no_color=not sys.stdout.isatty(), highlight=False)
    with console.capture() as captured:
        console.print(draw_status(current, outlook))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _show_live(mq: Connection) -> None:
    from rich.console import Console
    from rich.live import Live

    from lakemq.jobs.status import OutlookReader, read_status, take_sample
    from lakemq.jobs.status_page import draw_status

    # The outlook has an observer and a thread of its own: reading it takes long, and the page must not wait for it.
    reader, outlook, next_s = OutlookReader(mq, mq.observer()), None, time.monotonic() + _OUTLOOK_S
    observer, before = mq.observer(), take_sample(mq)
    with (
        ThreadPoolExecutor(1, "lakemq-outlook") as pool,
        Live(console=Console(highlight=False), screen=True, auto_refresh=False) as page,
    ):
        reading = pool.submit(reader.read)
        while True:
            time.sleep(_REFRESH_S)
            now = take_sample(mq)
            if reading.done():  # without one that can be read, the page shows the last
                outlook = outlook if reading.exception() else reading.result()
                if time.monotonic() >= next_s:
                    reading, next_s = pool.submit(reader.read), time.monotonic() + _OUTLOOK_S
            page.update(draw_status(read_status(mq, observer, before, now), outlook), refresh=True)
            before = now


# `lakemq report`: what happened between two times, as tables or as one page.


_DEFAULT_SINCE = "PT1H"


def report(
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
    throughput, steps and their time, lag of groups in messages and in time, lateness of delayed messages and owners
    over time, with their queries.

    Rates, steps, lag and lateness come from the table samples, which reaches back for sample.retention.ms; changes for
    change.retention.ms; owners and handoffs for group.history.ms. Needs the extra sql, and for a file also report.
    """
    until_ms = time.time_ns() // 1_000_000 if until is None else to_millis(parse_past_option(until, "--until"))
    since_ms = _parse_since(since, until_ms)
    if since_ms >= until_ms:
        raise typer.BadParameter("it must be before --until", param_hint="--since")
    from lakemq.jobs.reports.history import read_history

    with connect() as mq, show_activity("reading the tables") as tell:
        history = read_history(mq, since_ms, until_ms)
        if file is not None:
            tell("drawing")
            _write_page(history, mq.namespace.path, file)
    if file is None:
        _show_tables(history)
    else:
        made = {
            "file": str(file),
            "messages": history.message_count,
            "steps": history.step_count,
            "handoffs": history.handoffs.num_rows,
        }
        show([made], tuple(made))


def _show_tables(history: History) -> None:
    from lakemq.jobs.reports.history import list_tables

    tables, output = list_tables(history), get_session().output
    summary = {
        "since": from_millis(history.since_ms),
        "until": from_millis(history.until_ms),
        "messages": history.message_count,
        "steps": history.step_count,
    }
    if output is Output.json:
        show([{**summary, **{name: rows for name, _, rows in tables}}], ())
    elif output is Output.csv:
        _, columns, rows = tables[0]
        show(rows, columns)
    else:
        show([summary], tuple(summary))
        for _, columns, rows in tables:
            typer.echo()
            show(rows, columns)


def _parse_since(text: str, until_ms: int) -> int:
    if text.startswith("P"):
        try:
            return until_ms - round(parse_duration(text).total_seconds() * 1000)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--since") from None
    return to_millis(parse_past_option(text, "--since", from_millis(until_ms)))


def _write_page(history: History, path: str, file: Path) -> None:
    from lakemq.errors import InvalidRequest
    from lakemq.jobs.reports.history_report import write_history_report

    try:
        write_history_report(history, path, file)
    except OSError as error:
        raise InvalidRequest(f"The file cannot be written: {error.strerror}.", found=str(file)) from None
