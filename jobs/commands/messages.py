"""`lakemq fetch` and `lakemq tail`: messages to stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import session_of
from lakemq.jobs.commands.publish import progress
from lakemq.jobs.commands.times import parse_position
from lakemq.jobs.output import MessagePrinter

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Isolation = Annotated[str, typer.Option(metavar="read_committed|read_uncommitted", help="What is visible.")]

_POSITION = "earliest, latest, an offset for all partitions, or a time in ISO 8601 (UTC unless it says otherwise)"


def add_to(app: typer.Typer) -> None:
    app.command()(fetch)
    app.command()(tail)


def fetch(
    ctx: typer.Context,
    topic: Topic,
    start: Annotated[
        str, typer.Option("--from", metavar="POSITION", help=f"Where to begin: {_POSITION}.")
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="Where to end, itself not included; as --from.")
    ] = "latest",
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this partition; repeatable. Otherwise all.")
    ] = None,
    isolation: Isolation = "read_committed",
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many messages.")] = None,
    include_expired: Annotated[bool, typer.Option("--include-expired", help="Those that have expired, too.")] = False,
) -> None:
    """Print messages, by partition and offset.

    Keys and values are shown as UTF-8 text; where they are not, JSON and CSV have key_base64 or value_base64 instead.
    """
    first, last = _position(start, "--from"), _position(end, "--to")
    session, printer = session_of(ctx), MessagePrinter(session_of(ctx).output)
    with session.connect() as mq:
        how = {"isolation": _isolation(isolation), "partitions": partition or None, "include_expired": include_expired}
        found = mq.fetch(topic, start=first, end=last, **how)
        total = found.plan.record_count if limit is None else min(limit, found.plan.record_count)
        done = 0
        with _quiet_progress(lambda: done / max(total, 1)) as tell:
            for table in found.pieces(total):
                printer.write(table)
                done += table.num_rows
                tell(done)
    printer.close()


def tail(
    ctx: typer.Context,
    topic: Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="The last so many of each partition.")
    ] = 10,
    start: Annotated[
        str | None, typer.Option("--from", metavar="POSITION", help=f"Begin here instead: {_POSITION}.")
    ] = None,
    isolation: Isolation = "read_committed",
) -> None:
    """Print the newest messages, and with --follow those that come."""
    first = None if start is None else _position(start, "--from")
    session, printer = session_of(ctx), MessagePrinter(session_of(ctx).output)
    with session.connect() as mq:
        level = _isolation(isolation)
        ends = mq.end_offsets(topic, level)
        begin = _last(mq, topic, level, ends, lines) if first is None else first
        found = mq.fetch(topic, isolation=level, start=begin, end=ends)
        for table in found.pieces():
            printer.write(table)
        printer.close()
        if follow:
            try:
                for table in mq.tail(topic, start=ends, isolation=level):
                    printer.write(table)
            except KeyboardInterrupt:
                return


def _last(mq: Connection, topic: str, isolation: Any, ends: dict[int, int], lines: int) -> dict[int, int]:
    """Where the last messages of each partition begin; markers and what was aborted have offsets, too."""
    first = mq.beginning_offsets(topic)
    begin, left, reach = dict(ends), {p: end for p, end in ends.items() if lines and p in first}, lines
    while left:
        starts = {p: max(first[p], end - reach) for p, end in left.items()}
        segments = mq.fetch(topic, isolation=isolation, start=starts, end=left).plan.segments
        columns = (segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count"))
        begin |= starts
        missing = dict.fromkeys(starts, lines)
        for partition, base, count in reversed(list(zip(*columns, strict=True))):
            if missing[partition]:
                taken = min(count, missing[partition])
                missing[partition] -= taken
                begin[partition] = base + count - taken
        left = {p: left[p] for p, lacking in missing.items() if lacking and starts[p] > first[p]}
        reach *= 4
    return begin


def _position(text: str, option: str) -> Any:
    try:
        return parse_position(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _isolation(text: str) -> Any:
    if text not in ("read_committed", "read_uncommitted"):
        raise typer.BadParameter(f"{text!r} is neither read_committed nor read_uncommitted", param_hint="--isolation")
    return text


def _quiet_progress(fraction: Any) -> Any:
    """A bar only where it does not run into the messages: when they go somewhere else than to the terminal."""
    from contextlib import nullcontext

    return nullcontext(lambda count: None) if sys.stdout.isatty() else progress("fetched", fraction)
