"""Topics: their settings, their partitions, the groups that read them, how keys spread. And a page of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.topics import list_schemas, list_settings
from lakemq.jobs.commands.transactions import STATES
from lakemq.jobs.console.changes import read_choice, read_text
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.parts import (
    Actions,
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
    format_length,
    format_time,
    make_link,
)
from lakemq.jobs.console.payloads import show_payload
from lakemq.jobs.output import format_setting, format_size

if TYPE_CHECKING:
    from lakemq.engine.client.topics import TopicDescription
    from lakemq.engine.client.transactions.operations import TransactionInfo


_HOME = Link("Topics", "/topics")
_MOST_BARS = 200
"""How many partitions the picture of a topic shows."""


def read_topics(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the list of topics."""
    sizes = read_sizes(console)
    rows = [
        [
            Link(topic.topic, make_link("/topic", name=topic.topic)),
            topic.partitions,
            topic.offset_count,
            format_size(sizes.get(topic.topic)),
            ", ".join(f"{key}={format_setting(value)}" for key, value in topic.config.items()),
            ", ".join(topic.subscriptions),
            Link("messages", make_link("/messages", topic=topic.topic)),
        ]
        for topic in console.mq.topics.list()
    ]
    columns = ("topic", "partitions", "offsets", "size", "settings that are set", "subscriptions", "")
    note = "Offsets count messages and markers of transactions. Sizes are those of data files, some seconds old."
    return Page("Topics", [Table("Topics", columns, rows, "There is no topic yet.", note)])


def read_sizes(console: Console) -> dict[str, int]:
    """Return topic -> bytes, as the metrics have them; empty if they are not read yet."""
    return {
        sample.labels["topic"]: int(sample.value)
        for family in console.collector.collect()
        if family.name == "lakemq_topic_size_bytes"
        for sample in family.samples
    }


