"""Delayed messages: how many wait per topic, and when they are due. And the page of dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import offer_change, read_choice, read_number, read_text
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.pages.queries import draw_or_explain
from lakemq.jobs.console.payloads import FORMATS

_MINUTES = 60
_MOST_NEXT = 20

_DUE_SOON = """\
SELECT CAST(greatest(unix_millis(deliver_at) - {begin_ms}, 0) DIV 60000 AS INT) AS minute, count(*) AS messages,
       NULL AS topic, NULL AS partition, NULL AS key, NULL AS deliver_at, NULL AS state
FROM pending_delayed_rows
WHERE deliver_at <= timestamp_millis({end_ms})
GROUP BY 1
UNION ALL
SELECT NULL, NULL, topic, partition, key, deliver_at, state
FROM (
  SELECT * FROM pending_delayed_rows
  WHERE deliver_at <= timestamp_millis({end_ms})
  ORDER BY deliver_at LIMIT {most}
)
ORDER BY deliver_at"""
"""Reads data files, which anybody may have written. One statement, because it gets a process of its own."""

_ON_OPEN = "open: of transactions that have not ended; ranges: rows in the table delayed."
_OF_KEY = "SELECT * FROM pending_delayed_rows WHERE CAST(key AS STRING) = 'KEY' ORDER BY deliver_at"
_PER_HOUR = "SELECT due_hour, CAST(sum(messages) AS BIGINT) AS messages FROM pending_delayed GROUP BY 1 ORDER BY 1"


def read_delayed(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of delayed messages."""
    with console.observer.look() as observation:
        infos, pointer_ms = observation.delayed.all(), observation.delayed.pointer_ms()
    parts: list[ui.Part] = [
        ui.Actions([ui.Link("Find a message by its key (SQL)", ui.make_link("/sql", text=_OF_KEY))]),
        ui.Facts(
            "Delayed messages",
            [("waiting", sum(info.messages for info in infos)), ("released until", ui.format_time(pointer_ms or None))],
        ),
        ui.list_records(
            "Topics", infos, "topic, messages, open, ranges, first_due_ms, last_due_ms", "No message waits.", _ON_OPEN
        ),
        *(_draw_due_times(console) if infos else []),
    ]
    if console.settings.allow_changes:
        parts.append(offer_change("cancel-delayed"))
    return ui.Page("Delayed messages", parts)


def _draw_due_times(console: Console) -> list[ui.Part]:
    now = datetime.now(UTC)
    begin = now.replace(second=0, microsecond=0)
    begin_ms = int(begin.timestamp() * 1000)
    end_ms = int(now.timestamp() * 1000) + _MINUTES * 60_000  # as the metric and the overview count

    def draw() -> list[ui.Part]:
        rows = console.run_sql(_DUE_SOON.format(begin_ms=begin_ms, end_ms=end_ms, most=_MOST_NEXT)).rows
        counts = {minute: messages for minute, messages, *_ in rows if minute is not None}
        # the first and the last one are parts of minutes
        minutes = {begin_ms + 60_000 * minute: counts.get(minute, 0) for minute in range(_MINUTES + 1)}
        hours = {1000 * hour.timestamp(): count for hour, count in console.read_rows(_PER_HOUR)}
        names = ("topic", "partition", "key", "deliver_at", "state")
        following = [dict(zip(names, row, strict=True)) for _, _, *row in rows if row[0] is not None]
        total = sum(minutes.values())
        return [
            ui.Notice(f"{total:,} messages are due within the next hour, or overdue, as of the last projection."),
            ui.LineChart("Due per minute, next hour", "messages", [*minutes], {"due": [*minutes.values()]}),
            ui.LineChart("Due per hour, of hours with messages", "messages", [*hours], {"due": [*hours.values()]}),
            ui.list_records("Due next", following, ", ".join(names)),
        ]

    return draw_or_explain("The picture of due times", draw)


# Dead letters: how many, why, and what they hold.


_COLUMNS = "offset, consumer_group, reason, error, delivery_count, source, timestamp, key, value"


def read_dead_letters(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the counts of dead letters."""
    table = ui.list_records(
        "Dead letters",
        console.mq.dead_letters.counts(),
        "topic, consumer_group, reason, source_topic, messages",
        "There are no open dead letters.",
        topic=lambda count: ui.Link(count.topic, ui.make_link("/dead-letter-topic", topic=count.topic)),
    )
    return ui.Page("Dead letters", [table])


def read_dead_letter_topic(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the dead letters of one topic."""
    topic, how = read_text(inputs, "topic"), read_choice(inputs, "as", FORMATS)
    limit = read_number(inputs, "limit", 50, low=1, high=200)
    fields = [
        ui.Field("topic", "topic", topic, is_hidden=True),
        ui.Field("as", "show as", how, FORMATS),
        ui.Field("limit", "at most (up to 200)", str(limit)),
    ]
    table = ui.list_records(
        "Open dead letters",
        console.mq.dead_letters.all(topic, limit=limit).to_pylist(),
        _COLUMNS,
        "There are no open dead letters.",
        how=how,
        offset=lambda row: ui.Link(
            f"{row['partition']}/{row['offset']}",
            ui.make_link("/message", topic=topic, partition=row["partition"], offset=row["offset"]),
        ),
        error=lambda row: (row["error"] or "")[:1_000],
        source=lambda row: f"{row['source_topic']}-{row['source_partition']}, offset {row['source_offset']}",
    )
    parts: list[ui.Part] = [ui.Form("Show", "/dead-letter-topic", fields, "Show"), table]
    if console.settings.allow_changes:
        parts += [offer_change("redrive", topic=topic), offer_change("purge", topic=topic)]
    return ui.Page(f"Dead letters in {topic}", parts, [ui.Link("Dead letters", "/dead-letters")])
