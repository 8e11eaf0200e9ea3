"""`lakemq console`: pages about the namespace in a browser; and the same beside `lakemq serve`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import Session, get_session
from lakemq.jobs.output import note

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving
    from lakemq.jobs.console.console import ConsoleSettings
    from lakemq.jobs.doctor.namespace import Finding

HIGHEST_PORT = 65_535

TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the token that visitors must show; without it, $LAKEMQ_CONSOLE_TOKEN. Needed unless --host is"
        " this machine's alone.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="Let visitors reset offsets, send dead letters back, cancel delayed messages, abort transactions, remove"
        " members, publish messages, and create, change and delete topics.",
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command()(console)


def console(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="More namespaces. Each has a console at the next port, with links."),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=HIGHEST_PORT, metavar="PORT", help="The port; 0 takes a free one.")
    ] = 8080,
    token_file: TokenFile = None,
    allow_changes: AllowChanges = False,
) -> None:
    """Show the namespace in a browser until SIGTERM or SIGINT. It reads, and needs no sequencer to do so.

    Needs the extra `console`, and for SQL and charts the extra `sql`.
    """
    from lakemq.jobs.console.console import make_settings
    from lakemq.jobs.process.streams import log_to_stderr
    from lakemq.jobs.serve import catch_stop_signals

    session = get_session(ctx)
    settings = make_settings(host, port, token_file, allow_changes)
    with ExitStack() as stack:
        sessions = [replace(session, path=path) for path in dict.fromkeys([session.path, *(paths or ())]) if path]
        connections = [stack.enter_context(of_path.connect()) for of_path in sessions or [session]]
        stack.enter_context(log_to_stderr(logging.INFO))
        stop = stack.enter_context(catch_stop_signals())
        for number, (of_path, mq) in enumerate(zip(sessions, connections, strict=True)):
            own = replace(settings, port=port + number if port else 0)
            address = stack.enter_context(open_console_of(of_path, mq, own))
            note(f"The console is at {address}. Stop it with Ctrl-C.")
        stop.wait()


def open_console_of(
    session: Session, mq: Connection, settings: ConsoleSettings, serving: Serving | None = None
) -> AbstractContextManager[str]:
    """Return a console for this call of the command, as a context manager that yields its address."""
    from importlib.util import find_spec

    from lakemq.jobs.console.app import serve_console
    from lakemq.jobs.doctor.examination import examine

    def run_checks() -> Sequence[Finding]:
        spark = find_spec("pyspark") is not None
        return list(examine(session.path, session.conf, session.storage_options, spark))

    return serve_console(mq, settings, run_checks, serving)
