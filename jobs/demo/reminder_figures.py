"""What the demo's report shows of its reminders: when each was due, when it came, and what became of all."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa

from lakemq.jobs.demo.answers import RELEASES, WAITED, Answers
from lakemq.jobs.demo.reminders import Reminded, lateness_ms
from lakemq.jobs.report import ACCENT, MUTED, Report

_MOST_POINTS = 3_000


def add_reminders(report: Report, done: Reminded, answers: Answers) -> None:
    late_ms, begin_ms = lateness_ms(done, answers.releases), int(done.due_ms.min())
    numbers = answers.releases.column("number").to_numpy()
    due_s = (done.due_ms[numbers] - begin_ms) / 1000
    some = np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST_POINTS)).astype(int)
    is_moved = np.isin(numbers[some], list(done.moved))
    points = [
        go.Scatter(
            name=name,
            x=due_s[some][which],
            y=due_s[some][which] + late_ms[some][which] / 1000,
            mode="markers",
            marker={"size": 6, "color": color, "opacity": 0.75},
        )
        for name, which, color in (("as it was to be", ~is_moved, ACCENT), ("rescheduled", is_moved, MUTED))
    ]
    axes = {"xaxis": {"title": "due, s after the first"}, "yaxis": {"title": "came, s after the first was due"}}
    report.add_section(
        RELEASES.title,
        f"{done.count:,} reminders, on a clock that runs 100,000 times faster than the flights'. "
        f"{len(done.cancelled):,} of flights that never left were cancelled, {len(done.moved)} of flights that left "
        f"hours late were rescheduled. {len(done.taken):,} were taken, {done.redriven} of them after they had failed "
        f"twice; {done.expired:,} had expired before anybody took them.",
        figure=go.Figure(points, {"height": 360, **axes}),
        source=RELEASES.sql,
    )
    histogram = go.Histogram(x=late_ms, marker_color=ACCENT, nbinsx=60)
    report.add_section(
        WAITED.title,
        "How many milliseconds after it was due each reminder was in its topic. None was early.",
        figure=go.Figure(
            histogram, {"height": 300, "xaxis": {"title": "late by, ms"}, "yaxis": {"title": "reminders"}}
        ),
        columns=answers.waited.column_names,
        rows=_rows(answers.waited),
        source=WAITED.sql,
    )


def _rows(answer: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*answer.to_pydict().values(), strict=True))
