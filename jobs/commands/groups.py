"""`lakemq groups`: consumer groups, their members, assignments, offsets and lag; and `lakemq offsets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands import group_operations
from lakemq.jobs.commands.messages import Isolation
from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, connect, ensure_sequencer, show
from lakemq.jobs.commands.shared.times import from_millis, parse_moment, parse_past_option, to_record
from lakemq.jobs.commands.topics import list_settings
from lakemq.jobs.output import note

if TYPE_CHECKING:
    from datetime import datetime

    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.operator_tools import Observation


groups = typer.Typer(no_args_is_help=True, help="Consumer groups: members, assignments, offsets and lag.")

_GROUP_COLUMNS = (
    "group, topic, partition, committed_offset, next_offset, counted_from, last_stable_offset, high_watermark, lag,"
    " unacknowledged, owner, deleted, expired, committed_at, pending"
)

_DESCRIBED = (
    "group, state, protocol, assignor, problem, waits_for, delay_left_ms, generation, leader, members, partitions,"
    " lag, lag_counted_from, unacknowledged, consumption_rate, deleted, expired, expires_at, shard, coordinator"
)
_SETTINGS = "group, setting, value, set"
_STATE = "group, coordinator, assignor, state, members, leader, generation, waits_for, delay_left_ms"
_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_MEMBERS = "group, member_id, instance_id, client_id, host, process_id, assignors, partitions, topics, joined_at"
_HANDOFFS = "topic, partition, from_member, to_member, began_at, took_ms, reason, redelivered, to_offset, cut_keys"
_ASSIGNMENTS_AT = "group, topic, partition, state, owner, since, until, reason"
_ASSIGNMENTS = "group, topic, partition, state, owner, target, lost_by, since, reason, delay_left_ms"

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Config = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the group; repeatable.")]


@groups.command("list")
def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help=f"Only groups in this state ({', '.join(_STATES)}); repeatable."),
    ] = None,
) -> None:
    """List the groups that have committed offsets or members, or were created, by name."""
    for name in state or ():
        if name not in _STATES:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(_STATES)}", param_hint="--state")
    with connect() as mq:
        show(map(to_record, mq.groups.all(state or ())), ("group", "state"))


@groups.command()
def describe(
    group: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups.")] = None,
    all_groups: group_operations.AllGroups = False,
    state: Annotated[
        bool, typer.Option("--state", help="Only the state of each group, and what it waits for.")
    ] = False,
    members: Annotated[bool, typer.Option("--members", help="The members, as in `groups members`.")] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="The settings, and which of them are set. JSON output always has them.")
    ] = False,
) -> None:
    """Show groups: state, protocol, members, number of partitions, and the lag over all of them.

    lag_counted_from: the start of the lag, as in `groups lag`. deleted: offsets that retention or delete-records
    deleted before the group had consumed them. problem: why the group does not use the assignor that was asked for.
    waits_for: sentences about what holds the group up: a member that must give up partitions first, sends no
    heartbeats or does not poll, an open transaction, and in a queue group unacknowledged messages (JSON: stalls).
    expires_at: when the committed offsets are deleted if the group stays unused. delay_left_ms: how much longer the
    group waits for lost or new members before it assigns partitions. consumption_rate: offsets per second over the
    last minute (rate_window_ms in JSON). --settings: all settings of the group, and whether each is set or a default.
    """
    if state + members + settings > 1:
        raise typer.BadParameter("give only one of them", param_hint="--state, --members, --settings")
    with connect() as mq, mq.observer().look() as observation:
        observed_groups = observation.groups
        _warn_of_silence(mq, observation)
        if all_groups and not group:
            infos = observed_groups.all()
        else:
            infos = [observed_groups.describe(name) for name in group_operations.select_groups(mq, group, all_groups)]
        if members:
            listed = (member for info in infos if info.members for member in observed_groups.members(info.group))
            show(map(to_record, listed), _MEMBERS)
        elif settings:
            rows = ({"group": info.group, **row} for info in infos for row in list_settings(info))
            show(rows, _SETTINGS)
        else:
            show(map(to_record, infos), _STATE if state else _DESCRIBED)


@groups.command("members")
def list_members(group: Name) -> None:
    """List the members of a group with their partitions. The first member is the leader.

    assignors: the assignors that the member supports, best first; empty: all of them.
    """
    with connect() as mq:
        show(map(to_record, mq.groups.members(group)), _MEMBERS)


@groups.command()
def assignments(
    group: Name,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show the assignments at this time: ISO 8601 (by default UTC), or a time of day, such as 02:10.",
        ),
    ] = None,
) -> None:
    """Show the owner of each partition, since when, and why.

    target: the member that will own the partition next. lost_by: the lost member for which an unbound partition waits.
    delay_left_ms: how much longer it does, or a paused partition of a queue group waits for its owner.

    --at reads the tables, which keep the history for group.history.ms. It shows no targets.
    """
    with connect() as mq:
        if at is not None:
            show(_assignments_at(mq, group, at), _ASSIGNMENTS_AT)
            return
        show(map(to_record, mq.groups.assignments(group)), _ASSIGNMENTS)


@groups.command()
def handoffs(
    group: Name,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys",
            help="Count the keys whose messages both members acknowledged. This reads the keys of all these messages.",
        ),
    ] = False,
) -> None:
    """Show how partitions moved between members: when, how long it took, and how many messages were redelivered.

    A key is cut if both members acknowledged messages with it; for the new owner, messages committed so far count.
    cut_keys is empty without --keys, while the partition has no owner, and where messages were deleted. The tables
    keep the history for group.history.ms.
    """
    from lakemq.engine.client.live_tables import count_cut_keys, read_handoffs

    with connect() as mq:
        lags, moves = mq.groups.lag(group), read_handoffs(mq.namespace, group)
        counts = count_cut_keys(mq, lags, moves) if keys else [None] * len(moves)
        rows = [{**to_record(move), "cut_keys": count} for move, count in zip(moves, counts, strict=True)]
        show(rows, _HANDOFFS)


@groups.command(help=f"Create a group with its settings before its first member joins. {NEEDS_SEQUENCER}")
def create(group: Name, config: Config = None) -> None:
    from lakemq.engine.client.topics import parse_config

    with connect() as mq, ensure_sequencer(mq):
        mq.groups.create(group, parse_config(config or []))
        show([to_record(mq.groups.describe(group))], _DESCRIBED)


@groups.command(help=f"Change settings of a group. {NEEDS_SEQUENCER}")
def alter(
    group: Name,
    config: Config = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Reset a setting to its default; repeatable.")
    ] = None,
) -> None:
    from lakemq.engine.client.topics import parse_config

    changes: dict[str, Any] = {**parse_config(config or []), **dict.fromkeys(reset or ())}
    if not changes:
        raise typer.BadParameter("there is nothing to change", param_hint="lakemq groups alter")
    with connect() as mq, ensure_sequencer(mq):
        mq.groups.alter(group, changes)
        show([to_record(mq.groups.describe(group))], _DESCRIBED)


@groups.command(
    "remove-members", help=f"Remove members; their partitions are assigned to others at once. {NEEDS_SEQUENCER}"
)
def remove_members(
    group: Name,
    member: Annotated[list[str] | None, typer.Option(metavar="ID", help="A member's id; repeatable.")] = None,
    instance: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="The instance id of a static member; repeatable.")
    ] = None,
) -> None:
    if not member and not instance:
        raise typer.BadParameter("name at least one member", param_hint="--member or --instance")
    with connect() as mq, ensure_sequencer(mq):
        mq.groups.remove_members(group, member or [], instance or [])
        show([to_record(mq.groups.describe(group))], _DESCRIBED)


@groups.command()
def lag(group: Name) -> None:
    """Show the committed offset and the lag of a group per partition.

    lag counts the offsets from next_offset on, including markers and aborted messages. Offsets that were deleted before
    the group read them are in deleted, and not in lag. counted_from says where the group reads on. committed: at the
    committed offset. start: where the group starts, before its first commit. log_start: at the start of the log, while
    the group has no start yet; then lag is the largest possible. unacknowledged: messages of a queue group that its
    owner has and has not acknowledged. owner: the member that has the partition. pending: the open transaction that
    holds offsets for the partition.
    """
    with connect() as mq, mq.observer().look() as observation:
        _warn_of_silence(mq, observation)
        show(map(to_record, observation.groups.lag(group)), _GROUP_COLUMNS)


group_operations.add_to(groups)


def _warn_of_silence(mq: Connection, observation: Observation) -> None:
    """Print on stderr that figures are old, if the leader is silent or has ended."""
    from lakemq.engine.client.sequencers import describe_silence, read_leadership

    if silence := describe_silence(read_leadership(mq.namespace.files, observation.state)):
        note(silence)


def _assignments_at(mq: Connection, group: str, at: str) -> list[dict[str, Any]]:
    """Read the assignments at a time from the tables. Raises GroupIdNotFound."""
    from lakemq.engine.client.sql.query import connect_duckdb

    time = parse_past_option(at, "--at")
    mq.groups.describe(group)
    with connect_duckdb(mq.namespace) as tables:
        rows = tables.execute(_AT, {"group": group, "at": time}).fetchall()
    return [dict(zip(_ASSIGNMENTS_AT.split(", "), row, strict=True)) for row in rows]


_AT = """\
SELECT "group", topic, partition, state, owner, since, until, reason
FROM assignment_history
WHERE "group" = $group AND since <= $at AND (until > $at OR until IS NULL)
ORDER BY topic, partition"""


# `lakemq offsets`: offsets of partitions, at either end of the log or at a time.


_OFFSET_COLUMNS = "topic, partition, offset, timestamp"
_ENDS = ("earliest", "latest")


def offsets(
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
    moment = _parse_time(time)
    with connect() as mq:
        records = [
            {"topic": topic, "partition": number, "offset": offset, "timestamp": from_millis(timestamp_ms)}
            for topic in topics
            for number, offset, timestamp_ms in _find_offsets(mq, topic, moment, isolation, partition)
        ]
    show(records, _OFFSET_COLUMNS)


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
        # A message after the end is one of an open transaction, which this isolation does not see.
        offset, timestamp_ms = message if message is not None and message[0] < ends[number] else (None, None)
        yield number, offset, timestamp_ms
