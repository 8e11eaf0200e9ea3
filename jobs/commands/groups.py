"""`lakemq groups`: who consumes what, and how far groups have come."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands import group_operations
from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import of_millis, parse_time
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.groups import GroupInfo, MemberInfo, PartitionLag
    from lakemq.jobs.commands.context import Session

groups = typer.Typer(no_args_is_help=True, help="Groups: their members and what they have, offsets and lag.")

_COLUMNS = (
    "group",
    "topic",
    "partition",
    "committed_offset",
    "last_stable_offset",
    "high_watermark",
    "lag",
    "deleted",
    "expired",
    "committed_at",
    "pending",
)

_DESCRIBED = (
    "group",
    "state",
    "protocol",
    "assignor",
    "problem",
    "waits_for",
    "generation",
    "leader",
    "members",
    "partitions",
    "lag",
    "deleted",
    "expired",
    "expires_at",
    "shard",
    "coordinator",
)
_STATE = ("group", "coordinator", "assignor", "state", "members", "leader", "generation", "waits_for")
_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_MEMBERS = ("group", "member_id", "instance_id", "partitions", "topics", "joined_at")
_ASSIGNMENTS_AT = ("group", "topic", "partition", "state", "owner", "since", "until", "reason")
_ASSIGNMENTS = ("group", "topic", "partition", "state", "owner", "target", "since", "reason")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Config = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the group; repeatable.")]


def add_to(app: typer.Typer) -> None:
    group_operations.add_to(groups)
    app.add_typer(groups, name="groups")


@groups.command("list")
def list_groups(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help=f"Only those in this state ({', '.join(_STATES)}); repeatable."),
    ] = None,
) -> None:
    """Groups that have committed offsets, have members, or were made, by name."""
    for one in state or ():
        if one not in _STATES:
            raise typer.BadParameter(f"{one!r} is none of {', '.join(_STATES)}", param_hint="--state")
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_described, mq.groups.all(state or ())), session.output, ("group", "state"))


@groups.command()
def describe(
    ctx: typer.Context,
    group: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups.")] = None,
    all_groups: group_operations.AllGroups = False,
    state: Annotated[bool, typer.Option("--state", help="Only how each stands, and for whom it waits.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Their members, as `groups members` has them.")] = False,
) -> None:
    """Groups: state, protocol and members, for how many partitions each has offsets, and its lag over all.

    deleted: offsets that retention or delete-records deleted before the group was done with them; problem: why
    partitions are given out by another assignor than the one that was asked for; waits_for: members that are to
    give up partitions first; expires_at: when what the group has committed is forgotten, unless it is used.
    """
    session = session_of(ctx)
    if state and members:
        raise typer.BadParameter("one of the two", param_hint="--state, --members")
    with session.connect() as mq:
        if all_groups and not group:
            found = mq.groups.all()
        else:
            found = [mq.groups.describe(name) for name in group_operations.chosen(mq, group, all_groups)]
        if members:
            _show_members([one for info in found if info.members for one in mq.groups.members(info.group)], session)
        else:
            show(map(_described, found), session.output, _STATE if state else _DESCRIBED)


@groups.command("members")
def list_members(ctx: typer.Context, group: Name) -> None:
    """The members of a group, and what each has; the first of them leads."""
    session = session_of(ctx)
    with session.connect() as mq:
        _show_members(mq.groups.members(group), session)


def _show_members(found: list[MemberInfo], session: Session) -> None:
    show(({**asdict(one), "joined_at": of_millis(one.joined_at_ms)} for one in found), session.output, _MEMBERS)


@groups.command()
def assignments(
    ctx: typer.Context,
    group: Name,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="As it was at this time, in ISO 8601; UTC if it says no other.")
    ] = None,
) -> None:
    """Who has which partition, since when and why; target: who is to have it.

    What was at a time is known for group.history.ms, once it is in the tables, and without targets.
    """
    session = session_of(ctx)
    with session.connect() as mq:
        if at is not None:
            show(_assignments_at(mq, group, at), session.output, _ASSIGNMENTS_AT)
            return
        rows = ({**asdict(one), "since": of_millis(one.since_ms)} for one in mq.groups.assignments(group))
        show(rows, session.output, _ASSIGNMENTS)


@groups.command(help=f"Make a group, with its settings, before its first member comes. {NEEDS_ANSWER}")
def create(ctx: typer.Context, group: Name, config: Config = None) -> None:
    from lakemq.engine.client.topics import parse_config

    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        mq.groups.create(group, parse_config(config or []))
        show([_described(mq.groups.describe(group))], session.output, _DESCRIBED)


@groups.command(help=f"Change settings of a group. {NEEDS_ANSWER}")
def alter(
    ctx: typer.Context,
    group: Name,
    config: Config = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A setting that gets its default back; repeatable.")
    ] = None,
) -> None:
    from lakemq.engine.client.topics import parse_config

    session = session_of(ctx)
    changes: dict[str, Any] = {**parse_config(config or []), **dict.fromkeys(reset or ())}
    if not changes:
        raise typer.BadParameter("nothing to change", param_hint="lakemq groups alter")
    with session.connect() as mq, answered(mq):
        mq.groups.alter(group, changes)
        show([_described(mq.groups.describe(group))], session.output, _DESCRIBED)


@groups.command("remove-members", help=f"Members go, and what they had is given to others at once. {NEEDS_ANSWER}")
def remove_members(
    ctx: typer.Context,
    group: Name,
    member: Annotated[list[str] | None, typer.Option(metavar="ID", help="A member's id; repeatable.")] = None,
    instance: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="The instance id of a static member; repeatable.")
    ] = None,
) -> None:
    if not member and not instance:
        raise typer.BadParameter("who is to go?", param_hint="--member or --instance")
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        mq.groups.remove_members(group, member or [], instance or [])
        show([_described(mq.groups.describe(group))], session.output, _DESCRIBED)


@groups.command()
def lag(ctx: typer.Context, group: Name) -> None:
    """Per partition how far a group has committed, and how much is left up to the last stable offset.

    Markers and aborted messages count as left, too. pending: the open transaction that has offsets for the partition.
    """
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_lag, mq.groups.lag(group)), session.output, _COLUMNS)


def _assignments_at(mq: Connection, group: str, at: str) -> list[dict[str, Any]]:
    """As the tables tell it. Raises GroupIdNotFound."""
    from lakemq.jobs.sql import connected

    try:
        time = parse_time(at)
    except ValueError:
        raise typer.BadParameter(f"{at!r} is no time in ISO 8601", param_hint="--at") from None
    mq.groups.describe(group)
    with connected(mq.namespace) as tables:
        found = tables.execute(_AT, {"group": group, "at": time}).fetchall()
    return [dict(zip(_ASSIGNMENTS_AT, row, strict=True)) for row in found]


_AT = """\
SELECT "group", topic, partition, state, owner, since, until, reason
FROM assignment_history
WHERE "group" = $group AND since <= $at AND (until > $at OR until IS NULL)
ORDER BY topic, partition"""


def _described(one: GroupInfo) -> dict[str, Any]:
    return {**asdict(one), "idle_since": of_millis(one.idle_since_ms), "expires_at": of_millis(one.expires_at_ms)}


def _lag(one: PartitionLag) -> dict[str, Any]:
    return {
        "group": one.group,
        "topic": one.topic,
        "partition": one.partition,
        "committed_offset": one.committed_offset,
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
        "lag": one.lag,
        "deleted": one.deleted,
        "expired": one.expired,
        "committed_at": of_millis(one.committed_at_ms),
        "metadata": one.metadata,
        "pending": one.pending,
    }
