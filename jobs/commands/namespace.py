"""Commands of a whole namespace: `init`, `serve`, `step`, `catalog`, `doctor`, `fsck`, `backup`, `restore`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import Session, connect, get_session, show
from lakemq.jobs.commands.shared.printing import show_activity
from lakemq.jobs.commands.shared.times import AsOf, parse_as_of, to_record
from lakemq.jobs.output import Output, note
from lakemq.jobs.process.exits import Exit
from lakemq.jobs.process.native_memory import collect_rarely

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


def init(
    shared_with_group: Annotated[
        bool,
        typer.Option(
            "--shared-with-group", help="Let the folder's group read and write everything in it, whatever the umask."
        ),
    ] = False,
) -> None:
    """Make a namespace at --path: all tables, empty. One that is there already keeps all it holds."""
    with connect(create=True, shared_with_group=shared_with_group) as mq:
        made = {"path": mq.namespace.path, "topics": len(mq.topics.list())}
    show([made], tuple(made))


def serve(
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=HIGHEST_PORT,
            metavar="PORT",
            help="Answer scrapes of Prometheus at this port; 0 takes a free one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address on which metrics are served; 0.0.0.0: on all.")
    ] = "127.0.0.1",
    with_console: Annotated[
        bool, typer.Option("--console", help="Also show the namespace in a browser, as `lakemq console` does.")
    ] = False,
    console_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address on which the console listens.")
    ] = "127.0.0.1",
    console_port: Annotated[
        int, typer.Option(min=0, max=HIGHEST_PORT, metavar="PORT", help="The port of the console; 0 takes a free one.")
    ] = 8080,
    token_file: TokenFile = None,
    allow_changes: AllowChanges = False,
) -> None:
    """Run a sequencer until SIGTERM or SIGINT; then finish the step and hand over the lease.

    While another one leads, this one stands by and takes over when the other stops or dies. --metrics-port needs the
    extra `metrics`, --console the extra `console`.
    """
    from lakemq.jobs.process.native_memory import choose_allocator
    from lakemq.jobs.process.streams import log_to_stderr
    from lakemq.jobs.serve import serve_until_signal

    choose_allocator()
    settings = None
    if metrics_port is not None:
        from lakemq.jobs.metrics.server import serve_metrics

    if with_console:
        import lakemq.jobs.console.app  # noqa: F401  # a missing extra is reported before the sequencer leads
        from lakemq.jobs.console.console import make_settings

        settings = make_settings(console_host, console_port, token_file, allow_changes)
    session = get_session()
    with connect() as mq, log_to_stderr(logging.INFO):

        @contextmanager
        def run_beside(serving: Serving) -> Iterator[None]:
            with ExitStack() as stack:
                if metrics_port is not None:
                    stack.enter_context(serve_metrics(mq, metrics_host, metrics_port, serving))
                if settings is not None:
                    stack.enter_context(open_consoles([session], [mq], settings, serving))
                yield

        serve_until_signal(mq, beside=run_beside)


def step(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Go on until no letter waits and nothing is overdue.")
    ] = False,
    wait_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="MS",
            help="How long to wait while another sequencer leads. Left out: until it decides a request or renews its "
            "lease, at most lease.ms.",
        ),
    ] = None,
) -> None:
    """Decide what waits, project it, and end: for schedules, in place of `serve`.

    Refused with NOT_LEADER while another sequencer leads. The lease of one that was killed is taken over.
    """
    from lakemq.jobs.step import run_steps

    with connect() as mq:
        letters = run_steps(mq, until_idle, wait_ms)
    show([{"letters": letters}], ("letters",))


def catalog(as_of: AsOf = None) -> None:
    """Print the SQL that registers all tables and views with Spark.

    lakemq catalog > catalog.sql, then: spark-sql -i catalog.sql. As of a step or a time they are in a database of
    their own.
    """
    from lakemq.engine.namespace.step_reader import find_moment
    from lakemq.tables.storage.delta.catalog import READ_OLD_VERSIONS, catalog_sql, database_name

    session, moment = get_session(), parse_as_of(as_of)
    with connect() as mq:
        store, path = mq.namespace.store, mq.namespace.path
        at = find_moment(store, moment)
        script = catalog_sql(path, store, at) if at is None else READ_OLD_VERSIONS + catalog_sql(path, store, at)
    if session.output is Output.table:
        typer.echo(script, nl=False)
    else:
        show([{"database": database_name(path, at), "sql": script}], ("database", "sql"))


def doctor(
    spark: Annotated[
        bool | None,
        typer.Option("--spark/--no-spark", help="Also check what only Spark needs. Default: if PySpark is installed."),
    ] = None,
) -> None:
    """Check this machine and, with --path, the namespace, and say how to fix problems. Exit code 1: a check failed."""
    from lakemq.engine.namespace.extras import hide_pandas

    session = get_session()
    spark = find_spec("pyspark") is not None if spark is None else spark
    with hide_pandas(), collect_rarely():
        from lakemq.jobs.doctor.examination import examine

        with show_activity("checking") as tell:
            findings = []
            for finding in examine(session.path, session.conf, session.storage_options, spark):
                findings.append(finding)
                tell(f"checked {finding.check}")
    if _show_findings(findings):
        raise typer.Exit(1)


def _show_findings(findings: Sequence[Finding]) -> int:
    """Print the findings, and return how many are not ok."""
    session = get_session()
    show([finding.to_record(session.path) for finding in findings], ("check", "state", "found", "advice"))
    count = sum(not f.ok for f in findings)
    if count and session.output is Output.table:
        note(f"{count} finding{'s' if count > 1 else ''}")
    return count


def fsck(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Write again what tables have lost. Refused while a sequencer leads."),
    ] = False,
) -> None:
    """Name damage: tables unlike the journal, and files, log entries or rows that are missing or changed.

    Without --repair it changes nothing, whether a sequencer serves or not. If anything is beyond repair, --repair
    changes nothing. Exit code 0: nothing is damaged; 6: all damage was repaired; 1: damage is there. Needs the extra
    sql.
    """
    from lakemq.engine.namespace.extras import hide_pandas
    from lakemq.errors import LakeMQError

    with hide_pandas(), collect_rarely(), connect() as mq, show_activity("checking") as tell:
        from lakemq.jobs.doctor.fsck import find_damage

        findings, plan = find_damage(mq, tell)
        written = list[str]()
        if repair and plan.damages:
            try:
                written = plan.write()
            except LakeMQError:
                _show_findings(findings)
                raise
            note(f"repaired: {', '.join(written)}")
            findings, _ = find_damage(mq, tell)
    if _show_findings(findings):
        raise typer.Exit(Exit.FAILED)
    if written:
        raise typer.Exit(Exit.REPAIRED)


_COPIED = ("step", "decided_at", "object_count", "copied_count", "copied_bytes")


def backup(
    destination: Annotated[str, typer.Argument(metavar="DEST", help="A folder or URI for backups of this namespace.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Then read all objects in DEST, and compare their hashes.")
    ] = False,
) -> None:
    """Copy the namespace as of its newest step, while publishers and sequencers go on.

    What an earlier backup in DEST has is not copied again. Each backup can be restored. DEST is in the same kind of
    store, or reached with the same storage options.
    """
    from lakemq.engine.client.backups import take_backup, verify_backups
    from lakemq.tables.storage.object_stores.files import open_files

    session = get_session()
    with connect() as mq:
        files = open_files(destination, session.storage_options)
        done = take_backup(mq.namespace, files)
        if verify:
            note(f"{verify_backups(files)} objects in {destination} are as they were copied.")
    show([to_record(done)], _COPIED)


def restore(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The folder or URI that `lakemq backup` has written.")],
    as_of: Annotated[
        str | None,
        typer.Option(metavar="STEP|TIME", help="The last step to restore, or its time (ISO 8601)."),
    ] = None,
) -> None:
    """Make a namespace at --path from a backup. The path must be empty. If it is killed, start it again.

    The copy has the id of the original. Never let programs use both.
    """
    from lakemq.engine.client.backups import restore_backup
    from lakemq.tables.storage.object_stores.files import open_files

    session = get_session()
    options = session.storage_options
    done = restore_backup(open_files(source, options), session.required_path(), options, parse_as_of(as_of))
    show([to_record(done)], _COPIED)


# `lakemq console`: pages about the namespace in a browser; and the same beside `lakemq serve`.


def console(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="More namespaces. The pages of each are below its name, with links."),
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

    session = get_session()
    settings = make_settings(host, port, token_file, allow_changes)
    places = {
        path.rstrip("/") if "://" in path else os.path.realpath(path): path
        for path in [session.path, *(paths or ())]
        if path
    }
    with ExitStack() as stack:
        sessions = [replace(session, path=path) for path in places.values()] or [session]
        connections = [stack.enter_context(of_path.connect()) for of_path in sessions]
        stack.enter_context(log_to_stderr(logging.INFO))
        stop = stack.enter_context(catch_stop_signals())
        address = stack.enter_context(open_consoles(sessions, connections, settings))
        note(f"The console is at {address}. Stop it with Ctrl-C.")
        stop.wait()


def open_consoles(
    sessions: Sequence[Session],
    connections: Sequence[Connection],
    settings: ConsoleSettings,
    serving: Serving | None = None,
) -> AbstractContextManager[str]:
    """Return the consoles for this call of the command, as a context manager that yields their address."""
    from lakemq.jobs.console.app import serve_consoles
    from lakemq.jobs.doctor.examination import examine

    def run_checks(session: Session) -> Sequence[Finding]:
        spark = find_spec("pyspark") is not None
        return list(examine(session.path, session.conf, session.storage_options, spark))

    checks = [partial(run_checks, session) for session in sessions]
    return serve_consoles([*zip(connections, checks, strict=True)], settings, serving)
