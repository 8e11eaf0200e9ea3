"""`lakemq groups`: how far groups have come."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import session_of
from lakemq.jobs.commands.times import of_millis
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from lakemq.engine.client.consume.groups import PartitionLag

groups = typer.Typer(no_args_is_help=True, help="What groups have committed, and their lag.")

_COLUMNS = (
    "group",
    "topic",
    "partition",
    "committed_offset",
    "last_stable_offset",
    "high_watermark",
    "lag",
    "committed_at",
    "pending",
)

_DESCRIBED = ("group", "shard", "coordinator", "partitions", "lag")


def add_to(app: typer.Typer) -> None:
    app.add_typer(groups, name="groups")


@groups.command("list")
def list_groups(ctx: typer.Context) -> None:
    """Groups that have committed offsets, by name."""
    session = session_of(ctx)
    with session.connect() as mq:
        show(({"group": name} for name in mq.groups.list()), session.output, ("group",))


@groups.command()
def describe(
    ctx: typer.Context, group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
) -> None:
    """One group: its shard, who coordinates it, for how many partitions it has offsets, and its lag over all."""
    session = session_of(ctx)
    with session.connect() as mq:
        show([asdict(mq.groups.describe(group))], session.output, _DESCRIBED)


@groups.command()
def lag(ctx: typer.Context, group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]) -> None:
    """Per partition how far a group has committed, and how much is left up to the last stable offset.

    Markers and aborted messages count as left, too. pending: the open transaction that has offsets for the partition.
    """
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_lag, mq.groups.lag(group)), session.output, _COLUMNS)


def _lag(one: PartitionLag) -> dict[str, Any]:
    return {
        "group": one.group,
        "topic": one.topic,
        "partition": one.partition,
        "committed_offset": one.committed_offset,
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
        "lag": one.lag,
        "committed_at": of_millis(one.committed_at_ms),
        "metadata": one.metadata,
        "pending": one.pending,
    }
