"""`lakemq consume`: messages to stdout, as a member of a group."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.jobs.commands.context import answered, session_of
from lakemq.jobs.output import MessagePrinter

if TYPE_CHECKING:
    from lakemq.engine.client.consume.group_consumer import GroupConsumer

_WAIT_MS = 500
_SHARED_S = 5
"""So much longer a member that has no partitions waits, if its group may be about to give it some."""


def add_to(app: typer.Typer) -> None:
    app.command()(consume)


def consume(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The group to be a member of.")],
    protocol: Annotated[
        str | None, typer.Option(metavar="queue|cooperative|classic", help="Of a new group; otherwise as the group is.")
    ] = None,
    begin: Annotated[
        str,
        typer.Option("--from", metavar="earliest|latest", help="Where to begin where the group has committed nothing."),
    ] = "earliest",
    instance_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a static member, whose partitions wait for its return.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many messages.")] = None,
    timeout_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="End when nothing has come for so long.")
    ] = 2_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
) -> None:
    """Print messages as a member of a group, which shares its partitions; what is printed is done with.

    It is acknowledged, or committed, after it was printed: should the command be killed between the two, it is printed
    again by whoever is next.
    """
    from lakemq.engine.client.consume.group_consumer import GroupConsumer

    session, printer = session_of(ctx), MessagePrinter(session_of(ctx).output)
    with (
        session.connect() as mq,
        answered(mq),
        mq.consumer(
            group, topics=topics, protocol=protocol, auto_offset_reset=begin, instance_id=instance_id
        ) as consumer,
        suppress(KeyboardInterrupt),
    ):
        assert isinstance(consumer, GroupConsumer)
        _print(consumer, printer, limit, None if follow else timeout_ms)
    printer.close()


def _print(consumer: GroupConsumer, printer: MessagePrinter, limit: int | None, timeout_ms: int | None) -> None:
    """timeout_ms: None, it goes on."""
    left, came_s = limit, time.monotonic()
    while left is None or left > 0:
        batch = consumer.poll(10_000 if left is None else min(left, 10_000), timeout_ms=_WAIT_MS)
        if batch:
            printer.write(batch.to_arrow())
            consumer.commit(batch)
            came_s = time.monotonic()
            left = None if left is None else left - batch.record_count
        elif timeout_ms is not None:
            longer_s = _SHARED_S if consumer.may_get_some() and not consumer.assignment() else 0
            if time.monotonic() - came_s >= timeout_ms / 1000 + longer_s:
                return
