"""A namespace's history as sections of a report, for `lakemq report` and the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.output import to_iso
from lakemq.jobs.reports.history import (
    APPENDED,
    CHANGE_COLUMNS,
    CHANGES,
    CONSUMED,
    HANDOFFS,
    LAG,
    LATENESS,
    OWNERS,
    STEPS,
    History,
    Numbers,
    Row,
)
from lakemq.jobs.reports.report import Report

with needs("report"):
    import plotly.graph_objects as go

    from lakemq.jobs.console.parts import list_records

COLORS = ("#2563a8", "#c2571a", "#2e7d4f", "#8b5fbf", "#b8860b", "#0f7b83", "#a33b5c", "#52606d")

_MOST_LINES = len(COLORS)
_MOST_GROUPS = 10
_MOST_POINTS = 3_000
_MOST_ROWS = 100

_EPOCH = datetime.fromtimestamp(0, UTC)


def build_history_report(history: History, path: str) -> Report:
    """Return the report of a namespace's history, with its figures in reading order."""
    since, until = (_to_time(ms) for ms in (history.timeline.since_ms, history.timeline.until_ms))
    report = Report(
        "LakeMQ: what happened",
        f"{path} from {to_iso(since)} to {to_iso(until)}. {_describe_reach(history)}",
        _build_tiles(history),
    )
    add_throughput(report, history)
    add_latency(report, history)
    add_steps(report, history)
    add_lag(report, history)
    add_lateness(report, history)
    add_owners(report, history)
    add_handoffs(report, history)
    add_changes(report, history)
    return report


def _describe_reach(history: History) -> str:
    began = history.journal_since_ms
    if began is None:
        return "The journal has no decision of this time, so rates, latency and lag are empty (journal.retention.ms)."
    if not history.is_in_journal:
        return f"The journal begins at {to_iso(_to_time(began))}: rates, latency and lag are known from then on."
    return f"As of step {history.step:,}."


def _build_tiles(history: History) -> list[tuple[str, str]]:
    lags = [float(lag[-1]) for lag in history.lag.values() if not np.isnan(lag[-1])]
    late_ms = history.lateness["late_ms"].to_pylist()
    highest = history.latencies.highest
    return [
        (f"{history.message_count:,}", "messages came into topics"),
        (f"{history.step_count:,}", "steps were decided"),
        ("none" if highest is None else f"{highest:,.0f} ms", "longest from a message's timestamp to its step"),
        (f"{max(lags, default=0):,.0f}", "largest lag of a group at the end"),
        (f"{sum(history.lateness['messages'].to_pylist()):,}", "delayed messages were released"),
        (f"{max(late_ms, default=0):,} ms", "latest of them"),
        (f"{history.handoffs.num_rows:,}", "hand-offs of partitions"),
    ]


def add_throughput(report: Report, history: History) -> None:
    """Add messages per second: into each topic, and out of it by each group."""
    lines = {
        **{f"into {topic}": rates for topic, rates in history.appended.items()},
        **{f"by {group}": rates for group, rates in history.consumed.items()},
    }
    dashed = {f"by {group}" for group in history.consumed}
    report.add_section(
        "Throughput",
        "Messages per second that came into each topic, and offsets per second that each group committed or "
        f"acknowledged (dashed). {_describe_left_out(lines)}",
        figure=_draw_lines(history, lines, "messages per second", dashed),
        source=_sources(history, APPENDED, CONSUMED),
    )


def add_latency(report: Report, history: History) -> None:
    """Add the time from a message's timestamp to its step."""
    latencies = {"median": history.latencies.median, "99 of 100 batches": history.latencies.p99}
    report.add_section(
        "Latency of steps",
        "From the newest timestamp of a published batch to the step that decided it, where the timestamp is less than "
        "ten minutes old. It includes the time that the producer waited for more messages.",
        figure=_draw_lines(history, latencies, "ms", markers=True),
        source=_sources(history, APPENDED),
    )


