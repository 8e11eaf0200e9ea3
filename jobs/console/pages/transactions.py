"""Transactions: who holds readers of committed messages up, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.transactions import STATES
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.inputs import read_choice
from lakemq.jobs.console.parts import Field, Form, Link, Page, Part, Table
from lakemq.jobs.console.rendering import format_length, format_time, make_link

if TYPE_CHECKING:
    from lakemq.engine.client.transactions.operations import TransactionInfo

_MOST_ROWS = 500
_COLUMNS = (
    "transactional id",
    "state",
    "open for",
    "timeout",
    "started",
    "partitions",
    "groups",
    "problem",
    "producer",
)


def read_transactions(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return transactional ids, those with an open transaction first."""
    state = read_choice(inputs, "state", ("all", *STATES))
    with console.observer.look() as observation:
        infos = observation.transactions.all(() if state == "all" else (state,))
    infos.sort(key=lambda info: -(info.open_ms or 0))
    rows = [_make_row(console, info) for info in infos[:_MOST_ROWS]]
    note = f"{len(infos) - _MOST_ROWS:,} more are not shown." if len(infos) > _MOST_ROWS else ""
    columns = (*_COLUMNS, "") if console.settings.allow_changes else _COLUMNS
    parts: list[Part] = [
        Form("Filter", "/transactions", [Field("state", "state", state, ("all", *STATES))], "Show"),
        Table("Transactional ids", columns, rows, "There is none.", note),
    ]
    return Page("Transactions", parts)


def _make_row(console: Console, info: TransactionInfo) -> list[Any]:
    row: list[Any] = [
        info.transactional_id,
        info.state,
        format_length(info.open_ms),
        format_length(info.timeout_ms),
        format_time(info.started_at_ms),
        ", ".join(info.partitions),
        ", ".join(info.groups),
        info.error or "",
        f"{info.producer_id}, epoch {info.producer_epoch}",
    ]
    if console.settings.allow_changes:
        is_open = info.state == "Ongoing"
        row.append(Link("abort", make_link("/change/abort", id=info.transactional_id)) if is_open else "")
    return row
