"""Confirmation of commands that delete something for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lakemq.jobs.output import note, one_line
from lakemq.jobs.process.exits import Exit

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required where stdin is not a terminal.")
]

ASKS = "Asks for confirmation first, unless --yes is given."


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr whether to go on, unless `yes` is given.

    Ask before a sequencer starts: nobody should hold a lease while a person thinks.

    Raises:
        typer.Exit: Nothing was changed. Code 2: stdin is not a terminal, so nobody can be asked. Code 1: the
            answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        note(
            f"CONFIRMATION_REQUIRED: {question} This cannot be undone, and stdin is not a terminal, so nobody can be"
            " asked. Nothing was changed. Give --yes to do it."
        )
        raise typer.Exit(Exit.USAGE)
    # not typer.confirm: it prints a blank to stdout, among the data
    print(f"{one_line(question)} This cannot be undone. [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("Nothing was changed.")
        raise typer.Exit(Exit.FAILED)