def add_steps(report: Report, history: History) -> None:
    """Add the steps per second."""
    report.add_section(
        "Steps",
        "Steps per second. Without requests the sequencer decides few.",
        figure=_draw_lines(history, {"steps": history.steps}, "steps per second"),
        source=_sources(history, STEPS),
    )


def add_lag(report: Report, history: History) -> None:
    """Add the lag of each group."""
    by_size = dict(sorted(history.lag.items(), key=lambda item: -float(np.nan_to_num(item[1]).max())))
    report.add_section(
        "Lag",
        "Offsets that were left for each group up to the end of the log, markers and open transactions included. "
        f"It is computed back from the lag of step {history.step:,}. {_describe_left_out(by_size)}",
        figure=_draw_lines(history, by_size, "offsets"),
        source=_sources(history, LAG, APPENDED, CONSUMED),
    )


def add_lateness(report: Report, history: History) -> None:
    """Add a point per released range of delayed messages, and a row per topic."""
    rows = history.lateness.to_pylist()
    chosen = np.linspace(0, max(len(rows) - 1, 0), min(len(rows), _MOST_POINTS)).astype(int)
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_topic.setdefault(row["topic"], []).append(row)
    points = [rows[index] for index in chosen]
    figure = go.Figure(layout={"height": 280, "yaxis": {"title": "ms after it was due"}})
    for color, topic in zip(COLORS, by_topic, strict=False):
        shown = [row for row in points if row["topic"] == topic]
        times, late_ms = [row["ended_at"] for row in shown], [row["late_ms"] for row in shown]
        figure.add_scatter(name=topic, x=times, y=late_ms, mode="markers", marker={"size": 6, "color": color})
    report.add_section(
        "Lateness of delayed messages",
        "How long after the last due time of a range of messages its last message was released.",
        figure=_with_time_axis(figure, history),
        table=list_records(
            "Lateness",
            [_summarize_lateness(topic, ranges) for topic, ranges in sorted(by_topic.items())],
            "topic, messages, mean_late_ms, most_late_ms",
            has_links=False,
        ),
        source=_sources(history, LATENESS),
    )


def _summarize_lateness(topic: str, ranges: Sequence[Mapping[str, Any]]) -> Row:
    count = sum(range_["messages"] for range_ in ranges)
    weighted_ms = sum(range_["messages"] * range_["late_ms"] for range_ in ranges)
    most_ms = max(range_["late_ms"] for range_ in ranges)
    return {"topic": topic, "messages": count, "mean_late_ms": round(weighted_ms / count, 1), "most_late_ms": most_ms}


