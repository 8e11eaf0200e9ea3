"""`lakemq init`, `serve`, `step`, `catalog`, `doctor`, `audit`: a namespace as a whole."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from lakemq.jobs.commands.context import session_of
from lakemq.jobs.commands.times import AsOf, parse_as_of
from lakemq.jobs.output import Output, note, show


def add_to(app: typer.Typer) -> None:
    for command in (init, serve, step, catalog, doctor, audit):
        app.command()(command)


def init(
    ctx: typer.Context,
    shared_with_group: Annotated[
        bool,
        typer.Option(
            "--shared-with-group", help="All in it is for the folder's group to read and write, whatever umask."
        ),
    ] = False,
) -> None:
    """Make a namespace at --path: all tables, empty. One that is there already keeps all it holds."""
    session = session_of(ctx)
    with session.connect(create=True, shared_with_group=shared_with_group) as mq:
        made = {"path": mq.namespace.path, "topics": len(mq.topics.list())}
    show([made], session.output, tuple(made))


def serve(ctx: typer.Context) -> None:
    """Run a sequencer until SIGTERM or SIGINT; then finish the step and hand over the lease.

    While another one leads, this one stands by and takes over when the other stops or dies.
    """
    from lakemq.jobs.logs import told_on_stderr
    from lakemq.jobs.serve import serve_until_stopped

    with session_of(ctx).connect() as mq, told_on_stderr(logging.INFO):
        serve_until_stopped(mq)


def step(
    ctx: typer.Context,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Go on until no letter waits and nothing is overdue.")
    ] = False,
    wait_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="How long to wait while another sequencer leads.")
    ] = 0,
) -> None:
    """Decide what waits, project it, and end: for schedules, in place of `serve`.

    Refused with NOT_LEADER while another sequencer leads.
    """
    from lakemq.jobs.step import run_steps

    session = session_of(ctx)
    with session.connect() as mq:
        letters = run_steps(mq, until_idle, wait_ms)
    show([{"letters": letters}], session.output, ("letters",))


def catalog(ctx: typer.Context, as_of: AsOf = None) -> None:
    """Print the SQL that registers all tables and views with Spark.

    lakemq catalog > catalog.sql, then: spark-sql -i catalog.sql. As of a step or a time they are in a database of
    their own.
    """
    from lakemq.engine.namespace.snapshot import moment_of
    from lakemq.tables.storage.catalog import catalog_sql

    moment = parse_as_of(as_of)
    with session_of(ctx).connect() as mq:
        store = mq.namespace.store
        typer.echo(catalog_sql(mq.namespace.path, store, moment_of(store, moment)), nl=False)


def doctor(
    ctx: typer.Context,
    spark: Annotated[
        bool | None,
        typer.Option("--spark/--no-spark", help="Whether to check what only Spark needs; else where it is there."),
    ] = None,
) -> None:
    """Check this machine and, with --path, the namespace; say how to mend what is found. Exit code 1: something is."""
    from lakemq.jobs.doctor.examination import examine

    session = session_of(ctx)
    spark = find_spec("pyspark") is not None if spark is None else spark
    findings = list(examine(session.path, session.conf, session.storage_options, spark))
    records = [
        {"check": f.check, "state": "ok" if f.ok else "FINDING", "found": f.found, "mend": f.mend} for f in findings
    ]
    show(records, session.output, ("check", "state", "found", "mend"))
    count = sum(not f.ok for f in findings)
    if count:
        if session.output is Output.table:
            note(f"{count} finding{'s' if count > 1 else ''}")
        raise typer.Exit(1)


def audit(
    ctx: typer.Context,
    docs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write Great Expectations' Data Docs (HTML) there.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="What is only a warning counts, too.")] = False,
) -> None:
    """Check that the namespace holds what it must: dense offsets, rows where they belong, nothing lost or doubled.

    As of the last projection, while a sequencer serves or not. Each rule is an expectation of Great Expectations. Exit
    code 1: one does not hold.
    """
    from lakemq.jobs.audit import audit as audit_of

    session = session_of(ctx)
    with session.connect() as mq:
        found = audit_of(mq.namespace, docs)
    records = [
        {
            "rule": one.rule.says,
            "state": "ok" if not one.broken else "warning" if one.rule.is_warning else "BROKEN",
            "table": one.rule.table,
            "measured": one.rule.column,
            "rows": one.rows,
            "broken": one.broken,
            "where": ", ".join(one.where),
        }
        for one in found.outcomes
    ]
    show(records, session.output, tuple(records[0]))
    if session.output is Output.table:
        since = "nothing was replayed" if found.after_step is None else f"replayed from step {found.after_step} on"
        note(f"as of step {found.step}; {since}" + (f"; {docs / 'index.html'}" if docs else ""))
    if not found.holds(strict):
        raise typer.Exit(1)
