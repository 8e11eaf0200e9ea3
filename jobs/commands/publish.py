"""`lakemq publish`: the lines or rows of a file become messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import DelayMs, DeliverAt, TtlMs, moment_of
from lakemq.jobs.exits import Exit
from lakemq.jobs.output import note, show

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.publish.producer import Producer
    from lakemq.engine.client.publish.told import Flushed, Span

_HELP = f"""Publish the lines or rows of a file, or of stdin (-), to a topic.

The value is the column --value-column, else all of it: the JSON line, the CSV or Parquet row as a JSON object.
Text goes as UTF-8, anything else as its JSON; for a missing column x, x_base64 is taken and decoded.
The file is read and sent in pieces, each of which is published whole or not at all, and only once.

A column that the file does not have is refused; of JSON lines, a field that no line so far has had. Lines without a
field that others have are published without it, and counted on stderr. Where rows were refused, the exit code is
{Exit.DATA_REFUSED.value}.

{NEEDS_ANSWER}"""

_AS_READ = dict.fromkeys(("key", "value", "headers", "timestamp", "partition"))
_FORMATS = ("jsonl", "lines", "csv", "parquet")


def add_to(app: typer.Typer) -> None:
    app.command(help=_HELP)(publish)


def publish(
    ctx: typer.Context,
    topic: Annotated[str, typer.Option(help="The topic, or a destination that topics subscribe to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A file (.gz is unpacked); - is stdin.")] = "-",
    format: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_FORMATS), help="How the file is written; else its name says it; for stdin jsonl."
        ),
    ] = None,
    key_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column that is the key.")] = None,
    value_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column that is the value.")] = None,
    headers_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that has the headers.")
    ] = None,
    timestamp_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that is the timestamp.")
    ] = None,
    partition_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that is the partition.")
    ] = None,
    deliver_at: DeliverAt = None,
    delay_ms: DelayMs = None,
    ttl_ms: TtlMs = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="dead_letter|fail",
            help="Rows that cannot be messages: into dead_letters, the rest is published; or the piece is refused.",
        ),
    ] = "dead_letter",
) -> None:
    if on_error not in ("dead_letter", "fail"):
        raise typer.BadParameter(f"{on_error!r} is neither dead_letter nor fail", param_hint="--on-error")
    from lakemq.engine.client.publish.given import selected
    from lakemq.jobs.commands.fields import Columns, FieldCounts
    from lakemq.jobs.commands.rows import read

    if deliver_at is not None and delay_ms is not None:
        raise typer.BadParameter("with --delay-ms there is none", param_hint="--deliver-at")
    times = {"deliver_at": moment_of(deliver_at), "delay_ms": delay_ms, "ttl_ms": ttl_ms}
    session, chosen = session_of(ctx), _format(format, file)
    columns = Columns(key_column, value_column, headers_column, timestamp_column, partition_column)
    sent, counts = _Sent(), FieldCounts(columns)
    with ExitStack() as stack:
        mq = stack.enter_context(session.connect())
        stream, fraction = stack.enter_context(_opened(file))
        producer = stack.enter_context(mq.producer(linger_ms=0, on_error=on_error))
        # before the producer ends: it waits for its answers, and who waits for them says so
        stack.enter_context(answered(mq))
        tell = stack.enter_context(progress("published", fraction))
        stack.enter_context(_noted_where_it_ends(mq, producer, sent))
        tables = (selected(table, {**_AS_READ, **times}) for table in read(stream, chosen, columns, counts))
        _send_all(producer, topic, tables, sent, tell)
    show(sent.records(), session.output, ("topic", "partition", "first_offset", "last_offset", "messages"))
    for field, count in counts.lacking().items():
        note(f"lines without a field {field!r}: {count}; they were published without it")
    if sent.waiting_count:
        note(f"messages that wait for their time: {sent.waiting_count}")
    if sent.refused_count:
        note(f"rows refused: {sent.refused_count}; the table dead_letters has the reasons")
        raise typer.Exit(Exit.DATA_REFUSED)


def _format(given: str | None, file: str) -> Any:
    from lakemq.jobs.commands.rows import Format, format_of

    if given is not None:
        if given not in _FORMATS:
            raise typer.BadParameter(f"{given!r} is none of {', '.join(_FORMATS)}", param_hint="--format")
        return Format(given)
    found = Format.jsonl if file == "-" else format_of(file)
    if found is None:
        raise typer.BadParameter(f"the name {file!r} does not say how it is written", param_hint="--format")
    return found


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, Callable[[], float | None]]]:
    """The file's bytes, and how much of them has been read, as far as that is known."""
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
    """What was acknowledged: per topic and partition the first offset, the last one, and how many."""

    def __init__(self) -> None:
        self.count = self.refused_count = self.waiting_count = 0
        self._spans: dict[tuple[str, int], Span] = {}

    def add(self, flushed: Flushed) -> None:
        self.refused_count += flushed.refused_count
        self.waiting_count += flushed.waiting_count
        self.count += flushed.waiting_count
        for place, span in flushed.spans.items():
            self._spans[place] = span.joined(self._spans.get(place))
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
    """While a piece is on its way the next one is read; not more than these two are held.

    `sent` holds what was acknowledged and looked at, also when this raises.
    """
    for table in tables:
        sent.add(producer.flush())
        tell(sent.count)
        producer.send_arrow(topic, table)
    sent.add(producer.flush())
    tell(sent.count)


@contextmanager
def _noted_where_it_ends(mq: Connection, producer: Producer, sent: _Sent) -> Iterator[None]:
    """Of what ends too early: how much was published until then."""
    try:
        yield
    except BaseException as error:
        # who is interrupted waits for no answer any more
        if isinstance(error, Exception) or mq.requester.waited_ms() is None:
            with suppress(Exception):
                sent.add(producer.flush())
        if sent.count:
            note(f"messages published before it ended: {sent.count}")
        raise


@contextmanager
def progress(verb: str, fraction: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; to be told how many messages are done."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)

        def tell(count: int) -> None:
            done = fraction()
            bar.update(
                task,
                description=f"{count:,} messages {verb}",
                total=None if done is None else 1.0,
                completed=done or 0.0,
            )

        yield tell