def add_owners(report: Report, history: History) -> None:
    """Add a figure per group that shows which member owned each partition, and when."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in history.owners.to_pylist():
        by_group.setdefault(row["group"], []).append(row)
    until = _to_time(history.timeline.until_ms)
    busiest = sorted(by_group, key=lambda group: -len(by_group[group]))[:_MOST_GROUPS]
    for group in sorted(busiest):
        rows = by_group[group]
        members = sorted({row["owner"] for row in rows if row["owner"]})
        colors = {member: COLORS[index % len(COLORS)] for index, member in enumerate(members)}
        report.add_section(
            f"Ownership: {group}",
            "Which member owned each partition, and when. A gap is a time without an owner.",
            figure=_with_time_axis(draw_owners(rows, until, colors, str), history),
            source=_sources(history, OWNERS),
        )


def draw_owners(
    rows: Sequence[Mapping[str, Any]], until: datetime, colors: Mapping[str, str], name_owner: Callable[[str], str]
) -> go.Figure:
    """Return a figure with a line per partition and a bar for each time in which it had an owner.

    Args:
        rows: topic (if there are several), partition, state, owner, since and until.
        until: the end of bars that have none.
        colors: name of an owner -> color; others are not drawn.
        name_owner: returns the name of an owner by its member id.
    """
    several = len({row.get("topic") for row in rows}) > 1
    topic_partitions = sorted({(row.get("topic"), row["partition"]) for row in rows}, reverse=True)
    names = {tp: f"{tp[0]} {tp[1]}" if several else f"partition {tp[1]}" for tp in topic_partitions}
    axis = {"type": "category", "categoryorder": "array", "categoryarray": list(names.values())}
    figure = go.Figure(layout={"height": 320, "barmode": "overlay", "yaxis": axis})
    for name, color in colors.items():
        owned = [row for row in rows if row["state"] == "ready" and name_owner(row["owner"]) == name]
        figure.add_bar(
            name=name,
            orientation="h",
            base=[row["since"] for row in owned],
            x=[bar_length_ms(row["since"], row["until"] or until) for row in owned],
            y=[names[row.get("topic"), row["partition"]] for row in owned],
            marker_color=color,
        )
    return figure


def bar_length_ms(since: datetime, until: datetime) -> float:
    """Return the length of a bar on an axis of time. A bar of no length would not be drawn."""
    return max((until - since) / timedelta(milliseconds=1), 20.0)


def add_handoffs(report: Report, history: History) -> None:
    """Add a row per hand-off, the newest first."""
    shown = history.handoffs.slice(0, _MOST_ROWS).to_pylist()
    left_out = history.handoffs.num_rows - len(shown)
    report.add_section(
        "Hand-offs",
        "Partitions that moved from one member to another: when, how long they had no owner, why, and how many "
        f"messages were delivered again.{f' Older ones that are left out: {left_out:,}.' if left_out else ''}",
        table=list_records("Hand-offs", shown, ", ".join(history.handoffs.column_names), has_links=False),
        source=_sources(history, HANDOFFS),
    )


def add_changes(report: Report, history: History) -> None:
    """Add a row per change that a client requested, the newest first."""
    left_out = history.changes.num_rows - _MOST_ROWS
    report.add_section(
        "Administrative changes",
        "Who changed topics, groups, offsets, delayed messages, dead letters and transactions on request."
        f"{f' Older ones that are left out: {left_out:,}.' if left_out > 0 else ''}",
        table=list_records(
            "Changes", history.changes.slice(0, _MOST_ROWS).to_pylist(), ", ".join(CHANGE_COLUMNS), has_links=False
        ),
        source=_sources(history, CHANGES),
    )


def _draw_lines(
    history: History,
    lines: Mapping[str, Numbers],
    title: str,
    dashed: set[str] | frozenset[str] = frozenset(),
    markers: bool = False,
) -> go.Figure:
    times = [_to_time(float(ms)) for ms in history.timeline.ends_ms]
    layout = {"height": 300, "showlegend": True, "yaxis": {"title": title, "rangemode": "tozero"}}
    figure = go.Figure(layout=layout)
    for index, (name, values) in enumerate(list(lines.items())[:_MOST_LINES]):
        line = {"color": COLORS[index], "dash": "dash" if name in dashed else "solid"}
        # NaN is a gap of the line: JSON has no number for it.
        shown = [None if np.isnan(value) else round(float(value), 3) for value in values]
        mode = "lines+markers" if markers else "lines"
        figure.add_scatter(name=name, x=times, y=shown, mode=mode, line=line, marker={"size": 4})
    return _with_time_axis(figure, history)


def _describe_left_out(lines: Mapping[str, Numbers]) -> str:
    count = len(lines) - _MOST_LINES
    return f"Lines that are left out: {count:,}." if count > 0 else ""


def _with_time_axis(figure: go.Figure, history: History) -> go.Figure:
    ends = [_to_time(history.timeline.since_ms), _to_time(history.timeline.until_ms)]
    return figure.update_xaxes(type="date", range=ends)


def _to_time(ms: float) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _sources(history: History, *queries: str) -> str:
    times = {"since_ms": history.timeline.since_ms, "until_ms": history.timeline.until_ms}
    return ";\n\n".join(query.format(**times) for query in queries)
