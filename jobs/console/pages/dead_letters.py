"""Dead letters: how many, why, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemq.jobs.console.console import Console
from lakemq.jobs.console.inputs import read_choice, read_number, read_text
from lakemq.jobs.console.parts import Field, Form, Link, Page, Part, Table
from lakemq.jobs.console.payloads import FORMATS, escape_invisible, show_payload
from lakemq.jobs.console.rendering import format_time, make_link

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
