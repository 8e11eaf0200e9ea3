"""What commands show: messages, by a format string or with a separator between key and value; and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.output import MessagePrinter, Output

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.schemas.topic_schema import TopicSchema
    from lakemq.jobs.commands.shared.message_format import FormatPrinter


PrintFormat = Annotated[
    str | None,
    typer.Option(
        "--print",
        metavar="FORMAT",
        help="Print each message by this format, as kcat -f: %s value, %k key, %o offset, %p partition, %t topic, "
        "%T timestamp in ms, %h headers, %S and %K lengths, %R length in bytes, %%, \\n, \\t, \\xNN.",
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Print lines of key, this text and value; may have \\t, \\xNN and the like."),
]


Decode = Annotated[
    bool,
    typer.Option(
        "--decode",
        help="Print values of topics with an Avro schema as JSON, by its newest version. Values that do not fit are "
        "printed as they are.",
    ),
]


def build_decoder(mq: Connection, decodes: bool) -> Callable[[pa.Table], pa.Table]:
    """Return a function that makes the values of fetched messages JSON, by the schema of their topic."""
    schemas: dict[str, TopicSchema] = {}

    def decode(messages: pa.Table) -> pa.Table:
        import pyarrow as pa

        values = messages["value"].to_pylist()
        topics = messages["topic"].to_pylist()
        for topic in set(topics):
            if topic not in schemas:
                schemas[topic] = mq.topics.schema(topic)
            rows = [index for index, name in enumerate(topics) if name == topic]
            for index, text in zip(rows, schemas[topic].decode_json([values[index] for index in rows]), strict=True):
                values[index] = text
        return messages.set_column(messages.column_names.index("value"), "value", pa.array(values, pa.binary()))

    return decode if decodes else lambda messages: messages


def open_printer(print_format: str | None, key_separator: str | None) -> MessagePrinter | FormatPrinter:
    """Return what prints messages in the chosen way; raise a usage error for options that contradict each other."""
    if print_format is None and key_separator is None:
        return MessagePrinter(get_session().output)
    option = "--print" if print_format is not None else "--key-separator"
    if print_format is not None and key_separator is not None:
        raise typer.BadParameter("it does not go with --print", param_hint="--key-separator")
    if get_session().output is not Output.table:
        raise typer.BadParameter("it does not go with --output", param_hint=option)
    from lakemq.jobs.commands.shared.message_format import FormatPrinter

    try:
        if print_format is not None:
            return FormatPrinter(print_format)
        return FormatPrinter(f"%k{(key_separator or '').replace('%', '%%')}%s\\n")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


# Show on a terminal how far a command is: a bar with rate and time left, or what it is doing and for how long.


_RATE_WINDOW_S = 5.0
"""The rate is that of the last seconds: with an average over all, a stall would look like a slow command."""


@contextmanager
def show_progress(verb: str, fraction: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal, with rate and time left.

    Call the yielded function with the number of messages so far. fraction: returns the fraction that is done, or None
    if it is unknown; then no time left is shown.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    columns = (*parts, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=_RATE_WINDOW_S) as bar:
        number = bar.add_task(verb, total=None)
        (task,) = bar.tasks

        def show(count: int) -> None:
            done = fraction()
            task.total = count / done if done else None  # `update` would forget the rate
            text = f"{count:,} messages {verb}, {task.speed or 0:,.0f}/s"
            bar.update(number, description=text, completed=count)

        yield show


@contextmanager
def show_activity(text: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if that is a terminal, what the command does. Call the yielded function with a new text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
