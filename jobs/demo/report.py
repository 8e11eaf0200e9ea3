"""The demo's report: its figures, and what it says about them."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import pyarrow as pa

from lakemq.jobs.demo.answers import ALERTS, BUSIEST, LAG, LATE, LATE_MINUTES, ONE_AIRCRAFT, WEATHER, Answers
from lakemq.jobs.demo.checks import Checked
from lakemq.jobs.demo.crew import Crew
from lakemq.jobs.demo.crew_figures import add_crew
from lakemq.jobs.demo.reminder_figures import add_reminders
from lakemq.jobs.demo.reminders import Reminded
from lakemq.jobs.report import ACCENT, MUTED, Report


def build_report(
    tiles: Sequence[tuple[str, str]],
    checks: Sequence[Checked],
    answers: Answers,
    crew: Crew,
    reminded: Reminded,
    stages: Sequence[tuple[str, float]],
) -> Report:
    """tiles: figure, what it counts; stages: name, seconds."""
    report = Report(
        "LakeMQ: a year of flights as messages",
        "The flights that left New York in 2013, published from Spark and keyed by tail number, and the weather at "
        "the airports, sent from Python; read back, checked, and asked in SQL.",
    )
    report.add_tiles(tiles)
    report.add_section(
        "What was checked",
        "Each of these stops the demo with an error when it does not hold.",
        columns=("What holds", "Seen in"),
        rows=[(c.holds, c.found) for c in checks],
    )
    _add_aircraft(report, answers.one_aircraft)
    _add_busiest(report, answers.busiest)
    _add_lag(report, answers.lag)
    _add_late(report, answers.late)
    _add_weather(report, answers.weather)
    _add_alerts(report, answers.alerts)
    add_crew(report, crew, answers)
    add_reminders(report, reminded, answers)
    names, seconds = zip(*reversed(stages), strict=True)
    report.add_section("Where the time went", "Seconds per stage.", figure=_bars(names, seconds, 34 * len(names)))
    return report


def _add_aircraft(report: Report, answer: pa.Table) -> None:
    rows = answer.to_pydict()
    routes = [
        f"{flight} {origin} to {dest}, offset {offset}"
        for flight, origin, dest, offset in zip(
            rows["flight"], rows["origin"], rows["dest"], rows["offset"], strict=True
        )
    ]
    figure = go.Figure(
        go.Scatter(
            x=rows["departure"],
            y=rows["dep_delay"],
            mode="markers",
            marker={"size": 7, "color": ACCENT, "opacity": 0.75},
            text=routes,
            hovertemplate="%{x|%d %b %H:%M} UTC<br>%{text}<br>%{y} minutes late<extra></extra>",
        ),
        {"height": 340, "yaxis": {"title": "minutes late at departure"}},
    )
    report.add_section(
        ONE_AIRCRAFT.title,
        f"{answer.num_rows} flights, all in one partition, in the order of departure: the key is the tail number. "
        f"Below, the first ten.",
        figure=figure,
        columns=answer.column_names,
        rows=list(zip(*answer.slice(0, 10).to_pydict().values(), strict=True)),
        source=ONE_AIRCRAFT.sql,
    )


def _add_busiest(report: Report, answer: pa.Table) -> None:
    rows = answer.to_pydict()
    report.add_section(
        BUSIEST.title,
        "The ten aircraft with the most departures.",
        figure=_bars(rows["tailnum"][::-1], rows["flights"][::-1], 320),
        source=BUSIEST.sql,
    )


def _add_lag(report: Report, answer: pa.Table) -> None:
    rows = answer.to_pydict()
    x = [f"partition {p}" for p in rows["partition"]]
    figure = go.Figure(
        [
            go.Bar(name="read", x=x, y=rows["read"], marker_color=ACCENT),
            go.Bar(name="lag", x=x, y=rows["lag"], marker_color=MUTED),
        ],
        {"barmode": "stack", "height": 320, "yaxis": {"title": "messages"}},
    )
    report.add_section(
        LAG.title,
        "A reader took part of every partition and remembers where it stopped. Its lag is the end offset minus that.",
        figure=figure,
        columns=answer.column_names,
        rows=list(zip(*rows.values(), strict=True)),
        source=LAG.sql,
    )


def _add_late(report: Report, answer: pa.Table) -> None:
    rows = answer.slice(0).to_pydict()
    report.add_section(
        LATE.title,
        f"Percent of flights that arrived {LATE_MINUTES} minutes late or later.",
        figure=_bars(rows["name"][::-1], rows["late_percent"][::-1], 30 * answer.num_rows + 60),
        columns=answer.column_names,
        rows=list(zip(*rows.values(), strict=True)),
        source=LATE.sql,
    )


def _add_weather(report: Report, answer: pa.Table) -> None:
    rows = answer.to_pydict()
    figure = go.Figure(
        go.Bar(
            x=rows["miles"],
            y=rows["mean_delay_minutes"],
            marker_color=ACCENT,
            text=[f"{n:,} flights" for n in rows["flights"]],
            textposition="outside",
            cliponaxis=False,
        ),
        {
            "height": 320,
            "xaxis": {"title": "visibility in miles", "type": "category"},
            "yaxis": {"title": "mean delay in minutes"},
        },
    )
    report.add_section(
        WEATHER.title,
        "Mean delay at departure by the visibility at that airport in that hour.",
        figure=figure,
        source=WEATHER.sql,
    )


def _add_alerts(report: Report, answer: pa.Table) -> None:
    report.add_section(
        ALERTS.title,
        "A job copies delays of more than an hour into a topic of their own: each batch, and how far the job has read, "
        "is one transaction. It was killed twice; what it had open then was aborted by its next run, and what it had "
        "committed was not done again.",
        columns=answer.column_names,
        rows=list(zip(*answer.to_pydict().values(), strict=True)),
        source=ALERTS.sql,
    )


def _bars(names: Sequence[str], values: Sequence[float], height: int) -> go.Figure:
    bars = go.Bar(
        x=list(values),
        y=list(names),
        orientation="h",
        marker_color=ACCENT,
        text=[f"{v:,}" for v in values],
        textposition="outside",
        cliponaxis=False,
    )
    return go.Figure(bars, {"height": height, "yaxis": {"type": "category"}})
