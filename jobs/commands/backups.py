"""`lakemq backup` and `restore`: copy a namespace while it is used, and make a namespace from such a copy."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.commands.shared.times import parse_as_of, to_record
from lakemq.jobs.output import note, show

_DONE = ("step", "decided_at", "object_count", "copied_count", "copied_bytes")


def add_to(app: typer.Typer) -> None:
    for command in (backup, restore):
        app.command()(command)


def backup(
    ctx: typer.Context,
    destination: Annotated[str, typer.Argument(metavar="DEST", help="A folder or URI for backups of this namespace.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Then read all objects in DEST, and compare their hashes.")
    ] = False,
) -> None:
    """Copy the namespace as of its newest step, while publishers and sequencers go on.

    What an earlier backup in DEST has is not copied again. Each backup can be restored. DEST is in the same kind of
    store, or reached with the same storage options.
    """
    from lakemq.engine.namespace.backup import take_backup, verify_backups
    from lakemq.tables.storage.object_stores.files import open_files

    session = get_session(ctx)
    with session.connect() as mq:
        files = open_files(destination, session.storage_options)
        done = take_backup(mq.namespace, files)
        if verify:
            note(f"{verify_backups(files)} objects in {destination} are as they were copied.")
    show([to_record(done)], session.output, _DONE)


def restore(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The folder or URI that `lakemq backup` has written.")],
    as_of: Annotated[
        str | None,
        typer.Option(metavar="STEP|TIME", help="The last step to restore, or its time (ISO 8601)."),
    ] = None,
) -> None:
    """Make a namespace at --path from a backup. The path must be empty. If it is killed, start it again.

    The copy has the id of the original. Never let programs use both.
    """
    from lakemq.engine.namespace.backup import restore_backup
    from lakemq.tables.storage.object_stores.files import open_files

    session = get_session(ctx)
    options = session.storage_options
    done = restore_backup(open_files(source, options), session.required_path(), options, parse_as_of(as_of))
    show([to_record(done)], session.output, _DONE)
