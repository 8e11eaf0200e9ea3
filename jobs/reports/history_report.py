"""Reports in one HTML file, and a namespace's history as their sections: for `lakemq report` and the demo."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.output import to_iso
from lakemq.jobs.reports.history import CHANGE_COLUMNS, CHANGES, HANDOFFS, OWNERS, SAMPLED, History
from lakemq.jobs.reports.samples import Numbers, add_up

with needs("report"):
    import plotly.graph_objects as go
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from lakemq.jobs.console.parts import Table, list_records, make_templates

# A report: text, tables and plotly figures in one HTML file that needs no network.


INK, ACCENT, MUTED = "#1f2933", "#2563a8", "#c2ccd6"

_BUTTONS = {"displaylogo": False, "displayModeBar": False, "responsive": True}


class Section(NamedTuple):
    """A section of a report. source: the query behind it, shown on request."""

    title: str
    text: str
    figure: Markup | None
    table: Table | None
    source: str


@dataclass
class Report:
    """A report. Add its sections in reading order. tiles: figures with their captions."""

    title: str
    summary: str
    tiles: Iterable[tuple[str, str]] = ()
    sections: list[Section] = field(default_factory=list)

    def add_section(
        self, title: str, text: str, figure: go.Figure | None = None, table: Table | None = None, source: str = ""
    ) -> None:
        """Add a section. `source`: the query behind it, shown on request."""
        drawn = None
        if figure is not None:
            drawn = Markup(_apply_style(figure).to_html(full_html=False, include_plotlyjs=False, config=_BUTTONS))
        self.sections.append(Section(title, text, drawn, table, source))

    def write(self, path: Path) -> None:
        """Write the report as one file."""
        template = make_templates().get_template("report.html")
        path.write_text(template.render(report=self, plotly=Markup(get_plotlyjs())), encoding="utf-8")


def _apply_style(figure: go.Figure) -> go.Figure:
    grid = {"gridcolor": "#eef1f4", "zerolinecolor": "#c2ccd6", "automargin": True}
    figure.update_layout(
        template="plotly_white",
        font={"family": 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', "size": 13, "color": INK},
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        colorway=[ACCENT, MUTED],
        legend={"orientation": "h", "y": 1.08, "x": 0},
        bargap=0.25,
    )
    return figure.update_xaxes(**grid).update_yaxes(**grid)


# The sections of a namespace's history.


COLORS = ("#2563a8", "#c2571a", "#2e7d4f", "#8b5fbf", "#b8860b", "#0f7b83", "#a33b5c", "#52606d")

_MOST_LINES = len(COLORS)
_MOST_GROUPS = 10
_MOST_ROWS = 100

_EPOCH = datetime.fromtimestamp(0, UTC)


def build_history_report(history: History, path: str) -> Report:
    """Return the report of a namespace's history, with its figures in reading order."""
    since, until = (_to_time(ms) for ms in (history.since_ms, history.until_ms))
    report = Report(
        "LakeMQ: what happened",
        f"{path} from {to_iso(since)} to {to_iso(until)}. As of step {history.step:,}.",
        _build_tiles(history),
    )
    add_throughput(report, history)
    add_steps(report, history)
    add_lag(report, history)
    add_lateness(report, history)
    add_owners(report, history)
    add_handoffs(report, history)
    add_changes(report, history)
    return report


def _build_tiles(history: History) -> list[tuple[str, str]]:
    lags = [float(lag[-1]) for lag in history.lag.values() if not np.isnan(lag[-1])]
    return [
        (f"{history.message_count:,}", "messages came into topics"),
        (f"{history.step_count:,}", "steps were decided"),
        (f"{np.nan_to_num(history.samples.step_p99_ms).max():,.0f} ms", "was the time of 99 of 100 steps at most"),
        (f"{max(lags, default=0):,.0f}", "largest lag of a group at the end"),
        (f"{np.nan_to_num(history.samples.late_ms).max():,.0f} ms", "was a delayed message late at most"),
        (f"{history.handoffs.num_rows:,}", "hand-offs of partitions"),
    ]


def add_throughput(report: Report, history: History) -> None:
    """Add messages per second: into each topic, and out of it by each group."""
    lines = {
        **{f"into {topic}": rates for topic, rates in history.produced.items()},
        **{f"by {group}": rates for group, rates in history.consumed.items()},
    }
    text = (
        "Offsets per second that each topic gave out, markers of transactions included, and that each group was done "
        f"with (dashed). {_describe_left_out(lines)}"
    )
    _add_lines(report, history, "Throughput", text, lines, "messages per second")


def add_steps(report: Report, history: History) -> None:
    """Add the steps per second, and how long they took."""
    text = "Steps per second. Without requests the sequencer decides few."
    _add_lines(report, history, "Steps", text, {"steps": history.samples.steps}, "steps per second")
    times = {"half of the steps": history.samples.step_p50_ms, "99 of 100 steps": history.samples.step_p99_ms}
    text = "How long steps took at most, from taking letters to sending answers."
    _add_lines(report, history, "Step time", text, times, "ms")


def add_lag(report: Report, history: History) -> None:
    """Add the lag of each group, in messages and in time."""
    text = "Offsets that were left for each group, markers and open transactions included."
    _add_lines(report, history, "Lag", f"{text} {_describe_left_out(history.lag)}", history.lag, "messages")
    seconds = {group: ages / 1000 for group, ages in add_up(history.samples.lag_ms, by=1, largest=True).items()}
    _add_lines(report, history, "Lag in time", "How long the oldest of these had been there.", seconds, "s")


def add_lateness(report: Report, history: History) -> None:
    """Add how late delayed messages were released."""
    text = "How long after its due time a delayed message was released at most."
    lines = {"latest message": history.samples.late_ms}
    _add_lines(report, history, "Lateness of delayed messages", text, lines, "ms after it was due")


def add_owners(report: Report, history: History) -> None:
    """Add a figure per group that shows which member owned each partition, and when."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in history.owners.to_pylist():
        by_group.setdefault(row["group"], []).append(row)
    until = _to_time(history.until_ms)
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


def _add_lines(
    report: Report, history: History, title: str, text: str, lines: Mapping[str, Numbers], unit: str
) -> None:
    times = [_to_time(float(ms)) for ms in history.samples.edges_ms[1:]]
    layout = {"height": 300, "showlegend": True, "yaxis": {"title": unit, "rangemode": "tozero"}}
    figure = go.Figure(layout=layout)
    for index, (name, values) in enumerate(list(lines.items())[:_MOST_LINES]):
        line = {"color": COLORS[index], "dash": "dash" if name.startswith("by ") else "solid"}
        # NaN is a gap of the line: JSON has no number for it.
        shown = [None if np.isnan(value) else round(float(value), 3) for value in values]
        figure.add_scatter(name=name, x=times, y=shown, mode="lines+markers", line=line, marker={"size": 4})
    report.add_section(title, text, figure=_with_time_axis(figure, history), source=_sources(history, SAMPLED))


def _describe_left_out(lines: Mapping[str, Numbers]) -> str:
    count = len(lines) - _MOST_LINES
    return f"Lines that are left out: {count:,}." if count > 0 else ""


def _with_time_axis(figure: go.Figure, history: History) -> go.Figure:
    ends = [_to_time(history.since_ms), _to_time(history.until_ms)]
    return figure.update_xaxes(type="date", range=ends)


def _to_time(ms: float) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _sources(history: History, *queries: str) -> str:
    times = {"since_ms": history.since_ms, "until_ms": history.until_ms}
    return ";\n\n".join(query.format(**times) for query in queries)
