"""Groups: members, who owns what and since when, lag, and what holds deliveries up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.topics import list_settings
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import offer_change, offer_cures, read_text
from lakemq.jobs.console.console import Console, quote_sql
from lakemq.jobs.console.pages.charts import offer_ranges, read_last, read_minutes
from lakemq.jobs.console.pages.queries import draw_or_explain
from lakemq.jobs.reports.history_report import draw_groups, draw_owners

if TYPE_CHECKING:
    from lakemq.engine.client.groups.group_info import AssignmentInfo, GroupInfo
    from lakemq.engine.client.groups.lag import PartitionLag

_FACTS = (
    "state, protocol, assignor, generation, leader, members, lag, lag_counted_from, unacknowledged, consumption_rate,"
    " expired, delay_left_ms, expires_at_ms, coordinator"
)
_MEMBERS = "member_id, instance_id, client_id, host, process_id, partitions, joined_at_ms, max_poll_interval_ms"
_HANDOFF_COLUMNS = "topic, partition, from_member, to_member, began_at, took_ms, reason, redelivered"
_HANDOFFS = f"SELECT {_HANDOFF_COLUMNS} FROM handoffs"

_OWNERS = """\
SELECT topic, partition, owner, since, until, reason
FROM assignment_history
WHERE `group` = {group} AND owner IS NOT NULL AND (until IS NULL OR until >= timestamp_millis({begin_ms}))
ORDER BY since LIMIT 1000"""


def read_groups(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the list of groups."""
    text = read_text(inputs, "text", "")
    with console.observer.look() as observation:
        infos = [info for info in observation.groups.all() if text.lower() in info.group.lower()]
    columns = "group, protocol, state, members, partitions, lag, unacknowledged, consumption_rate, waits_for"
    table = ui.list_records("Groups", infos, columns, "No name has this text." if text else "There is no group yet.")
    return ui.Page("Groups", [ui.make_filter("/groups", "text in the name", text), table])


def read_group(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of one group."""
    name, minutes = read_text(inputs, "name"), read_minutes(inputs)
    with console.observer.look() as observation:
        groups = observation.groups
        info, lags = groups.describe(name), groups.lag(name)
        is_known = name in observation.state.groups
        members = groups.members(name) if is_known else []
        assignments = groups.assignments(name) if is_known else []
    parts: list[ui.Part] = [
        *_warn(info),
        *offer_cures(console, [command for stall in info.stalls for command in stall.commands]),
        ui.list_facts("Group", info, _FACTS),
        _list_partitions(lags, assignments),
        ui.list_records(
            "Members",
            members,
            f"{_MEMBERS}, change" if console.settings.allow_changes else _MEMBERS,
            "The group has no members now.",
            change=lambda member: ui.Link(
                "remove", ui.make_link("/change/remove-member", group=name, member=member.member_id)
            ),
        ),
        offer_ranges("/group", name=name),
        *draw_groups(read_last(console, minutes, group=name), by=0),
        *_draw_owners(console, name, minutes),
        *_list_handoffs(console, name),
        ui.list_records("Settings", list_settings(info), "setting, value, set"),
    ]
    if console.settings.allow_changes:
        parts.append(offer_change("alter-group", info.settings, group=name))
        parts += [offer_change(change, group=name) for change in ("reset-offsets", "delete-group")]
    return ui.Page(name, parts, [ui.Link("Groups", "/groups")])


def _warn(info: GroupInfo) -> list[ui.Part]:
    # a wait that ends by itself needs no cure
    notices: list[ui.Part] = [
        ui.Notice(str(stall), "info" if stall.patience_ms is None else "bad") for stall in info.stalls
    ]
    if info.problem:
        notices.append(ui.Notice(info.problem, "bad"))
    if info.deleted:
        notices.append(ui.Notice(f"{info.deleted:,} offsets were deleted before the group had consumed them.", "bad"))
    return notices


def _list_partitions(lags: list[PartitionLag], assignments: list[AssignmentInfo]) -> ui.Table:
    owned = {(assignment.topic, assignment.partition): asdict(assignment) for assignment in assignments}
    return ui.list_records(
        "Partitions: who owns what",
        ({**owned.get((lag.topic, lag.partition), {}), **asdict(lag)} for lag in lags),
        "topic, partition, committed_offset, last_stable_offset, lag, unacknowledged, pending, state, owner,"
        " next_owner, since_ms, reason",
        "The group has no partitions.",
        partition=lambda row: ui.Link(
            str(row["partition"]),
            ui.make_link("/messages", topic=row["topic"], partition=row["partition"], **{"from": row["next_offset"]}),
        ),
        next_owner=_name_next_owner,
    )


def _name_next_owner(row: Mapping[str, Any]) -> str | None:
    if row.get("lost_by") is not None:
        return f"waits for {row['lost_by']}"
    return None if row.get("target") == row["owner"] else row.get("target")


def _draw_owners(console: Console, name: str, minutes: int) -> list[ui.Part]:
    end = datetime.now(UTC)
    begin = end - timedelta(minutes=minutes)

    def draw() -> list[ui.Part]:
        names = ("topic", "partition", "owner", "since", "until", "reason")
        periods = console.read_rows(_OWNERS.format(group=quote_sql(name), begin_ms=int(begin.timestamp() * 1000)))
        rows = (dict(zip(names, period, strict=True)) for period in periods)
        return draw_owners(f"Owners of partitions, last {minutes} minutes", rows, begin, end)

    return draw_or_explain("The history of owners", draw)


def _list_handoffs(console: Console, name: str) -> list[ui.Part]:
    def draw() -> list[ui.Part]:
        names = _HANDOFF_COLUMNS.split(", ")
        moves = console.read_rows(f"{_HANDOFFS} WHERE `group` = {quote_sql(name)} ORDER BY began_at DESC LIMIT 50")
        rows = [dict(zip(names, move, strict=True)) for move in moves]
        return [ui.list_records("Handoffs, newest first", rows, _HANDOFF_COLUMNS, "No partition has moved yet.")]

    return draw_or_explain("The list of handoffs", draw)
