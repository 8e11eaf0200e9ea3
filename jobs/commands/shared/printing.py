"""Options of the commands that print messages: a format string, or a separator between key and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.shared.context import Session
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


def open_printer(
    session: Session, print_format: str | None, key_separator: str | None
) -> MessagePrinter | FormatPrinter:
    """Return what prints messages in the chosen way; raise a usage error for options that contradict each other."""
    if print_format is None and key_separator is None:
        return MessagePrinter(session.output)
    option = "--print" if print_format is not None else "--key-separator"
    if print_format is not None and key_separator is not None:
        raise typer.BadParameter("it does not go with --print", param_hint="--key-separator")
    if session.output is not Output.table:
        raise typer.BadParameter("it does not go with --output", param_hint=option)
    from lakemq.jobs.commands.shared.message_format import FormatPrinter

    try:
        if print_format is not None:
            return FormatPrinter(print_format)
        return FormatPrinter(f"%k{(key_separator or '').replace('%', '%%')}%s\\n")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
