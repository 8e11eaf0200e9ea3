"""What happened before a time: rates, lag, owners, handoffs and changes, as `lakemq report` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.shared.times import from_millis, parse_past_moment, to_millis
from lakemq.jobs.console.charts import draw_bars
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.inputs import BadInput, read_number, read_text
from lakemq.jobs.console.pages.queries import draw_or_explain
from lakemq.jobs.console.parts import Facts, Field, Form, Link, Notice, Page, Part, Picture, Table
from lakemq.jobs.console.rendering import format_length, format_time, make_link

if TYPE_CHECKING:
    from lakemq.jobs.reports.history import History, Numbers

_MOST_MINUTES = 24 * 60
_MOST_ROWS = 200


def read_history_page(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of the time that a visitor names; by default the last half hour."""
    text = read_text(inputs, "at", 40, "")
    minutes = read_number(inputs, "minutes", 30, low=1, high=_MOST_MINUTES)
    until_ms = _read_until_ms(text)
    fields = [
        Field("at", "until this time (UTC, such as 02:10 or 2026-01-31T02:10; empty: now)", text),
        Field("minutes", "minutes before it", str(minutes)),
    ]
    parts: list[Part] = [Form("When", "/history", fields, "Show")]

    def draw() -> list[Part]:
        from lakemq.jobs.reports.history import read_history

        return _show(read_history(console.mq, until_ms - 60_000 * minutes, until_ms))

    return Page("History", [*parts, *draw_or_explain("The history", draw)])


def _read_until_ms(text: str) -> int:
    now = datetime.now(timezone.utc)
    try:
        return to_millis(parse_past_moment(text, now) if text else now)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"The input at is not a time: {error}.") from None


def _show(history: History) -> list[Part]:
    timeline = history.timeline
    began_ms = history.journal_since_ms
    journal = "nothing of this time" if began_ms is None else f"decisions since {format_time(began_ms)}"
    return [
        *_warn_of_forgotten_times(history),
        Facts(
            "In this time",
            [
                ("from", format_time(timeline.since_ms)),
                ("until", format_time(timeline.until_ms)),
                ("messages", history.message_count),
                ("steps", history.step_count),
                ("the journal has", journal),
            ],
        ),
        _list_groups(history),
        _list_owners(history),
        _list_topics(history),
        _draw_rate("Messages per second", history, _add_up(history.appended.values(), len(timeline.ends_ms))),
        _draw_rate("Steps per second", history, history.steps.tolist()),
        _list_handoffs(history),
        _list_changes(history),
    ]


def _add_up(series: Iterable[Numbers], length: int) -> list[float]:
    """Return the sum of the series, point by point."""
    sums = [0.0] * length
    for rates in series:
        sums = [before + rate for before, rate in zip(sums, rates.tolist(), strict=True)]
    return sums


def _warn_of_forgotten_times(history: History) -> list[Part]:
    if history.is_in_journal:
        return []
    text = "Rates and lag are known only as far back as the journal goes. Raise journal.retention.ms to keep more."
    return [Notice(f"{text} Owners and handoffs reach back for group.history.ms.")]


def _list_groups(history: History) -> Table:
    from lakemq.jobs.reports.history_tables import list_lags

    rows = [
        [Link(row["group"], make_link("/group", name=row["group"])), *list(row.values())[1:]]
        for row in list_lags(history)[:_MOST_ROWS]
    ]
    columns = ("group", "lag at the end", "lag at the start", "consumed per second, mean")
    return Table("Groups", columns, rows, "There was no group.")


def _list_topics(history: History) -> Table:
    from lakemq.jobs.reports.history_tables import list_topic_rates

    rows = [list(row.values()) for row in list_topic_rates(history)[:_MOST_ROWS]]
    return Table("Topics", ("topic", "messages per second, mean", "at most"), rows, "No message came.")


def _list_owners(history: History) -> Table:
    from lakemq.jobs.reports.history_tables import list_owners_at_end

    rows = [
        [*list(row.values())[:4], row["owner"] or "", format_time(row["since"])] for row in list_owners_at_end(history)
    ]
    columns = ("group", "topic", "partition", "state", "owner", "since")
    return Table("Who owned what at the end", columns, rows[:_MOST_ROWS], "No partition had an owner.")


def _list_handoffs(history: History) -> Table:
    from lakemq.jobs.reports.history_tables import list_handoffs

    rows = [
        [
            *list(row.values())[:4],
            row["to_member"] or "-",
            format_time(row["began_at"]),
            format_length(row["took_ms"]),
            row["reason"],
        ]
        for row in list_handoffs(history)[:_MOST_ROWS]
    ]
    columns = ("group", "topic", "partition", "from", "to", "began", "took", "reason")
    return Table("Handoffs, newest first", columns, rows, "No partition moved.")


def _list_changes(history: History) -> Table:
    from lakemq.jobs.reports.history_tables import list_changes

    rows = [[format_time(row["changed_at"]), *list(row.values())[1:]] for row in list_changes(history)[:_MOST_ROWS]]
    columns = ("changed", "kind", "subject", "client")
    return Table("Administrative changes, newest first", columns, rows, "No client changed topics, groups or offsets.")


def _draw_rate(title: str, history: History, rates: Sequence[float]) -> Picture:
    labels = [from_millis(int(end_ms)) for end_ms in history.timeline.ends_ms]
    bars = [(f"{label:%H:%M:%S} UTC", rate) for label, rate in zip(labels, rates, strict=True)]
    return Picture(draw_bars(title, bars, "per second", are_rates=True))
