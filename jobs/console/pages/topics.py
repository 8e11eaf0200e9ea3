"""Topics: their settings, their partitions, the groups that read them, how keys spread. And a page of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakemq.jobs.commands.topics import list_partitions, list_schemas, list_settings, list_spread
from lakemq.jobs.commands.transactions import STATES
from lakemq.jobs.console import parts as ui
from lakemq.jobs.console.changes import offer_change, read_choice, read_text
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.pages.charts import offer_ranges, read_last, read_minutes
from lakemq.jobs.output import format_size
from lakemq.jobs.reports.history_report import draw_groups, draw_topics

if TYPE_CHECKING:
    from lakemq.engine.client.transactions.operations import TransactionInfo


def read_topics(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the list of topics."""
    sizes, text = read_sizes(console), read_text(inputs, "text", "")
    table = ui.list_records(
        "Topics",
        [topic for topic in console.mq.topics.list() if text.lower() in topic.topic.lower()],
        "topic, partitions, offset_count, size, config, subscriptions, messages",
        "No name has this text." if text else "There is no topic yet.",
        "Offsets count messages and markers of transactions. Sizes are those of data files, some seconds old.",
        size=lambda topic: format_size(sizes.get(topic.topic)),
        messages=lambda topic: ui.Link("messages", ui.make_link("/messages", topic=topic.topic)),
    )
    create = [offer_change("create-topic")] if console.settings.allow_changes else []
    return ui.Page("Topics", [ui.make_filter("/topics", "text in the name", text), table, *create])


def read_sizes(console: Console) -> dict[str, int]:
    """Return topic -> bytes, as the metrics have them; empty if they are not read yet."""
    return {
        sample.labels["topic"]: int(sample.value)
        for family in console.collector.collect()
        if family.name == "lakemq_topic_size_bytes"
        for sample in family.samples
    }


def read_topic(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return the page of one topic."""
    name = read_text(inputs, "name")
    topic = console.mq.topics.describe(name)
    samples = read_last(console, read_minutes(inputs), topic=name)
    parts: list[ui.Part] = [
        ui.Actions(
            [
                ui.Link("Browse messages", ui.make_link("/messages", topic=name)),
                ui.Link("Follow new messages", ui.make_link("/tail", topic=name)),
                ui.Link("Count keys per partition", ui.make_link("/topic", name=name, keys="yes")),
            ]
        ),
        ui.list_facts(
            "Topic",
            {**vars(topic), "offset_count": topic.offset_count, "size_bytes": read_sizes(console).get(name)},
            "topic_id, partitions, offset_count, size_bytes, subscriptions",
        ),
        offer_ranges("/topic", name=name),
        *draw_topics(samples),
        *draw_groups(samples),
        ui.list_records(
            "Partitions",
            list_partitions(topic),
            "partition, beginning_offset, end_offset, last_stable_offset, offsets, state",
            note="Below the end offset, the last stable offset says that an open transaction holds readers up.",
            partition=lambda row: ui.Link(
                str(row["partition"]), ui.make_link("/messages", topic=name, partition=row["partition"])
            ),
        ),
        _list_readers(console, name),
    ]
    if read_choice(inputs, "keys", ("no", "yes")) == "yes":
        parts += _show_key_spread(console, name)
    parts.append(ui.list_records("Settings", list_settings(topic), "setting, value, set"))
    if topic.schemas:
        note = "New messages must fit the schema in force. Older ones are read under the newest version."
        parts.append(ui.list_records("Schemas", list_schemas(topic), "version, type, schema, step, state", note=note))
    if console.settings.allow_changes:
        parts.append(offer_change("alter-topic", topic.settings, topic=name))
        changes = ("publish", "add-partitions", "delete-records", "delete-topic")
        parts += [offer_change(change, topic=name) for change in changes]
    return ui.Page(name, parts, [ui.Link("Topics", "/topics")])


def _list_readers(console: Console, name: str) -> ui.Table:
    with console.observer.look() as observation:
        lags = [
            lag for group in observation.groups.list() for lag in observation.groups.lag(group) if lag.topic == name
        ]
    by_group: dict[str, list[int]] = {}
    for lag in lags:
        sums = by_group.setdefault(lag.group, [0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + lag.lag, sums[2] + lag.unacknowledged
    rows = [[ui.Link(group, ui.make_link("/group", name=group)), *sums] for group, sums in sorted(by_group.items())]
    return ui.Table("Groups that read it", ("group", "partitions", "lag", "unacknowledged"), rows, "No group reads it.")


def _show_key_spread(console: Console, name: str) -> list[ui.Part]:
    from lakemq.jobs.key_spread import find_key_spread

    spread = find_key_spread(console.mq, name)
    table = ui.list_records(
        "Spread of keys",
        list_spread(spread, show_hot_keys=True),
        "partition, messages, message_share, keys, bytes, hot_key_share, hot_key",
        note=f"Counted over the newest {spread.read:,} of {spread.offsets:,} offsets.",
    )
    return [*(ui.Notice(text, "bad") for text in spread.warnings()), table]


# Transactions: who holds readers of committed messages up, and since when.


_MOST_ROWS = 500
_COLUMNS = "transactional_id, state, open_ms, timeout_ms, started_at_ms, partitions, groups, error, producer"


def read_transactions(console: Console, inputs: Mapping[str, Any]) -> ui.Page:
    """Return transactional ids, those with an open transaction first."""
    state = read_choice(inputs, "state", ("all", *STATES))
    with console.observer.look() as observation:
        infos = observation.transactions.all(() if state == "all" else (state,))
    infos.sort(key=lambda info: -(info.open_ms or 0))
    table = ui.list_records(
        "Transactional ids",
        infos[:_MOST_ROWS],
        f"{_COLUMNS}, change" if console.settings.allow_changes else _COLUMNS,
        "There is none.",
        f"{len(infos) - _MOST_ROWS:,} more are not shown." if len(infos) > _MOST_ROWS else "",
        producer=lambda info: f"{info.producer_id}, epoch {info.producer_epoch}",
        change=_offer_abort,
    )
    form = ui.Form("Filter", "/transactions", [ui.Field("state", "state", state, ("all", *STATES))], "Show")
    return ui.Page("Transactions", [form, table])


def _offer_abort(info: TransactionInfo) -> ui.Link | str:
    is_open = info.state == "Ongoing"
    return ui.Link("abort", ui.make_link("/change/abort", id=info.transactional_id)) if is_open else ""
