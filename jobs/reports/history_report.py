"""A namespace's history as parts of a page: for the console, and as one HTML file for `lakemq report` and the demo."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.console import parts as ui
from lakemq.jobs.reports.history import CHANGES, HANDOFFS, OWNERS, SAMPLED, History, list_tables
from lakemq.jobs.reports.samples import Numbers, Samples, add_up, sort_by_size

with needs("report"):
    from markupsafe import Markup

_MOST_ROWS = 200
_MOST_GROUPS = 10
_MOST_PARTITIONS = 64
"""How many partitions a picture of owners shows."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_TITLES = {
    "groups": "Groups",
    "owners": "Who owned what at the end",
    "topics": "Topics",
    "handoffs": "Handoffs, newest first",
    "changes": "Administrative changes, newest first",
}
_NONE = {
    "groups": "There was no group.",
    "owners": "No partition had an owner.",
    "topics": "No message came.",
    "handoffs": "No partition moved.",
    "changes": "No client changed topics, groups or offsets.",
}
_SOURCES = {"the charts": SAMPLED, "the owners": OWNERS, "the handoffs": HANDOFFS, "the changes": CHANGES}


def list_parts(history: History, has_links: bool = True) -> list[ui.Part]:
    """Return the figures, tables and charts of a history. has_links: names of topics and groups lead to their pages."""
    tables: dict[str, ui.Part] = {
        name: ui.list_records(
            _TITLES[name], rows[:_MOST_ROWS], ", ".join(columns), _NONE[name], _name_rest(rows), has_links=has_links
        )
        for name, columns, rows in list_tables(history)
    }
    figures = [
        ("from", ui.format_time(history.since_ms)),
        ("until", ui.format_time(history.until_ms)),
        ("messages", history.message_count),
        ("steps", history.step_count),
    ]
    return [
        ui.Facts("In this time", figures),
        *(tables.pop(name) for name in ("groups", "owners", "topics")),
        *draw_topics(history.samples),
        *draw_groups(history.samples),
        *draw_sequencer(history.samples),
        *tables.values(),
    ]


def _name_rest(rows: Sequence[object]) -> str:
    return f"{len(rows) - _MOST_ROWS:,} more are not shown." if len(rows) > _MOST_ROWS else ""


def draw_topics(samples: Samples) -> list[ui.Part]:
    """Return what came into topics."""
    return [_draw("Produced per topic", "messages/s", samples, sort_by_size(samples.produced))]


def draw_groups(samples: Samples, by: int = 1) -> list[ui.Part]:
    """Return what groups consumed and what is left for them, with a line per topic (by=0) or group (by=1)."""
    name = ("topic", "group")[by]
    ages = {key: age_ms / 1000 for key, age_ms in add_up(samples.lag_ms, by, largest=True).items()}
    return [
        _draw(f"Consumed per {name}", "messages/s", samples, add_up(samples.consumed, by)),
        _draw(f"Lag per {name}", "messages", samples, add_up(samples.lag, by)),
        _draw(f"Lag in time per {name}: age of the oldest message that is left", "s", samples, ages),
    ]


def draw_sequencer(samples: Samples) -> list[ui.Part]:
    """Return how many steps there were, how long they took, and how late delayed messages were."""
    times = {"p50": samples.step_p50_ms, "p99": samples.step_p99_ms}
    return [
        _draw("Steps", "steps/s", samples, {"steps": samples.steps}),
        _draw("Step time", "ms", samples, times),
        _draw("Lateness of delayed messages", "ms", samples, {"latest": samples.late_ms}),
    ]


def _draw(title: str, unit: str, samples: Samples, lines: Mapping[str, Numbers]) -> ui.LineChart:
    values = {name: line.tolist() for name, line in lines.items()}
    return ui.LineChart(title, unit, samples.edges_ms[1:].tolist(), values)


def draw_owners(title: str, rows: Iterable[Mapping[str, Any]], begin: datetime, end: datetime) -> list[ui.Part]:
    """Return a picture of which member owned which partition, from rows of `assignment_history`; without owners none.

    It shows the first partitions alone.
    """
    periods = [
        ui.OwnershipPeriod(
            f"{row['topic']}-{row['partition']}", row["owner"], row["since"], row["until"], row["reason"]
        )
        for row in rows
        if row["owner"] is not None
    ]
    shown = sorted({period.partition for period in periods})[:_MOST_PARTITIONS]
    chosen = [period for period in periods if period.partition in shown]
    return [ui.Picture(ui.draw_ownership(title, chosen, begin, end))] if chosen else []


def write_history_report(history: History, path: str, file: Path) -> None:
    """Write the history of a namespace as one file, with pictures of owners, and the queries of all. Raises OSError."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in history.owners.to_pylist():
        by_group.setdefault(row["group"], []).append(row)
    busiest = sorted(by_group, key=lambda group: -len(by_group[group]))[:_MOST_GROUPS]
    begin, end = (_EPOCH + timedelta(milliseconds=at_ms) for at_ms in (history.since_ms, history.until_ms))
    owners = [
        part for group in sorted(busiest) for part in draw_owners(f"Owners in {group}", by_group[group], begin, end)
    ]
    times = {"since_ms": history.since_ms, "until_ms": history.until_ms}
    queries = [ui.TextBlock(f"Query of {name}", query.format(**times)) for name, query in _SOURCES.items()]
    parts = [*list_parts(history, has_links=False), *owners, *queries]
    write_page("LakeMQ: what happened", f"{path}, as of step {history.step:,}.", parts, file)


def write_page(title: str, summary: str, parts: Sequence[ui.Part], file: Path) -> None:
    """Write a page as one file that needs no network: it has the style sheet and the scripts. Raises OSError."""
    static = files("lakemq.jobs.console").joinpath("static")
    styles, scripts = (
        Markup("\n".join(static.joinpath(name).read_text(encoding="utf-8") for name in names))
        for names in (("console.css", "uPlot.min.css"), ("uPlot.iife.min.js", "charts.js"))
    )
    template = ui.make_templates().get_template("report.html")
    page = template.render(page=ui.Page(title, parts), summary=summary, styles=styles, scripts=scripts)
    file.write_text(page, encoding="utf-8")
