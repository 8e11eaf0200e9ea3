"""`lakemq publish`: publish the lines or rows of a file as messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, connect, ensure_sequencer, show
from lakemq.jobs.commands.shared.printing import show_progress
from lakemq.jobs.commands.shared.times import DelayMs, DeliverAt, TtlMs, parse_moment_option
from lakemq.jobs.output import note
from lakemq.jobs.process.exits import Exit

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.producer.failures import AcknowledgedSpan, FlushReport
    from lakemq.engine.client.producer.producer import Producer

_HELP = f"""Publish the lines or rows of a file, or of stdin (-), to a topic.

The value of a message is the column --value-column. Without it, it is the JSON line, or the CSV or Parquet row as a
JSON object, in which NaN and infinity are null. Text is sent as UTF-8, anything else as JSON. If column x is
missing, x_base64 is decoded instead. The file is read and sent in pieces. Each piece is published as a whole or not
at all, and only once.

A column that the file lacks is refused, and so is a JSON field that no line so far has. A line without a field that
other lines have is published without it; stderr shows how many. If rows were rejected, the exit code is
{Exit.DATA_REFUSED.value}.

{NEEDS_SEQUENCER}"""

_AS_READ = dict.fromkeys(("key", "value", "headers", "timestamp", "partition"))


def publish(
    topic: Annotated[str, typer.Option(help="The topic, or a destination that topics subscribe to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A file (.gz is decompressed); - is stdin.")] = "-",
    format: Annotated[
        Literal["jsonl", "lines", "csv", "parquet"] | None,
        typer.Option(
            metavar="jsonl|lines|csv|parquet", help="The file format. Default: by the file's name; for stdin jsonl."
        ),
    ] = None,
    key_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the key.")] = None,
    value_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the value.")] = None,
    headers_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the headers.")] = None,
    timestamp_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column with the timestamp.")
    ] = None,
    partition_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column with the partition.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="With --format lines: the text between key and value, as kcat -K; may have \\t, \\xNN and the like. "
            "A line without it is a value without a key.",
        ),
    ] = None,
    encode: Annotated[
        bool,
        typer.Option(
            "--encode",
            help="Encode values, which are JSON, by the newest version of the topic's schema. Bytes are base64.",
        ),
    ] = False,
    deliver_at: DeliverAt = None,
    delay_ms: DelayMs = None,
    ttl_ms: TtlMs = None,
    on_error: Annotated[
        Literal["reject", "fail"],
        typer.Option(
            metavar="reject|fail",
            help="For rows that cannot be messages: list them in rejected_rows and publish the rest, or fail.",
        ),
    ] = "reject",
) -> None:
    from lakemq.engine.client.rows.input_rows import select_message_columns
    from lakemq.jobs.commands.shared.fields import Columns, FieldCounts
    from lakemq.jobs.commands.shared.rows import read

    if deliver_at is not None and delay_ms is not None:
        raise typer.BadParameter("it does not go with --delay-ms", param_hint="--deliver-at")
    times = {"deliver_at": parse_moment_option(deliver_at), "delay_ms": delay_ms, "ttl_ms": ttl_ms}
    file_format = _format(format or ("lines" if key_separator else None), file)
    separator = _parse_separator(key_separator, file_format)
    columns = Columns(key_column, value_column, headers_column, timestamp_column, partition_column)
    sent, counts = _Sent(), FieldCounts(columns)
    with ExitStack() as stack:
        mq = stack.enter_context(connect())
        stream, fraction = stack.enter_context(_open_input(file))
        producer = stack.enter_context(mq.producer(linger_ms=0, on_error=on_error))
        # entered after the producer, so that it is left before: while the producer closes, slow answers are reported
        stack.enter_context(ensure_sequencer(mq))
        tell = stack.enter_context(show_progress("published", fraction))
        stack.enter_context(_note_published_on_error(mq, producer, sent))
        to_values = _build_encoder(mq, topic, encode)
        tables = (
            select_message_columns(to_values(table), {**_AS_READ, **times})
            for table in read(stream, file_format, columns, counts, separator)
        )
        _send_all(producer, topic, tables, sent, tell)
    show(sent.records(), ("topic", "partition", "first_offset", "last_offset", "messages"))
    for field, count in counts.lacking().items():
        note(f"lines without a field {field!r}: {count}; they were published without it")
    if sent.waiting_count:
        note(f"delayed messages, which wait for their time: {sent.waiting_count}")
    if sent.rejected_count:
        note(f"rows rejected: {sent.rejected_count}; the table rejected_rows has the reasons")
        raise typer.Exit(Exit.DATA_REFUSED)


publish.__doc__ = _HELP


def _build_encoder(mq: Connection, topic: str, encodes: bool) -> Callable[[pa.Table], pa.Table]:
    """Return a function that encodes the values of a table by the topic's schema."""
    if not encodes:
        return lambda table: table
    import pyarrow as pa

    schema = mq.topics.schema(topic)

    def encode(table: pa.Table) -> pa.Table:
        values = schema.encode_json(table["value"].to_pylist())
        return table.set_column(table.column_names.index("value"), "value", pa.array(values, pa.binary()))

    return encode


