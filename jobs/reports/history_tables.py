"""The history of a namespace as rows, for terminals and for the console."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lakemq.jobs.commands.shared.times import from_millis
from lakemq.jobs.reports.history import History

Row = Mapping[str, Any]

GROUPS = ("group", "lag_at_end", "lag_at_start", "out_per_s")
OWNERS = ("group", "topic", "partition", "state", "owner", "since")
TOPICS = ("topic", "in_per_s", "in_per_s_at_most")
HANDOFFS = ("group", "topic", "partition", "from_member", "to_member", "began_at", "took_ms", "reason")

CHANGES = ("changed_at", "kind", "subject", "client")


def list_lags(history: History) -> list[Row]:
    """Return the lag of each group at both ends of the time, and its mean rate. None: not known so far back."""
    return [
        {
            "group": group,
            "lag_at_end": None if math.isnan(lag[-1]) else int(lag[-1]),
            "lag_at_start": None if math.isnan(lag[0]) else int(lag[0]),
            "out_per_s": round(history.mean_rate(history.consumed[group]), 2) if group in history.consumed else None,
        }
        for group, lag in history.lag.items()
    ]


def list_owners_at_end(history: History) -> list[Row]:
    """Return who owned each partition at the end of the time."""
    end = from_millis(history.timeline.until_ms)
    assert end is not None
    return [
        {name: row[name] for name in OWNERS}
        for row in history.owners.to_pylist()
        if row["until"] is None or row["until"] >= end
    ]


def list_topic_rates(history: History) -> list[Row]:
    """Return the messages per second that came into each topic: their mean, and the most."""
    return [
        {
            "topic": topic,
            "in_per_s": round(history.mean_rate(rates), 2),
            "in_per_s_at_most": round(float(rates.max()), 2),
        }
        for topic, rates in history.appended.items()
    ]


def list_handoffs(history: History) -> list[Row]:
    """Return the handoffs, newest first."""
    return [{name: row[name] for name in HANDOFFS} for row in history.handoffs.to_pylist()]


def list_changes(history: History) -> list[Row]:
    """Return who changed topics, groups, offsets and messages on request, newest first."""
    return [*history.changes.to_pylist()]


def list_tables(history: History) -> list[tuple[str, Sequence[str], list[Row]]]:
    """Return (name, columns, rows) of each table, in reading order."""
    return [
        ("groups", GROUPS, list_lags(history)),
        ("owners", OWNERS, list_owners_at_end(history)),
        ("topics", TOPICS, list_topic_rates(history)),
        ("handoffs", HANDOFFS, list_handoffs(history)),
        ("changes", CHANGES, list_changes(history)),
    ]