def read_topic(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return the page of one topic."""
    name = read_text(inputs, "name")
    topic = console.mq.topics.describe(name)
    offsets = [end - first for first, end in zip(topic.beginning_offsets, topic.end_offsets, strict=True)]
    parts: list[Part] = [
        _list_actions(console, name),
        Facts(
            "Topic",
            [
                ("id", topic.topic_id),
                ("partitions", topic.partitions),
                ("offsets", topic.offset_count),
                ("size", format_size(read_sizes(console).get(name))),
                ("subscriptions", ", ".join(topic.subscriptions) or "-"),
            ],
        ),
        Picture(
            draw_bars(
                "Offsets per partition", [(f"partition {p}", n) for p, n in enumerate(offsets[:_MOST_BARS])], "offsets"
            )
        ),
        _list_partitions(topic),
        _list_readers(console, name),
    ]
    if read_choice(inputs, "keys", ("no", "yes")) == "yes":
        parts += _show_key_spread(console, name)
    parts.append(Table("Settings", ("setting", "value", "set"), [list(row.values()) for row in list_settings(topic)]))
    if topic.schemas:
        parts.append(_list_schemas(topic))
    if console.settings.allow_changes:
        parts += [_offer_setting(name), _offer_deletion(name)]
    return Page(name, parts, [_HOME])


def _list_actions(console: Console, name: str) -> Actions:
    return Actions(
        [
            Link("Browse messages", make_link("/messages", topic=name)),
            Link("Count keys per partition", make_link("/topic", name=name, keys="yes")),
        ]
    )


def _list_partitions(topic: TopicDescription) -> Table:
    rows = [
        [
            Link(str(partition), make_link("/messages", topic=topic.topic, partition=partition)),
            first,
            end,
            stable,
            end - first,
            state,
        ]
        for partition, (first, stable, end, state) in enumerate(
            zip(
                topic.beginning_offsets,
                topic.last_stable_offsets,
                topic.end_offsets,
                topic.partition_states,
                strict=True,
            )
        )
    ]
    columns = ("partition", "log start", "end offset", "last stable offset", "offsets", "state")
    note = "Below the end offset, the last stable offset says that an open transaction holds readers up."
    return Table("Partitions", columns, rows, note=note)


def _list_schemas(topic: TopicDescription) -> Table:
    columns = ("version", "type", "schema", "step", "state")
    note = "New messages must fit the schema in force. Older ones are read under the newest version."
    return Table("Schemas", columns, [list(row.values()) for row in list_schemas(topic)], note=note)


def _list_readers(console: Console, name: str) -> Table:
    with console.observer.look() as observation:
        lags = [
            lag for group in observation.groups.list() for lag in observation.groups.lag(group) if lag.topic == name
        ]
    by_group: dict[str, list[int]] = {}
    for lag in lags:
        sums = by_group.setdefault(lag.group, [0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + lag.lag, sums[2] + lag.unacknowledged
    rows = [[Link(group, make_link("/group", name=group)), *sums] for group, sums in sorted(by_group.items())]
    return Table("Groups that read it", ("group", "partitions", "lag", "unacknowledged"), rows, "No group reads it.")


def _show_key_spread(console: Console, name: str) -> list[Part]:
    from lakemq.jobs.key_spread import find_key_spread

    spread = find_key_spread(console.mq, name)
    rows = [
        [
            partition.partition,
            partition.messages,
            f"{spread.share(partition, 'messages'):.1%}",
            partition.keys,
            format_size(partition.size_bytes),
            f"{partition.hot_key_messages / max(1, partition.messages):.1%}",
            show_payload(partition.hot_key),
        ]
        for partition in spread.partitions
    ]
    columns = ("partition", "messages", "share", "keys", "bytes", "share of its hottest key", "hottest key")
    note = f"Counted over the newest {spread.read:,} of {spread.offsets:,} offsets."
    return [*(Notice(text, "bad") for text in spread.warnings()), Table("Spread of keys", columns, rows, note=note)]


def _offer_setting(name: str) -> Form:
    fields = [
        Field("topic", "topic", name, is_hidden=True),
        Field("setting", "setting, such as retention.ms"),
        Field("value", "new value; empty: the default"),
    ]
    return Form("Change a setting", "/change/alter-topic", fields, "Continue", is_change=True)


def _offer_deletion(name: str) -> Form:
    fields = [Field("topic", "topic", name, is_hidden=True)]
    return Form("Delete this topic", "/change/delete-topic", fields, "Continue", is_change=True)


# Transactions: who holds readers of committed messages up, and since when.


_MOST_ROWS = 500
_COLUMNS = (
    "transactional id",
    "state",
    "open for",
    "timeout",
    "started",
    "partitions",
    "groups",
    "problem",
    "producer",
)


def read_transactions(console: Console, inputs: Mapping[str, Any]) -> Page:
    """Return transactional ids, those with an open transaction first."""
    state = read_choice(inputs, "state", ("all", *STATES))
    with console.observer.look() as observation:
        infos = observation.transactions.all(() if state == "all" else (state,))
    infos.sort(key=lambda info: -(info.open_ms or 0))
    rows = [_make_row(console, info) for info in infos[:_MOST_ROWS]]
    note = f"{len(infos) - _MOST_ROWS:,} more are not shown." if len(infos) > _MOST_ROWS else ""
    columns = (*_COLUMNS, "") if console.settings.allow_changes else _COLUMNS
    parts: list[Part] = [
        Form("Filter", "/transactions", [Field("state", "state", state, ("all", *STATES))], "Show"),
        Table("Transactional ids", columns, rows, "There is none.", note),
    ]
    return Page("Transactions", parts)


def _make_row(console: Console, info: TransactionInfo) -> list[Any]:
    row: list[Any] = [
        info.transactional_id,
        info.state,
        format_length(info.open_ms),
        format_length(info.timeout_ms),
        format_time(info.started_at_ms),
        ", ".join(info.partitions),
        ", ".join(info.groups),
        info.error or "",
        f"{info.producer_id}, epoch {info.producer_epoch}",
    ]
    if console.settings.allow_changes:
        is_open = info.state == "Ongoing"
        row.append(Link("abort", make_link("/change/abort", id=info.transactional_id)) if is_open else "")
    return row
