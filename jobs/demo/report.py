"""The demo's report: one picture each of SQL, the group, the transactions and the delayed messages."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import plotly.express as px
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.jobs.console.parts import list_records
from lakemq.jobs.demo.checks import Progress, SqlAnswer
from lakemq.jobs.demo.group import SPEED, Reminders, Team, lateness_ms, owner_name
from lakemq.jobs.reports.history import History
from lakemq.jobs.reports.history_report import ACCENT, INK, Report, add_lag, add_steps, add_throughput, draw_owners

_MEMBERS = {"Ann": ACCENT, "Ben": "#c2571a", "Cem": "#2e7d4f", "Dee": "#8b5fbf"}
_COLORS = {"committed": ACCENT, "aborted": "#c2571a", "as first planned": ACCENT, "rescheduled": "#c2571a"}
_MOST_POINTS = 3_000


def build_report(
    progress: Progress, answers: Mapping[str, SqlAnswer], team: Team, reminders: Reminders, history: History
) -> Report:
    """Return the report on all checks and answers. history: of the whole demo."""
    report = Report(
        "LakeMQ: a year of flights as messages",
        "The flights that left New York in 2013, published from Spark and keyed by tail number, and the weather at "
        "the airports, sent from Python; read back, checked, and asked in SQL.",
        [*progress.tiles, (str(len(progress.checks)), "checks, all passed")],
    )
    text = "Each of these stops the demo with an error where it does not hold."
    checks = list_records("Checks", progress.checks, "claim, evidence")
    report.add_section("What was checked", text, table=checks)

    def add(name: str, figure: go.Figure, text: str) -> None:
        report.add_section(answers[name].title, text, figure=figure, source=answers[name].sql)

    add("delay_by_visibility", _draw_delays(answers["delay_by_visibility"].rows), _ON_DELAYS)
    add("owners", _draw_owners(answers["owners"].rows, team), _ON_OWNERS)
    add("transactions", _draw_transactions(answers["transactions"].rows, team), _ON_TRANSACTIONS)
    text = (
        f"{len(reminders.due_ms):,} reminders of departures, on a clock that runs {SPEED:,} times faster than the "
        f"flights'. {len(reminders.cancelled):,} were cancelled, as their flights never left, and "
        f"{len(reminders.moved)} rescheduled, as their flights left hours late."
    )
    add("releases", _draw_releases(answers["releases"].rows, reminders), text)
    add_throughput(report, history)
    add_steps(report, history)
    add_lag(report, history)
    return report


_ON_DELAYS = """Two topics, joined: the mean delay at departure, by the visibility at that airport in that hour. The
messages are rows of Delta tables; DuckDB has read them here, and Spark reads them with the same text."""
_ON_OWNERS = "Processes share the flights. When one joins, is killed or comes back, partitions move."
_ON_TRANSACTIONS = """Each batch is one transaction: the alerts that it raises, and how far the group has read. What the
killed process left open was aborted when it came back, and its flights were read again: no alert is missing, and none
is there twice."""


def _draw_delays(answer: pa.Table) -> go.Figure:
    means = pc.divide(answer.column("delay_minutes").cast("double"), answer.column("flights"))
    texts = [f"{count:,} flights" for count in answer.column("flights").to_pylist()]
    labels = {"x": "visibility in miles", "y": "mean delay in minutes"}
    figure = px.bar(x=answer.column("visibility"), y=means, text=texts, labels=labels, height=300)
    return figure.update_traces(marker_color=ACCENT, textposition="outside").update_xaxes(type="category")


def _draw_owners(answer: pa.Table, team: Team) -> go.Figure:
    """Draw a line per partition, with a bar for each time in which it had an owner."""
    rows = answer.to_pylist()
    ended = max(row["until"] or row["since"] for row in rows)
    return _add_events(draw_owners(rows, ended, _MEMBERS, owner_name), team, len({row["partition"] for row in rows}))


def _draw_transactions(answer: pa.Table, team: Team) -> go.Figure:
    """Draw a line per process, with a bar for each transaction."""
    rows = answer.to_pylist()
    columns = {
        "process": [row["transactional_id"].partition("-")[2] for row in rows],
        "since": answer.column("started_at").to_pylist(),
        "until": answer.column("updated_at").to_pylist(),
        "kind": [{"CompleteCommit": "committed", "CompleteAbort": "aborted"}[row["state"]] for row in rows],
    }
    figure = px.timeline(columns, "since", "until", "process", "kind", color_discrete_map=_COLORS, height=260)
    figure.update_traces(marker_line={"color": "#ffffff", "width": 1})
    return _add_events(figure, team, len({*columns["process"]}))


def _add_events(figure: go.Figure, team: Team, line_count: int) -> go.Figure:
    """Draw the team's events over a picture with so many lines, and leave room above them."""
    style: dict[str, Any] = {"y": 1, "yref": "paper", "textangle": -15, "showarrow": False, "xanchor": "left"}
    for time_s, event in team.events:
        time = datetime.fromtimestamp(time_s, UTC)
        figure.add_vline(x=time, line={"color": INK, "width": 1, "dash": "dot"})
        figure.add_annotation(x=time, text=event, yanchor="top", font={"size": 11, "color": INK}, **style)
    figure.update_xaxes(type="date").update_layout(legend_title="")
    return figure.update_yaxes(title="", range=[-0.5, line_count + 1.5])


def _draw_releases(answer: pa.Table, reminders: Reminders) -> go.Figure:
    """Draw a point per reminder: when it was due, and when it came."""
    numbers = answer.column("number").to_numpy()
    due_s = (reminders.due_ms[numbers] - reminders.due_ms.min()) / 1000
    shown = np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST_POINTS)).astype(int)
    points = {
        "due, s after the first": due_s[shown],
        "came, s after the first was due": (due_s + lateness_ms(reminders, answer) / 1000)[shown],
        "kind": np.where(np.isin(numbers[shown], list(reminders.moved)), "rescheduled", "as first planned"),
    }
    figure = px.scatter(points, *points, color_discrete_map=_COLORS, height=320)
    return figure.update_traces(marker={"size": 6, "opacity": 0.75}).update_layout(legend_title="")
