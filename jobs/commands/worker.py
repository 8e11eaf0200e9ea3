"""`lakemq worker`: call a function of the current folder for each message of a queue group."""

import builtins
import importlib
import logging
import os
import sys
from typing import Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import Begin, InstanceId, connect, ensure_sequencer, show
from lakemq.jobs.process.streams import log_to_stderr


def worker(
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:HANDLER", help="A function of a message, in a module of this folder.")
    ],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The queue group to join.")],
    topics: Annotated[list[str], typer.Option("--topics", metavar="TOPIC", help="A topic to consume; repeatable.")],
    concurrency: Annotated[
        int, typer.Option(min=1, max=1_000, metavar="N", help="How many messages are handled at the same time.")
    ] = 8,
    retry_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ERROR",
            help="Deliver again only after these errors: built-in names or MODULE:CLASS; repeatable. Without it: all.",
        ),
    ] = None,
    reject_for: Annotated[
        list[str] | None,
        typer.Option(metavar="ERROR", help="After these errors a message becomes a dead letter at once; repeatable."),
    ] = None,
    backoff_ms: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="MS",
            help="Wait before the second, third, ... delivery; repeatable. Without it: as `mq.run_worker` does.",
        ),
    ] = None,
    time_limit_ms: Annotated[
        int | None, typer.Option(min=1, metavar="MS", help="How long a handler may take. Without it: no limit.")
    ] = None,
    stop_timeout_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="How long handlers may go on after a signal.")
    ] = 20_000,
    begin: Begin = "earliest",
    instance_id: InstanceId = None,
) -> None:
    """Call a handler for each message of a queue group, in several threads, until SIGTERM or SIGINT.

    A message is acknowledged when its handler returns. If the handler raises an error, the message is delivered again,
    or becomes a dead letter. After a signal, handlers that run may end, all other messages go back, and the command
    prints its counts. A second signal ends it at once.
    """
    function = _import_object(handler, "MODULE:HANDLER")
    if not callable(function):
        raise typer.BadParameter(
            f"{handler} is no function, but {type(function).__name__}", param_hint="MODULE:HANDLER"
        )
    errors = {
        name: tuple(_import_error(text, name) for text in texts or ())
        for name, texts in (("--retry-for", retry_for), ("--reject-for", reject_for))
    }
    options: dict[str, Any] = {"auto_offset_reset": begin, "instance_id": instance_id, "backoff_ms": backoff_ms or None}
    with connect(runs_user_code=True) as mq, ensure_sequencer(mq), log_to_stderr(logging.INFO):
        report = mq.run_worker(
            function,
            topics,
            group=group,
            concurrency=concurrency,
            retry_for=errors["--retry-for"] or Exception,
            reject_for=errors["--reject-for"],
            time_limit_ms=time_limit_ms,
            stop_timeout_ms=stop_timeout_ms,
            **{name: value for name, value in options.items() if value is not None},
        )
    show([report._asdict()], report._fields)


def _import_object(text: str, option: str) -> Any:
    """Return the object MODULE:NAME. Modules of the current folder come first. Raises BadParameter."""
    module_name, colon, name = text.partition(":")
    if not (colon and module_name and name):
        raise typer.BadParameter(f"found {text}, expected MODULE:NAME, such as shop:ship", param_hint=option)
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise typer.BadParameter(
            f"module {module_name} cannot be imported from {folder} ({why})", param_hint=option
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise typer.BadParameter(f"module {module_name} has no {name}", param_hint=option) from None


def _import_error(text: str, option: str) -> type[Exception]:
    kind = _import_object(text, option) if ":" in text else getattr(builtins, text, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise typer.BadParameter(
            f"found {text}, expected a class of exceptions: a built-in name or MODULE:CLASS", param_hint=option
        )
    return kind
