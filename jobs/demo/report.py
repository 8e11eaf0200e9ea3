"""The demo's report: one picture each of SQL, the group, the transactions and the delayed messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa

from lakemq.jobs.demo.checks import Check
from lakemq.jobs.demo.group import Team, owner_name
from lakemq.jobs.demo.questions import DELAY_BY_VISIBILITY, OWNERS, RELEASES, TRANSACTIONS, Answers
from lakemq.jobs.demo.reminders import SPEED, Reminders, lateness_ms
from lakemq.jobs.report import ACCENT, INK, MUTED, Report

_COLORS = {"Ann": "#2563a8", "Ben": "#c2571a", "Cem": "#2e7d4f", "Dee": "#8b5fbf"}
_MOST_POINTS = 3_000


def build_report(
    tiles: Sequence[tuple[str, str]], checks: Sequence[Check], answers: Answers, team: Team, reminders: Reminders
) -> Report:
    """Return the report. tiles: a figure, and what it measures."""
    report = Report(
        "LakeMQ: a year of flights as messages",
        "The flights that left New York in 2013, published from Spark and keyed by tail number, and the weather at "
        "the airports, sent from Python; read back, checked, and asked in SQL.",
    )
    report.add_tiles(tiles)
    report.add_section(
        "What was checked",
        "Each of these stops the demo with an error where it does not hold.",
        columns=("Claim", "Evidence"),
        rows=[(check.claim, check.evidence) for check in checks],
    )
    _add_delay_by_visibility(report, answers.delay_by_visibility)
    _add_owners(report, answers.owners, team)
    _add_transactions(report, answers.transactions, team)
    _add_releases(report, answers.releases, reminders)
    return report


def _add_delay_by_visibility(report: Report, answer: pa.Table) -> None:
    rows = answer.to_pydict()
    means = [minutes / count for minutes, count in zip(rows["delay_minutes"], rows["flights"], strict=True)]
    counts = [f"{count:,} flights" for count in rows["flights"]]
    axes = {"xaxis": {"title": "visibility in miles", "type": "category"}, "yaxis": {"title": "mean delay in minutes"}}
    bars = go.Bar(x=rows["visibility"], y=means, marker_color=ACCENT, text=counts, textposition="outside")
    report.add_section(
        DELAY_BY_VISIBILITY.title,
        "Two topics, joined: the mean delay at departure, by the visibility at that airport in that hour. The messages "
        "are rows of Delta tables; DuckDB has read them here, and Spark reads them with the same text.",
        figure=go.Figure(bars, {"height": 300, **axes}),
        source=DELAY_BY_VISIBILITY.sql,
    )


def _add_owners(report: Report, history: pa.Table, team: Team) -> None:
    """Add a line per partition, with a bar for each time in which it had an owner."""
    figure = go.Figure(layout={"height": 320, "barmode": "overlay", "yaxis": {"type": "category"}})
    ended = max(row["until"] or row["since"] for row in history.to_pylist())
    for name, color in _COLORS.items():
        owned = [r for r in history.to_pylist() if r["state"] == "ready" and owner_name(r["owner"]) == name]
        figure.add_bar(
            name=name,
            orientation="h",
            base=[row["since"] for row in owned],
            x=[_milliseconds(row["since"], row["until"] or ended) for row in owned],
            y=[f"partition {row['partition']}" for row in owned],
            marker_color=color,
        )
    report.add_section(
        OWNERS.title,
        "Processes share the flights. When one joins, is killed or comes back, partitions move.",
        figure=_with_events(figure, team),
        source=OWNERS.sql,
    )


def _add_transactions(report: Report, history: pa.Table, team: Team) -> None:
    """Add a line per process, with a bar for each transaction."""
    figure = go.Figure(layout={"height": 260, "barmode": "overlay", "yaxis": {"type": "category"}})
    rows = history.to_pylist()
    for state, name, color in (("CompleteCommit", "committed", ACCENT), ("CompleteAbort", "aborted", _COLORS["Ben"])):
        ended = [row for row in rows if row["state"] == state]
        figure.add_bar(
            name=name,
            orientation="h",
            base=[row["started_at"] for row in ended],
            x=[_milliseconds(row["started_at"], row["updated_at"]) for row in ended],
            y=[row["transactional_id"].partition("-")[2] for row in ended],
            marker={"color": color, "line": {"color": "#ffffff", "width": 1}},
        )
    report.add_section(
        TRANSACTIONS.title,
        "Each batch is one transaction: the alerts that it raises, and how far the group has read. What the killed "
        "process left open was aborted when it came back, and its flights were read again: no alert is missing, and "
        "none is there twice.",
        figure=_with_events(figure, team),
        source=TRANSACTIONS.sql,
    )


def _add_releases(report: Report, releases: pa.Table, reminders: Reminders) -> None:
    """Add a point per reminder: when it was due, and when it came."""
    late_s, numbers = lateness_ms(reminders, releases) / 1000, releases.column("number").to_numpy()
    due_s = (reminders.due_ms[numbers] - reminders.due_ms.min()) / 1000
    shown = np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST_POINTS)).astype(int)
    is_moved = np.isin(numbers[shown], list(reminders.moved))
    points = [
        go.Scatter(
            name=name,
            x=due_s[shown][chosen],
            y=(due_s + late_s)[shown][chosen],
            mode="markers",
            marker={"size": 6, "color": color, "opacity": 0.75},
        )
        for name, chosen, color in (("as first planned", ~is_moved, ACCENT), ("rescheduled", is_moved, _COLORS["Ben"]))
    ]
    axes = {"xaxis": {"title": "due, s after the first"}, "yaxis": {"title": "came, s after the first was due"}}
    report.add_section(
        RELEASES.title,
        f"{len(reminders.due_ms):,} reminders of departures, on a clock that runs {SPEED:,} times faster than the "
        f"flights'. {len(reminders.cancelled):,} were cancelled, as their flights never left, and "
        f"{len(reminders.moved)} rescheduled, as their flights left hours late.",
        figure=go.Figure(points, {"height": 320, **axes}),
        source=RELEASES.sql,
    )


def _with_events(figure: go.Figure, team: Team) -> go.Figure:
    text: dict[str, Any] = {"y": 1.02, "yref": "paper", "textangle": -15, "showarrow": False, "xanchor": "left"}
    for time_s, event in team.events:
        time = datetime.fromtimestamp(time_s, timezone.utc)
        figure.add_vline(x=time, line={"color": INK, "width": 1, "dash": "dot"})
        figure.add_annotation(x=time, text=event, font={"size": 11, "color": MUTED}, **text)
    return figure.update_xaxes(type="date")


def _milliseconds(since: datetime, until: datetime) -> float:
    # A bar of no length would not be drawn.
    return max((until - since).total_seconds() * 1000, 20)
