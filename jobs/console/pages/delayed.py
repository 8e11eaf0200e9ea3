"""Delayed messages: how many wait per topic, and when they are due. And the page of dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lakemq.jobs.commands.shared.times import from_millis
from lakemq.jobs.console.changes import read_choice, read_number, read_text
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.pages.queries import draw_or_explain
from lakemq.jobs.console.parts import (
    Facts,
    Field,
    Form,
    Link,
    Notice,
    Page,
    Part,
    Picture,
    Table,
    draw_bars,
    format_time,
    make_link,
)
from lakemq.jobs.console.payloads import FORMATS, escape_invisible, show_payload

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

_PER_HOUR = "SELECT due_hour, CAST(sum(messages) AS BIGINT) AS messages FROM pending_delayed GROUP BY 1 ORDER BY 1"


def read_delayed(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of delayed messages."""
    with console.observer.look() as observation:
        infos, pointer_ms = observation.delayed.all(), observation.delayed.pointer_ms()
    rows = [
        [
            Link(info.topic, make_link("/topic", name=info.topic)),
            info.messages,
            info.open,
            info.ranges,
            format_time(from_millis(info.first_due_ms)),
            format_time(from_millis(info.last_due_ms)),
        ]
        for info in infos
    ]
    columns = ("topic", "messages", "of open transactions", "ranges", "first due", "last due")
    parts: list[Part] = [
        Facts(
            "Delayed messages",
            [("waiting", sum(info.messages for info in infos)), ("released until", format_time(pointer_ms or None))],
        ),
        Table("Topics", columns, rows, "No message waits."),
        *(_draw_due_times(console) if infos else []),
    ]
    if console.settings.allow_changes:
        parts.append(_offer_cancelling())
    return Page("Delayed messages", parts)


def _draw_due_times(console: Console) -> list[Part]:
    now = datetime.now(UTC)
    begin = now.replace(second=0, microsecond=0)
    begin_ms = int(begin.timestamp() * 1000)
    end_ms = int(now.timestamp() * 1000) + _MINUTES * 60_000  # as the metric and the overview count

    def draw() -> list[Part]:
        rows = console.run_sql(_DUE_SOON.format(begin_ms=begin_ms, end_ms=end_ms, most=_MOST_NEXT)).rows
        counts = {minute: messages for minute, messages, *_ in rows if minute is not None}
        minutes = [
            (f"{begin + timedelta(minutes=minute):%H:%M} UTC", float(counts.get(minute, 0)))
            for minute in range(_MINUTES + 1)  # the first and the last one are parts of minutes
        ]
        hours = [(f"{hour:%Y-%m-%d %H}:00 UTC", float(count)) for hour, count in console.read_rows(_PER_HOUR)]
        following = [
            [topic, partition, show_payload(key, "auto", 200), format_time(deliver_at), state]
            for _, _, topic, partition, key, deliver_at, state in rows
            if topic is not None
        ]
        total = int(sum(count for _, count in minutes))
        return [
            Notice(f"{total:,} messages are due within the next hour, or overdue, as of the last projection."),
            Picture(draw_bars("Due per minute, next hour", minutes, "messages")),
            Picture(draw_bars("Due per hour, of hours with messages", hours, "messages")),
            Table("Due next", ("topic", "partition", "key", "deliver at", "state"), following),
        ]

    return draw_or_explain("The picture of due times", draw)


def _offer_cancelling() -> Form:
    fields = [
        Field("receipt", "receipt of one message"),
        Field("topic", "or a topic"),
        Field("key", "with this key (empty: all keys)"),
    ]
    return Form("Cancel messages", "/change/cancel-delayed", fields, "Continue", is_change=True)


# Dead letters: how many, why, and what they hold.


_COLUMNS = ("offset", "group", "reason", "error", "deliveries", "source", "timestamp", "key", "value")


def read_dead_letters(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the counts of dead letters."""
    rows = [
        [
            Link(count.topic, make_link("/dead-letter-topic", topic=count.topic)),
            Link(count.consumer_group, make_link("/group", name=count.consumer_group)),
            count.reason,
            Link(count.source_topic, make_link("/topic", name=count.source_topic)),
            count.messages,
        ]
        for count in console.mq.dead_letters.counts()
    ]
    columns = ("topic", "group", "reason", "source topic", "messages")
    return Page("Dead letters", [Table("Dead letters", columns, rows, "There are no open dead letters.")])


def read_dead_letter_topic(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the dead letters of one topic."""
    topic, how = read_text(inputs, "topic"), read_choice(inputs, "as", FORMATS)
    limit = read_number(inputs, "limit", 50, low=1, high=200)
    rows = [
        [
            Link(
                f"{row['partition']}/{row['offset']}",
                make_link("/message", topic=topic, partition=row["partition"], offset=row["offset"]),
            ),
            row["consumer_group"],
            row["reason"],
            escape_invisible((row["error"] or "")[:1_000]),
            row["delivery_count"],
            f"{row['source_topic']}-{row['source_partition']}, offset {row['source_offset']}",
            format_time(row["timestamp"]),
            show_payload(row["key"], how, 200),
            show_payload(row["value"], how),
        ]
        for row in console.mq.dead_letters.all(topic, limit=limit).to_pylist()
    ]
    form = Form(
        "Show",
        "/dead-letter-topic",
        [
            Field("topic", "topic", topic, is_hidden=True),
            Field("as", "show as", how, FORMATS),
            Field("limit", "at most (up to 200)", str(limit)),
        ],
        "Show",
    )
    parts: list[Part] = [form, Table("Open dead letters", _COLUMNS, rows, "There are no open dead letters.")]
    if console.settings.allow_changes:
        fields = [
            Field("topic", "topic", topic, is_hidden=True),
            Field("group", "only those of this group (empty: all)"),
        ]
        parts += [
            Form("Send back to their topics", "/change/redrive", fields, "Continue", is_change=True),
            Form("Purge them", "/change/purge", fields, "Continue", is_change=True),
        ]
    return Page(f"Dead letters in {topic}", parts, [Link("Dead letters", "/dead-letters")])
