"""The demo's report: its checks, the answers of SQL, the group, the transactions, the delayed messages, and rates."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from checks import Progress, SqlAnswer
from group import SOURCE, SPEED, TARGET, Team, owner_name

from lakemq.jobs.console.parts import Facts, LineChart, Part, TextBlock, format_time, list_records
from lakemq.jobs.reports.history import History
from lakemq.jobs.reports.history_report import draw_groups, draw_owners, draw_sequencer, draw_topics

TITLE = "LakeMQ: a year of flights as messages"
SUMMARY = """The flights that left New York in 2013, published from Spark and keyed by tail number, and the weather at
the airports, sent from Python; read back, checked, and asked in SQL."""

_ON_DELAYS = """Two topics, joined: the mean delay at departure, by the visibility at that airport in that hour. The
messages are rows of Delta tables; DuckDB has read them here, and Spark reads them with the same text."""
_ON_EVENTS = """Processes share the flights. When one joins, is killed or comes back, partitions move. Each batch is one
transaction: the alerts that it raises, and how far the group has read. What the killed process left open was aborted
when it came back, and its flights were read again: no alert is missing, and none is there twice."""


def build_report(progress: Progress, answers: Mapping[str, SqlAnswer], team: Team, history: History) -> list[Part]:
    """Return the parts of the report. history: of the whole demo."""
    figures = [(caption, figure) for figure, caption in progress.tiles]
    delays = [
        {**row, "mean_delay": round(row["delay_minutes"] / row["flights"], 1)}
        for row in answers["delay_by_visibility"].rows.to_pylist()
    ]
    owners = [
        {**row, "topic": SOURCE, "owner": row["owner"] and owner_name(row["owner"])}
        for row in answers["owners"].rows.to_pylist()
    ]
    transactions = [
        {
            "topic": TARGET,
            "partition": row["transactional_id"].partition("-")[2],
            "owner": {"CompleteCommit": "committed", "CompleteAbort": "aborted"}[row["state"]],
            "since": row["started_at"],
            "until": row["updated_at"],
            "reason": row["reason"] or "done",
        }
        for row in answers["transactions"].rows.to_pylist()
    ]
    events = [
        {"time": format_time(datetime.fromtimestamp(time_s, UTC)), "event": event} for time_s, event in team.events
    ]
    return [
        Facts("Figures", [*figures, ("checks, all passed", len(progress.checks))]),
        list_records("What was checked", progress.checks, "claim, evidence"),
        list_records(answers["delay_by_visibility"].title, delays, "visibility, flights, mean_delay", note=_ON_DELAYS),
        *_draw_periods(answers["owners"].title, owners),
        *_draw_periods(answers["transactions"].title, transactions),
        list_records("What happened meanwhile", events, "time, event", note=_ON_EVENTS),
        LineChart(
            f"{answers['releases'].title} On a clock that runs {SPEED:,} times faster",
            "ms",
            answers["releases"].rows.column("due_ms").to_pylist(),
            {"late": answers["releases"].rows.column("late_ms").to_pylist()},
        ),
        *draw_topics(history.samples),
        *draw_groups(history.samples),
        *draw_sequencer(history.samples),
        *(TextBlock(f"Query: {answer.title}", answer.sql) for answer in answers.values()),
    ]


def _draw_periods(title: str, rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    return draw_owners(
        title.rstrip("?"), rows, min(row["since"] for row in rows), max(row["until"] or row["since"] for row in rows)
    )
