"""Groups: members, who owns what and since when, lag, and what holds deliveries up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.groups import list_settings
from lakemq.jobs.console.changes import read_number, read_text
from lakemq.jobs.console.console import Console, quote_sql
from lakemq.jobs.console.pages.queries import draw_or_explain
from lakemq.jobs.console.parts import (
    Actions,
    Facts,
    Field,
    Form,
    Link,
    Notice,
    OwnershipPeriod,
    Page,
    Part,
    Picture,
    Table,
    draw_ownership,
    format_length,
    format_time,
    make_link,
)

if TYPE_CHECKING:
    from lakemq.engine.client.groups.group_info import AssignmentInfo, GroupInfo, MemberInfo
    from lakemq.engine.client.groups.lag import PartitionLag

_HOME = Link("Groups", "/groups")
_MOST_PARTITIONS = 64
"""How many partitions the picture of owners shows."""

_HANDOFFS = """\
SELECT topic, partition, from_member, to_member, began_at, took_ms, reason, redelivered
FROM handoffs WHERE `group` = {group} ORDER BY began_at DESC LIMIT 50"""

_OWNERS = """\
SELECT topic, partition, owner, since, until, reason
FROM assignment_history
WHERE `group` = {group} AND owner IS NOT NULL AND (until IS NULL OR until >= timestamp_millis({begin_ms}))
ORDER BY since LIMIT 1000"""


def read_groups(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the list of groups."""
    with console.observer.look() as observation:
        infos = observation.groups.all()
    rows = [
        [
            Link(info.group, make_link("/group", name=info.group)),
            info.protocol or "-",
            info.state,
            info.members,
            info.partitions,
            info.lag,
            info.unacknowledged,
            info.consumption_rate,
            "; ".join(info.waits_for),
        ]
        for info in infos
    ]
    columns = (
        "group",
        "protocol",
        "state",
        "members",
        "partitions",
        "lag",
        "unacknowledged",
        "consumed per second",
        "waits for",
    )
    return Page("Groups", [Table("Groups", columns, rows, "There is no group yet.")])


