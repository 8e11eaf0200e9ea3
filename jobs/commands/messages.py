"""`lakemq fetch`, `lakemq tail` and `lakemq consume`: print messages, with `consume` as a member of a group."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakemq.jobs.commands.shared.context import Begin, InstanceId, connect, ensure_sequencer
from lakemq.jobs.commands.shared.printing import (
    Decode,
    KeySeparator,
    PrintFormat,
    build_decoder,
    open_printer,
    show_progress,
)
from lakemq.jobs.commands.shared.times import parse_position
from lakemq.jobs.process.streams import end_with_reader

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.batch import ConsumerBatch
    from lakemq.engine.client.consume.group_consumer import MemberConsumer

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    typer.Option(metavar="read_committed|read_uncommitted", help="Which messages are visible."),
]

_LAST = re.compile("-([1-9][0-9]{0,17})")
"""A position counted from the end, such as -10."""

_POSITION = "earliest, latest, an offset for all partitions, or a time in ISO 8601 (by default UTC)"


def fetch(
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=f"Where to start: {_POSITION}; or -N: the last N messages of each partition before --to.",
        ),
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="Where to end, exclusive; values as for --from.")
    ] = "latest",
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this partition; repeatable. Default: all.")
    ] = None,
    isolation: Isolation = "read_committed",
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Print at most N messages.")] = None,
    include_expired: Annotated[bool, typer.Option("--include-expired", help="Also print expired messages.")] = False,
    print_format: PrintFormat = None,
    key_separator: KeySeparator = None,
    decode: Decode = False,
) -> None:
    """Print messages by partition and offset.

    Keys and values are printed as UTF-8 text. If one is not UTF-8, JSON and CSV have key_base64 or value_base64
    instead.
    """
    counted = _LAST.fullmatch(start)
    # a count from the end is resolved below, when the ends are known
    first, last = "earliest" if counted else _position(start, "--from"), _position(end, "--to")
    printer = open_printer(print_format, key_separator)
    with connect() as mq:
        to_text = build_decoder(mq, decode)
        how: dict[str, Any] = {
            "isolation": isolation,
            "partitions": partition or None,
            "include_expired": include_expired,
        }
        if counted:
            ends = {range_.partition: range_.end for range_ in mq.fetch(topic, end=last, **how).plan.ranges}
            first, last = find_last_offsets(mq, topic, isolation, ends, int(counted[1])), ends
        fetched = mq.fetch(topic, start=first, end=last, **how)
        total = fetched.plan.record_count if limit is None else min(limit, fetched.plan.record_count)
        done = 0
        with _quiet_progress(lambda: done / max(total, 1)) as tell:
            for table in fetched.pieces(total):
                printer.write(to_text(table))
                done += table.num_rows
                tell(done)
    printer.close()


def tail(
    topic: Topic,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new messages until interrupted.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="The last N messages of each partition.")
    ] = 10,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help=f"Start here instead: {_POSITION}; or -N, the same as -n N."),
    ] = None,
    isolation: Isolation = "read_committed",
    print_format: PrintFormat = None,
    key_separator: KeySeparator = None,
    decode: Decode = False,
) -> None:
    """Print the newest messages, and with --follow also new ones as they arrive."""
    counted = _LAST.fullmatch(start or "")
    first = None if start is None or counted else _position(start, "--from")
    lines = int(counted[1]) if counted else lines
    printer = open_printer(print_format, key_separator)
    with connect() as mq:
        to_text = build_decoder(mq, decode)
        ends = mq.end_offsets(topic, isolation)
        begin = find_last_offsets(mq, topic, isolation, ends, lines) if first is None else first
        fetched = mq.fetch(topic, isolation=isolation, start=begin, end=ends)
        for table in fetched.pieces():
            printer.write(to_text(table))
        printer.close()
        if follow:
            with end_with_reader(), suppress(KeyboardInterrupt):
                for table in mq.tail(topic, start=ends, isolation=isolation):
                    printer.write(to_text(table))


def find_last_offsets(mq: Connection, topic: str, isolation: Any, ends: dict[int, int], lines: int) -> dict[int, int]:
    """Return the offset at which the last `lines` messages of each partition start.

    Markers and aborted messages have offsets too, so subtracting from the end is not enough: this widens the range
    fourfold until it holds enough messages, or the log begins.
    """
    first = mq.beginning_offsets(topic)
    begin, unresolved, reach = dict(ends), {p: end for p, end in ends.items() if lines and p in first}, lines
    while unresolved:
        starts = {p: max(first[p], end - reach) for p, end in unresolved.items()}
        segments = mq.fetch(topic, isolation=isolation, start=starts, end=unresolved).plan.segments
        columns = (segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count"))
        begin |= starts
        missing = dict.fromkeys(starts, lines)
        for partition, base, count in reversed(list(zip(*columns, strict=True))):
            if missing[partition]:
                used = min(count, missing[partition])
                missing[partition] -= used
                begin[partition] = base + count - used
        unresolved = {p: unresolved[p] for p, lacking in missing.items() if lacking and starts[p] > first[p]}
        reach *= 4
    return begin


def _position(text: str, option: str) -> Any:
    try:
        return parse_position(text)
    except ValueError as error:
        also = ", or -N: the last N messages" if option == "--from" else ""
        raise typer.BadParameter(f"{error}{also}", param_hint=option) from None


def _quiet_progress(fraction: Any) -> Any:
    """Show a progress bar only if the messages do not go to the same terminal."""
    return nullcontext(lambda count: None) if sys.stdout.isatty() else show_progress("fetched", fraction)


# `lakemq consume`: print messages as a member of a group.


_WAIT_MS = 500


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The group to join.")],
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="queue|cooperative|classic", help="Protocol of a new group; an existing group keeps its own."
        ),
    ] = None,
    begin: Begin = "earliest",
    instance_id: InstanceId = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")] = None,
    timeout_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="End after this time without a message.")
    ] = 2_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until interrupted.")] = False,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="End when the group has read everything that is there now, through any member; fail if it cannot.",
        ),
    ] = False,
    print_format: PrintFormat = None,
    key_separator: KeySeparator = None,
    decode: Decode = False,
) -> None:
    """Consume messages as a member of a group, and print them.

    A message is acknowledged (or its offset committed) after it was printed. If the command is killed between the two,
    the next member prints the message again. With --timeout-ms the command may end while other members, alive or dead,
    or an open transaction still hold messages; a line on stderr says so. --until-end waits for these messages.
    """
    from lakemq.engine.client.consume.group_consumer import MemberConsumer

    printer = open_printer(print_format, key_separator)
    words: dict[str, Any] = {"protocol": protocol, "auto_offset_reset": begin}  # `consumer` checks them
    with (
        connect() as mq,
        ensure_sequencer(mq),
        mq.consumer(group, topics=topics, instance_id=instance_id, **words) as consumer,
        # Ctrl-C is the normal end of --follow; any other loop is cut short, and scripts must see that (exit code 130)
        suppress(KeyboardInterrupt) if follow else nullcontext(),
        end_with_reader(),
    ):
        assert isinstance(consumer, MemberConsumer)
        to_text = build_decoder(mq, decode)

        def write(batch: ConsumerBatch) -> None:
            printer.write(to_text(batch.to_arrow()))

        if until_end and not follow:
            _print_until_end(consumer, write, limit)
        else:
            _print(consumer, write, limit, None if follow else timeout_ms)
    printer.close()


def _print_until_end(consumer: MemberConsumer, write: Callable[[ConsumerBatch], None], limit: int | None) -> None:
    if limit is None:
        for batch in consumer.until_end():
            write(batch)
            consumer.commit(batch)
        return
    remaining = limit
    while remaining > 0:
        # a batch never exceeds the rest of the limit
        next_batch = next(consumer.until_end(min(remaining, 10_000)), None)
        if next_batch is None:
            return
        write(next_batch)
        consumer.commit(next_batch)
        remaining -= next_batch.record_count


def _warn_of_unread_messages(consumer: MemberConsumer, last_batch: ConsumerBatch) -> None:
    """Say on stderr what is left, so that the end does not look like the end of the topic."""
    if last_batch.outcome == "not_yet":
        print(last_batch.outcome.sentence, *last_batch.waits_for, file=sys.stderr)
    lags = {tp: lag for tp, lag in consumer.group_lag().items() if lag}
    elsewhere = lags.keys() - set(consumer.assignment())
    if elsewhere:
        count = sum(lags[tp] for tp in elsewhere)
        print(
            f"The group has {count} unread offsets in {len(elsewhere)} partitions that this member does not own. "
            "--until-end waits for them.",
            file=sys.stderr,
        )


def _print(
    consumer: MemberConsumer, write: Callable[[ConsumerBatch], None], limit: int | None, timeout_ms: int | None
) -> None:
    """Print until `limit` or `timeout_ms` is reached; None is no bound."""
    remaining, last_message_s = limit, time.monotonic()
    while remaining is None or remaining > 0:
        batch = consumer.poll(10_000 if remaining is None else min(remaining, 10_000), timeout_ms=_WAIT_MS)
        if batch:
            write(batch)
            consumer.commit(batch)
            last_message_s = time.monotonic()
            remaining = None if remaining is None else remaining - batch.record_count
        elif timeout_ms is not None and time.monotonic() - last_message_s >= timeout_ms / 1000:
            return _warn_of_unread_messages(consumer, batch)
