"""The `lakemq` command: global options, groups of commands, and how errors are reported.

`exits` lists the exit codes. An error is one line `NAME: message` on stderr; LAKEMQ_TRACE=1 adds the stack trace.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lakemq.jobs.commands import (
    bench,
    dead_letters,
    delayed,
    groups,
    messages,
    mirror,
    namespace,
    publish,
    query,
    schedules,
    status,
    topics,
    transactions,
    worker,
)
from lakemq.jobs.commands.shared.context import Session, set_session
from lakemq.jobs.commands.shared.examples import add_examples
from lakemq.jobs.entry import PATH_VARIABLE, storage_options
from lakemq.jobs.output import Output
from lakemq.jobs.process import exits
from lakemq.jobs.process.exits import all_codes, describe_end
from lakemq.jobs.process.streams import TRACE_VARIABLE, log_to_stderr, open_standard_streams

_GLOBAL = ("--path", "--conf", "--storage-option", "--output")

_UsageError: Any = typer.BadParameter.__base__
"""The exception for wrong usage, for which typer has no public name."""


class _Commands(TyperGroup):
    """The commands. Global options may stand anywhere on the line, and an error is reported in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _report_errors():  # help and the version are printed here
            return super().parse_args(ctx, move_global_options_first(args))

    def invoke(self, ctx: Any) -> Any:
        with _report_errors():
            return super().invoke(ctx)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Flush the output at the end. Report an error in one line and raise typer.Exit with its exit code."""
    try:
        with log_to_stderr():
            try:
                yield
            except typer.Exit:
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except (typer.Exit, typer.Abort, _UsageError):
        raise
    except BrokenPipeError:
        _discard_buffered_output()
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except BaseException as error:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_buffered_output()
        line, code = describe_end(error)
        if os.environ.get(TRACE_VARIABLE) and not line.startswith("INTERRUPTED"):
            raise
        typer.echo(line, err=True)
        raise typer.Exit(code) from None


def _discard_buffered_output() -> None:
    """Send buffered output nowhere: the reader has closed the pipe, and Python would raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def move_global_options_first(args: Sequence[str]) -> list[str]:
    """Return the arguments with the global options first, so that they may also follow the command."""
    front: list[str] = []
    rest: list[str] = []
    remaining = list(args)
    while remaining:
        argument = remaining.pop(0)
        if argument == "--":
            return [*front, *rest, argument, *remaining]
        name, equals, _ = argument.partition("=")
        if name not in _GLOBAL:
            rest.append(argument)
        elif equals or not remaining:
            front.append(argument)
        else:
            front += [argument, remaining.pop(0)]
    return [*front, *rest]


app = typer.Typer(
    cls=_Commands,
    name="lakemq",
    no_args_is_help=True,
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
    path: Annotated[
        str | None,
        typer.Option(envvar=PATH_VARIABLE, metavar="PATH", help="The namespace: a folder or an object store URI."),
    ] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="A settings file. Without it: $LAKEMQ_CONF, else the defaults.")
    ] = None,
    storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option for the object store; repeatable. KEY alone takes the environment's value.",
        ),
    ] = None,
    output: Annotated[Output, typer.Option(help="Output format; json prints one object per line.")] = Output.table,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A partitioned, transactional message queue whose state is Delta tables."""
    set_session(Session(path, conf, storage_options(storage_option or []), output))


for command in (
    *(namespace.init, namespace.serve, namespace.step, namespace.catalog, namespace.doctor, namespace.fsck),
    *(namespace.backup, namespace.restore, status.status, status.report, publish.publish),
    *(messages.fetch, messages.tail, groups.offsets, messages.consume, worker.worker, mirror.mirror, query.sql),
    *(query.spark_sql, transactions.describe_producers, namespace.console),
):
    app.command()(command)
for name, group in {
    "topics": topics.topics,
    "transactions": transactions.transactions,
    "delayed": delayed.delayed,
    "schedules": schedules.schedules,
    "dead-letters": dead_letters.dead_letters,
    "groups": groups.groups,
    "bench": bench.bench,
}.items():
    app.add_typer(group, name=name)
add_examples(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process (the console script)."""
    open_standard_streams()
    exits.install()
    app(args=None if arguments is None else list(arguments), prog_name="lakemq")


if __name__ == "__main__":
    main()
