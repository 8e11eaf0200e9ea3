"""`lakemq offsets`: offsets of partitions, at either end of the log or at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.messages import Isolation, parse_isolation
from lakemq.jobs.commands.shared.context import get_session
from lakemq.jobs.commands.shared.times import from_millis, parse_moment
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from datetime import datetime

    from lakemq.engine.client.connection import Connection

_COLUMNS = ("topic", "partition", "offset", "timestamp")
_ENDS = ("earliest", "latest")


def add_to(app: typer.Typer) -> None:
    app.command()(offsets)


def offsets(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")],
    time: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, a time in ISO 8601 (by default UTC), or milliseconds since 1970.",
        ),
    ] = "latest",
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this partition; repeatable. Default: all.")
    ] = None,
    isolation: Isolation = "read_committed",
) -> None:
    """Show an offset of each partition: the first one, the next one, or the first message at or after a time.

    earliest: the start of the log. latest: the offset after the last message that a fetch of this isolation sees. For a
    time, timestamp is that of the message. A partition without such a message has no offset.
    """
    moment, level = _parse_time(time), parse_isolation(isolation)
    session = get_session(ctx)
    with session.connect() as mq:
        records = [
            {"topic": topic, "partition": number, "offset": offset, "timestamp": from_millis(timestamp_ms)}
            for topic in topics
            for number, offset, timestamp_ms in _find_offsets(mq, topic, moment, level, partition)
        ]
    show(records, session.output, _COLUMNS)


def _parse_time(text: str) -> str | datetime | int:
    if text in _ENDS:
        return text
    try:
        return parse_moment(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, earliest or latest", param_hint="--time") from None


def _find_offsets(
    mq: Connection, topic: str, moment: str | datetime | int, isolation: Any, partitions: list[int] | None
) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield partition, offset and timestamp in ms. Raises UnknownTopicOrPartition."""
    ends = mq.beginning_offsets(topic) if moment == "earliest" else mq.end_offsets(topic, isolation)
    if unknown := sorted(set(partitions or ()) - set(ends)):
        from lakemq.errors import UnknownTopicOrPartition

        raise UnknownTopicOrPartition(
            f"{topic} has no such partition.", found=unknown[0], expected=f"0 to {len(ends) - 1}"
        )
    chosen = sorted(partitions or ends)
    if isinstance(moment, str):
        yield from ((number, ends[number], None) for number in chosen)
        return
    messages = mq.offsets_for_times(topic, dict.fromkeys(chosen, moment))
    for number in chosen:
        message = messages[number]
        # A message behind the end is one of an open transaction, which this isolation does not see.
        offset, timestamp_ms = message if message is not None and message[0] < ends[number] else (None, None)
        yield number, offset, timestamp_ms