def read_group(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of one group."""
    name, minutes = read_text(inputs, "name"), read_number(inputs, "minutes", 30, low=1, high=7 * 24 * 60)
    with console.observer.look() as observation:
        groups = observation.groups
        info, lags = groups.describe(name), groups.lag(name)
        is_known = name in observation.state.groups
        members = groups.members(name) if is_known else []
        assignments = groups.assignments(name) if is_known else []
    parts: list[Part] = [
        *_warn(info),
        *(_offer_cures(info) if console.settings.allow_changes else []),
        _describe(info),
        _list_partitions(lags, assignments),
        _list_members(members),
        *_draw_owners(console, name, minutes),
        *_list_handoffs(console, name),
        Table(
            "Settings",
            ("setting", "value", "set"),
            [[row["setting"], row["value"], row["set"]] for row in list_settings(info)],
        ),
    ]
    if console.settings.allow_changes:
        parts += _offer_changes(name)
    return Page(name, parts, [_HOME])


def _warn(info: GroupInfo) -> list[Part]:
    # a wait that ends by itself needs no cure
    notices: list[Part] = [Notice(str(stall), "info" if stall.patience_ms is None else "bad") for stall in info.stalls]
    if info.problem:
        notices.append(Notice(info.problem, "bad"))
    if info.deleted:
        notices.append(Notice(f"{info.deleted:,} offsets were deleted before the group had consumed them.", "bad"))
    return notices


def _offer_cures(info: GroupInfo) -> list[Part]:
    """Return links to the changes that end what holds the group up."""
    cures: dict[str, Link] = {}
    for stall in info.stalls:
        if stall.transactional_id is not None:
            link = Link(f"Abort {stall.transactional_id}", make_link("/change/abort", id=stall.transactional_id))
        elif stall.kind in ("no heartbeat", "no poll", "silent", "handover"):
            href = make_link("/change/remove-member", group=info.group, member=stall.member_id)
            link = Link(f"Remove {stall.member_id}", href)
        else:
            continue  # only its program can end it
        cures[link.href] = link
    return [Actions([*cures.values()])] if cures else []


def _describe(info: GroupInfo) -> Facts:
    return Facts(
        "Group",
        [
            ("state", info.state),
            ("protocol", info.protocol or "-"),
            ("assignor", info.assignor or "-"),
            ("generation", info.generation),
            ("leader", info.leader or "-"),
            ("members", info.members),
            ("lag", info.lag),
            ("lag counted from", ", ".join(info.lag_counted_from) or "-"),
            ("unacknowledged", info.unacknowledged),
            ("consumed per second", info.consumption_rate),
            ("expired before delivery", info.expired),
            ("waits for new or lost members", format_length(info.delay_left_ms) if info.delay_left_ms else "-"),
            ("offsets expire at", format_time(info.expires_at_ms)),
            ("coordinator", info.coordinator or "-"),
        ],
    )


def _list_partitions(lags: list[PartitionLag], assignments: list[AssignmentInfo]) -> Table:
    owners = {(assignment.topic, assignment.partition): assignment for assignment in assignments}
    rows = []
    for lag in lags:
        assignment = owners.get((lag.topic, lag.partition))
        rows.append(
            [
                lag.topic,
                Link(
                    str(lag.partition),
                    make_link("/messages", topic=lag.topic, partition=lag.partition, **{"from": lag.next_offset}),
                ),
                "-" if lag.committed_offset is None else lag.committed_offset,
                lag.last_stable_offset,
                lag.lag,
                lag.unacknowledged,
                lag.pending or "",
                assignment.state if assignment else "",
                (assignment.owner or "") if assignment else "",
                _name_target(assignment),
                format_time(assignment.since_ms) if assignment else "",
                assignment.reason if assignment else "",
            ]
        )
    columns = (
        "topic",
        "partition",
        "committed",
        "last stable offset",
        "lag",
        "unacknowledged",
        "pending in transaction",
        "state",
        "owner",
        "next owner",
        "since",
        "reason",
    )
    return Table("Partitions: who owns what", columns, rows, "The group has no partitions.")


def _name_target(assignment: AssignmentInfo | None) -> str:
    if assignment is None:
        return ""
    if assignment.lost_by is not None:
        return f"waits for {assignment.lost_by}"
    return "" if assignment.target == assignment.owner else assignment.target or ""


def _list_members(members: list[MemberInfo]) -> Table:
    rows = [
        [
            member.member_id,
            member.instance_id or "",
            member.client_id or "",
            member.host or "",
            str(member.process_id or ""),
            ", ".join(member.partitions),
            format_time(member.joined_at_ms),
            format_length(member.max_poll_interval_ms),
        ]
        for member in members
    ]
    columns = ("member", "instance", "client", "host", "process", "partitions", "joined", "longest time between polls")
    return Table("Members", columns, rows, "The group has no members now.")


def _draw_owners(console: Console, name: str, minutes: int) -> list[Part]:
    end = datetime.now(UTC)
    begin = end - timedelta(minutes=minutes)

    def draw() -> list[Part]:
        query = _OWNERS.format(group=quote_sql(name), begin_ms=int(begin.timestamp() * 1000))
        periods = [
            OwnershipPeriod(f"{topic}-{partition}", owner, since, until, reason)
            for topic, partition, owner, since, until, reason in console.read_rows(query)
        ]
        shown = sorted({period.partition for period in periods})[:_MOST_PARTITIONS]
        if not shown:
            return []
        title = f"Owners of partitions, last {minutes} minutes"
        return [Picture(draw_ownership(title, [period for period in periods if period.partition in shown], begin, end))]

    return draw_or_explain("The history of owners", draw)


def _list_handoffs(console: Console, name: str) -> list[Part]:
    def draw() -> list[Part]:
        rows = [
            [
                topic,
                partition,
                from_member,
                to_member or "-",
                format_time(began_at),
                format_length(took_ms),
                reason,
                count,
            ]
            for topic, partition, from_member, to_member, began_at, took_ms, reason, count in console.read_rows(
                _HANDOFFS.format(group=quote_sql(name))
            )
        ]
        columns = ("topic", "partition", "from", "to", "began", "took", "reason", "redelivered")
        return [Table("Handoffs, newest first", columns, rows, "No partition has moved yet.")]

    return draw_or_explain("The list of handoffs", draw)


def _offer_changes(name: str) -> list[Part]:
    group = Field("group", "group", name, is_hidden=True)
    return [
        Form(
            "Reset offsets",
            "/change/reset-offsets",
            [group, Field("topic", "topic (empty: all)"), Field("to", "earliest, latest, an offset or a time")],
            "Continue",
            is_change=True,
        ),
        Form(
            "Change a setting",
            "/change/alter-group",
            [
                group,
                Field("setting", "setting, such as max.redelivery.count"),
                Field("value", "new value; empty: the default"),
            ],
            "Continue",
            is_change=True,
        ),
    ]
