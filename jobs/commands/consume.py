"""`lakemq consume`: print messages as a member of a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import Begin, InstanceId, ensure_sequencer, get_session
from lakemq.jobs.commands.shared.printing import Decode, KeySeparator, PrintFormat, build_decoder, open_printer
from lakemq.jobs.process.streams import end_with_reader

if TYPE_CHECKING:
    from lakemq.engine.client.consume.batch import ConsumerBatch
    from lakemq.engine.client.consume.group_consumer import MemberConsumer

_WAIT_MS = 500


def add_to(app: typer.Typer) -> None:
    app.command()(consume)


def consume(
    ctx: typer.Context,
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

    session = get_session(ctx)
    printer = open_printer(session, print_format, key_separator)
    words: dict[str, Any] = {"protocol": protocol, "auto_offset_reset": begin}  # `consumer` checks them
    with (
        session.connect() as mq,
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