def _format(name: str | None, file: str) -> Any:
    from lakemq.jobs.commands.shared.rows import Format, format_of

    if name is not None:
        return Format(name)
    format_by_name = Format.jsonl if file == "-" else format_of(file)
    if format_by_name is None:
        raise typer.BadParameter(f"cannot tell the format from the name {file!r}: give it", param_hint="--format")
    return format_by_name


def _parse_separator(text: str | None, file_format: Any) -> bytes | None:
    from lakemq.jobs.commands.shared.message_format import unescape
    from lakemq.jobs.commands.shared.rows import Format

    if text is None:
        return None
    try:
        separator = unescape(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key-separator") from None
    if not separator or b"\n" in separator:
        raise typer.BadParameter("it must be a text without a line end", param_hint="--key-separator")
    if file_format is not Format.lines:
        raise typer.BadParameter("it goes only with --format lines", param_hint="--key-separator")
    return separator


@contextmanager
def _open_input(file: str) -> Iterator[tuple[BinaryIO, Callable[[], float | None]]]:
    """Open the file. Yields a stream and a function that returns the fraction read so far, or None if unknown."""
    if file == "-":
        yield sys.stdin.buffer, lambda: None
        return
    import gzip
    import os

    from lakemq.errors import InvalidRequest

    try:
        raw = open(file, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InvalidRequest(f"The file cannot be read: {error.strerror}.", found=file) from None
    with raw:
        size = os.fstat(raw.fileno()).st_size

        def fraction() -> float | None:
            return None if raw.closed or not size else raw.tell() / size

        if file.endswith(".gz"):
            with gzip.open(raw) as unpacked:
                yield unpacked, fraction  # type: ignore[misc]
        else:
            yield raw, fraction


class _Sent:
    """The acknowledged messages: first offset, last offset and number per topic and partition."""

    def __init__(self) -> None:
        self.count = self.rejected_count = self.waiting_count = 0
        self._spans: dict[tuple[str, int], AcknowledgedSpan] = {}

    def add(self, flushed: FlushReport) -> None:
        self.rejected_count += flushed.rejected_count
        self.waiting_count += flushed.waiting_count
        self.count += flushed.waiting_count
        for tp, span in flushed.spans.items():
            self._spans[tp] = span.merge(self._spans.get(tp))
            self.count += span.record_count

    def records(self) -> Iterator[dict[str, Any]]:
        for (topic, partition), (first, last, count) in sorted(self._spans.items()):
            yield {
                "topic": topic,
                "partition": partition,
                "first_offset": first,
                "last_offset": last,
                "messages": count,
            }


def _send_all(
    producer: Producer, topic: str, tables: Iterator[pa.Table], sent: _Sent, tell: Callable[[int], None]
) -> None:
    """Send the tables one after the other. The next one is read while one is in flight; no more than two are held.

    `sent` counts the acknowledged messages, also if this raises.
    """
    for table in tables:
        sent.add(producer.flush())
        tell(sent.count)
        producer.send_arrow(topic, table)
    sent.add(producer.flush())
    tell(sent.count)


@contextmanager
def _note_published_on_error(mq: Connection, producer: Producer, sent: _Sent) -> Iterator[None]:
    """After an error, say on stderr how many messages were published before it."""
    try:
        yield
    except BaseException as error:
        # after an interrupt, do not wait for the answer to a pending request
        if isinstance(error, Exception) or mq.requester.waited_ms() is None:
            with suppress(Exception):
                sent.add(producer.flush())
        if sent.count:
            note(f"messages published before the error: {sent.count}")
        raise
