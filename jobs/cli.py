"""`lakemq`, the command: global options, groups of commands, and what becomes of an error.

Exit codes are those of `exits`; what is refused or fails is one line `NAME: message` on stderr. A stack trace is shown
only with LAKEMQ_TRACE=1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lakemq.jobs import interrupts
from lakemq.jobs.commands import (
    consume,
    dead_letters,
    delayed,
    groups,
    messages,
    namespace,
    publish,
    query,
    topics,
    transactions,
)
from lakemq.jobs.commands.context import Session
from lakemq.jobs.entry import PATH_VARIABLE, storage_options
from lakemq.jobs.exits import all_codes, exit_of, told
from lakemq.jobs.logs import TRACE_VARIABLE, told_on_stderr
from lakemq.jobs.output import Output, one_line

_GLOBAL = ("--path", "--conf", "--storage-option", "--output")

_UsageError: Any = typer.BadParameter.__base__
"""What wrong usage is raised as; typer has no public name for it."""


class _Commands(TyperGroup):
    """The commands, with the global options allowed anywhere on the line, and errors told in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _ending():  # help and the version are printed here
            return super().parse_args(ctx, hoisted(args))

    def invoke(self, ctx: Any) -> Any:
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    """What was printed is out at its end. Raises typer.Exit for what went wrong, once that is told."""
    try:
        with told_on_stderr():
            try:
                yield
            except typer.Exit:
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except (typer.Exit, typer.Abort, _UsageError):
        raise
    except BrokenPipeError:
        _drop_what_is_left()
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except BaseException as error:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_what_is_left()
        # whatever a library made of a signal, it is one
        number = interrupts.received() or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
        if number is not None:
            typer.echo(f"INTERRUPTED: by {signal.Signals(number).name}", err=True)
            raise typer.Exit(128 + number) from None
        if not isinstance(error, Exception) or os.environ.get(TRACE_VARIABLE):
            raise
        line = one_line(told(error))
        typer.echo(line, err=True)
        raise typer.Exit(exit_of(line)) from None


def _drop_what_is_left() -> None:
    """Nobody takes our output: what is still buffered must not raise again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def hoisted(args: Sequence[str]) -> list[str]:
    """The arguments with the global options first, so that they may stand behind the command too."""
    front: list[str] = []
    rest: list[str] = []
    left = list(args)
    while left:
        one = left.pop(0)
        if one == "--":
            return [*front, *rest, one, *left]
        name, equals, _ = one.partition("=")
        if name not in _GLOBAL:
            rest.append(one)
        elif equals or not left:
            front.append(one)
        else:
            front += [one, left.pop(0)]
    return [*front, *rest]


app = typer.Typer(
    cls=_Commands,
    name="lakemq",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Global options may also stand behind the command. Exit codes: {all_codes()}.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from lakemq import __version__

        typer.echo(f"lakemq {__version__}")
        raise typer.Exit


@app.callback()
def lakemq(
    ctx: typer.Context,
    path: Annotated[
        str | None,
        typer.Option(envvar=PATH_VARIABLE, metavar="PATH", help="The namespace: a folder or object-store URI."),
    ] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="A settings file, else $LAKEMQ_CONF, else defaults.")
    ] = None,
    storage_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Passed to the object store; repeatable.")
    ] = None,
    output: Annotated[Output, typer.Option(help="How data is printed: json is one object a line.")] = Output.table,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A partitioned, transactional message queue whose every bit of state is a Delta table."""
    ctx.obj = Session(path, conf, storage_options(storage_option or []), output)


namespace.add_to(app)
topics.add_to(app)
publish.add_to(app)
messages.add_to(app)
consume.add_to(app)
query.add_to(app)
transactions.add_to(app)
delayed.add_to(app)
dead_letters.add_to(app)
groups.add_to(app)


def _open_closed() -> None:
    """Streams that were closed for us fail where they are used; what is for stderr goes nowhere.

    Their numbers are taken: else the next file opened, one of a table, would get what is printed.
    """
    for name, flags, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: runs the command and ends the process."""
    _open_closed()
    # data is UTF-8 wherever it goes, whatever the locale says
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
    interrupts.install()
    app(args=None if arguments is None else list(arguments), prog_name="lakemq")


if __name__ == "__main__":
    main()
