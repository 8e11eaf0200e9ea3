"""What the demo's report shows of its group: who had which partition when, and how much was left."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa

from lakemq.jobs.demo.answers import HANDOFFS, OWNERS, Answers
from lakemq.jobs.demo.crew import Crew
from lakemq.jobs.report import INK, MUTED, Report

_COLORS = {"Ann": "#2563a8", "Ben": "#c2571a", "Cem": "#2e7d4f", "Dee": "#8b5fbf"}
_PATTERNS = {"ready": "", "paused": "/", "unbound": "x", "unassigned": "."}


def add_crew(report: Report, crew: Crew, answers: Answers) -> None:
    began, ended = (datetime.fromtimestamp(s, timezone.utc) for s in (crew.lags[0][0], crew.lags[-1][0]))
    report.add_section(
        OWNERS.title,
        "Processes share the flights as a queue: one joins, one is killed, one restarts under its instance id, one "
        "leaves. Hatched: not given out for a moment, until its owner has acknowledged what it has, or is back, or is "
        "given up.",
        figure=_owners(answers.owners, crew, began, ended),
        columns=answers.owners.column_names,
        rows=list(zip(*answers.owners.slice(0, 12).to_pydict().values(), strict=True)),
        source=OWNERS.sql,
    )
    again = sum(answers.handoffs.column("redelivered").to_pylist())
    times = [datetime.fromtimestamp(s, timezone.utc) for s, _ in crew.lags]
    lag = go.Scatter(x=times, y=[left for _, left in crew.lags], mode="lines", line={"color": INK, "width": 2})
    report.add_section(
        HANDOFFS.title,
        f"{again:,} messages were delivered again, all of them with a higher count. The line is what was left to be "
        "handled: in the end the members hurried.",
        figure=_with_events(go.Figure(lag, {"height": 300, "yaxis": {"title": "lag, messages"}}), crew, began, ended),
        columns=answers.handoffs.column_names,
        rows=list(zip(*answers.handoffs.to_pydict().values(), strict=True)),
        source=HANDOFFS.sql,
    )


def _owners(history: pa.Table, crew: Crew, began: datetime, ended: datetime) -> go.Figure:
    """A line per partition, a bar per time in which it was in one state with one owner."""
    figure = go.Figure(layout={"height": 360, "barmode": "overlay", "yaxis": {"type": "category"}})
    bars: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in history.to_pylist():
        who = crew.names.get(row["owner"] or "", "nobody")
        bars.setdefault((who, row["state"]), []).append(row)
    for (who, state), rows in sorted(bars.items()):
        lengths = [1000 * max(((row["until"] or ended) - row["since"]).total_seconds(), 0.02) for row in rows]
        figure.add_bar(
            orientation="h",
            base=[row["since"] for row in rows],
            x=lengths,
            y=[f"partition {row['partition']}" for row in rows],
            name=who if state == "ready" else f"{who}, {state}",
            marker={
                "color": _COLORS.get(who, MUTED),
                "pattern": {"shape": _PATTERNS.get(state, ""), "fgcolor": "#ffffff"},
            },
            hovertext=[f"{state}: {row['reason']}" for row in rows],
        )
    return _with_events(figure, crew, began, ended)


def _with_events(figure: go.Figure, crew: Crew, began: datetime, ended: datetime) -> go.Figure:
    for event in crew.events:
        at = datetime.fromtimestamp(event.began_s, timezone.utc)
        figure.add_vline(x=at, line={"color": INK, "width": 1, "dash": "dot"})
        figure.add_annotation(
            x=at, y=1.02, yref="paper", text=event.what, textangle=-20, showarrow=False, xanchor="left"
        )
    figure.update_layout(margin={"t": 90})
    return figure.update_xaxes(type="date", range=[began, ended])
