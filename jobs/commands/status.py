"""`lakemq status`: a live page in the terminal of what a namespace does."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.output import Output, note, show
from lakemq.jobs.process.collection import collect_rarely

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.jobs.state.status import Outlook

_REFRESH_S = 1.0
_OUTLOOK_S = 10.0
"""Due messages and findings are read less often: a flood of delayed messages takes seconds to count."""

_FIGURES = (
    "leader",
    "leader_epoch",
    "step",
    "last_step_age_ms",
    "steps_per_s",
    "in_per_s",
    "out_per_s",
)


def add_to(app: typer.Typer) -> None:
    app.command()(status)


def status(
    ctx: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once and end, which is the default if stdout is not a terminal.")
    ] = False,
) -> None:
    """Show what the namespace does, refreshed each second: leader, rates, disk, topics, groups, transactions, findings.

    in_per_s counts offsets that were appended since the last refresh. out_per_s counts offsets that groups committed or
    acknowledged over the last minute. Delayed messages that are due soon, dead letters, and the doctor's findings are
    read every ten seconds. The page needs no sequencer, and sends it no requests. Ctrl-C ends it.
    """
    session = get_session(ctx)
    live = not once and session.output is Output.table and sys.stdout.isatty()
    with collect_rarely(), session.connect() as mq:
        if live:
            with suppress(KeyboardInterrupt):
                _show_live(mq)
        else:
            _show_once(mq, session.output)


def _show_once(mq: Connection, output: Output) -> None:
    from lakemq.jobs.state.status import OutlookReader, read_status, status_record, take_sample

    before, observer = take_sample(mq), mq.observer()
    outlook = OutlookReader(mq, observer).read()
    # Rates need a second between two samples; reading the outlook has taken a part of it.
    time.sleep(max(0.0, before.monotonic_s + _REFRESH_S - time.monotonic()))
    current = read_status(mq, observer, before, take_sample(mq))
    if output is not Output.table:
        show([status_record(current, outlook)], output, _FIGURES)
        return
    from rich.console import Console

    from lakemq.jobs.state.status_page import draw_status

    # In a pipe a line is as long as it needs to be, as with every other command.
    width = None if sys.stdout.isatty() else 1_000
    console = Console(width=width, no_color=not sys.stdout.isatty(), highlight=False)
    with console.capture() as captured:
        console.print(draw_status(current, outlook))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _show_live(mq: Connection) -> None:
    from rich.console import Console
    from rich.live import Live

    from lakemq.jobs.state.status import read_status, take_sample
    from lakemq.jobs.state.status_page import draw_status

    # The watcher has an observer of its own: its look takes long, and the page must not wait for it.
    watcher, observer, before = _OutlookWatcher(mq), mq.observer(), take_sample(mq)
    try:
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as page:
            while True:
                time.sleep(_REFRESH_S)
                now = take_sample(mq)
                status = read_status(mq, observer, before, now)
                page.update(draw_status(status, watcher.outlook), refresh=True)
                before = now
    finally:
        watcher.stop()


class _OutlookWatcher:
    """Reads the outlook in a thread of its own, so that the page is refreshed meanwhile."""

    def __init__(self, mq: Connection) -> None:
        self.outlook: Outlook | None = None
        self._mq = mq
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakemq-outlook", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from lakemq.jobs.state.status import OutlookReader

        reader = OutlookReader(self._mq, self._mq.observer())
        while not self._stopped.is_set():
            try:
                self.outlook = reader.read()
            except Exception as error:  # the page itself meets the same error, or can do without
                note(f"Delayed messages and findings cannot be read: {error}")
                return
            self._stopped.wait(_OUTLOOK_S)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
