"""`lakemq topics`: create, list, describe, alter, delete, and delete records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.shared.context import (
    ASKS,
    NEEDS_SEQUENCER,
    Yes,
    confirm,
    connect,
    ensure_sequencer,
    get_session,
    show,
)
from lakemq.jobs.commands.shared.message_format import SchemaFile, read_schema_settings
from lakemq.jobs.commands.shared.printing import show_activity
from lakemq.jobs.output import Output, format_setting, note

if TYPE_CHECKING:
    from lakemq.engine.client.groups.group_info import GroupInfo
    from lakemq.engine.client.topics import TopicDescription
    from lakemq.jobs.key_spread import KeySpread

topics = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A setting of the topic; repeatable, each key once."),
]
Subscription = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DESTINATION", help="A destination that the topic also receives, such as 'flights/>'; repeatable."
    ),
]

_NUMBER = re.compile("[0-9]{1,19}")
_MOST_SHOWN = 100
"""Characters of a setting in a table. Only a schema has more, and it is shown below."""
_PARTITIONS = ("topic", "partition", "beginning_offset", "end_offset", "offsets", "state")
_SPREAD = ("messages", "message_share", "keys", "key_share", "bytes", "byte_share", "hot_key_share")
_SCHEMAS = ("version", "type", "schema", "step", "state")
_COLUMNS = ("topic", "partitions", "offsets", "config", "subscriptions")


@topics.command(help=f"Create a topic. {NEEDS_SEQUENCER}")
def create(
    topic: Name,
    partitions: Annotated[int, typer.Option(metavar="N", help="Number of partitions.")] = 1,
    config: Config = None,
    schema: SchemaFile = None,
    subscription: Subscription = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if it exists already with these partitions and settings.")
    ] = False,
) -> None:
    from lakemq.engine.client.topics import parse_config

    settings = {**read_schema_settings(schema), **parse_config(config or [])}
    with connect() as mq, ensure_sequencer(mq):
        made = mq.topics.create(topic, partitions, settings, subscription or (), exist_ok=if_not_exists)
    show([_summary(made)], _COLUMNS)


@topics.command("list")
def list_topics() -> None:
    """List all topics by name with their number of offsets: records and markers that are not deleted."""
    with connect() as mq:
        show(map(_summary, mq.topics.list()), _COLUMNS)


@topics.command()
def describe(
    topic: Name,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys", help="Also count keys and bytes per partition, and warn about partitions with too many."
        ),
    ] = False,
    newest: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --keys: read about N of the newest messages. [100000]"),
    ] = None,
    show_hot_keys: Annotated[
        bool, typer.Option("--show-hot-keys", help="With --keys: also show the most frequent key of each partition.")
    ] = False,
) -> None:
    """Show a topic: all its settings, and the offsets of its partitions.

    --keys reads the newest messages, the same share of each partition. It shows how messages, distinct keys and bytes
    spread over the partitions, and the share of each partition's most frequent key. A line on stderr warns about
    partitions with twice their fair share of keys or bytes, and about a key that fills a fair share alone.
    """
    if not keys and (newest is not None or show_hot_keys):
        raise typer.BadParameter(
            "it goes only with --keys", param_hint="--newest" if newest is not None else "--show-hot-keys"
        )
    session = get_session()
    with connect() as mq:
        description = mq.topics.describe(topic)
        spread = None
        if keys:
            from lakemq.jobs.key_spread import NEWEST, find_key_spread

            with show_activity("counting keys"):
                spread = find_key_spread(mq, topic, newest or NEWEST)
    rows = list_spread(spread, show_hot_keys) if spread else []
    warnings = spread.warnings() if spread else []
    if session.output is Output.json:
        extra = {}
        if spread:
            counts = {"offsets": spread.offsets, "offsets_read": spread.read}
            extra = {"key_spread": {**counts, "partitions": rows, "warnings": warnings}}
        show([{**_whole(description), **extra}], ())
    else:
        if session.output is Output.table:
            show([_summary(description)], ("topic", "topic_id", *_COLUMNS[1:3], "subscriptions"))
            typer.echo()
            show(list_settings(description), ("setting", "value", "set"))
            typer.echo()
            if description.schemas:
                show(list_schemas(description), _SCHEMAS)
                typer.echo()
        by_partition = {row["partition"]: row for row in rows}
        columns = _PARTITIONS + (_SPREAD if spread else ()) + (("hot_key",) if show_hot_keys else ())
        partitions = ({**row, **by_partition.get(row["partition"], {})} for row in list_partitions(description))
        show(({name: row.get(name) for name in columns} for row in partitions), columns)
    if spread and spread.read < spread.offsets:
        note(f"messages, keys and bytes are counted over the newest {spread.read:,} of {spread.offsets:,} offsets")
    for warning in warnings:
        note(warning)


@topics.command(
    help="Change a topic's settings, number of partitions or subscriptions. If retention then deletes messages that a"
    f" group has not read, it asks for confirmation first, unless --yes is given. {NEEDS_SEQUENCER}"
)
def alter(
    topic: Name,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="The new number of partitions; fewer only with --force.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Allow fewer partitions: keys move to the remaining ones, and the others are read to their ends.",
        ),
    ] = False,
    config: Config = None,
    schema: SchemaFile = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Reset a setting to its default; repeatable.")
    ] = None,
    subscription: Subscription = None,
    no_subscriptions: Annotated[bool, typer.Option("--no-subscriptions", help="Remove all subscriptions.")] = False,
    yes: Yes = False,
) -> None:
    from lakemq.engine.client.topics import parse_config

    changes: dict[str, Any] = {**read_schema_settings(schema), **parse_config(config or [])}
    both = sorted(set(reset or ()) & set(changes))
    if both:
        raise typer.BadParameter(f"{both[0]} is also set with --config", param_hint="--reset")
    if no_subscriptions and subscription:
        raise typer.BadParameter("it contradicts --subscription", param_hint="--no-subscriptions")
    subscriptions = [] if no_subscriptions else subscription
    if not changes and not reset and partitions is None and subscriptions is None:
        raise typer.BadParameter("there is nothing to change", param_hint="lakemq topics alter")
    settings = {**changes, **dict.fromkeys(reset or ())}
    with connect() as mq:
        from lakemq.jobs.status import name_losers

        unread = "" if yes else name_losers(mq, topic, settings)
        if unread:
            confirm(f"With these settings, retention of topic {topic!r} deletes unread messages of {unread}?", yes)
        with ensure_sequencer(mq):
            changed = mq.topics.alter(topic, settings, partitions, subscriptions, force)
    show([_summary(changed)], _COLUMNS)


@topics.command(help=f"Delete a topic and all its messages, immediately and permanently. {ASKS} {NEEDS_SEQUENCER}")
def delete(topic: Name, yes: Yes = False) -> None:
    from lakemq.jobs.status import name_readers

    with connect() as mq:
        described = mq.topics.describe(topic)
        readers = "" if yes else name_readers(mq, topic)
        confirm(f"Delete topic {topic!r} with {_size(described)}{readers}?", yes)
        with ensure_sequencer(mq):
            mq.topics.delete(topic)
    show([{"topic": topic, "deleted": True}], ("topic", "deleted"))


@topics.command("delete-records", help=f"Delete the oldest records of partitions. {ASKS} {NEEDS_SEQUENCER}")
def delete_records(
    topic: Name,
    before: Annotated[
        list[str],
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="Delete the offsets below this one; `latest` deletes all; repeatable, each partition once.",
        ),
    ],
    yes: Yes = False,
) -> None:
    from lakemq.engine.client.topics import parse_config

    limits = dict(map(_partition_limit, parse_config(before).items()))
    with connect() as mq:
        mq.topics.describe(topic)  # refuse a topic that does not exist before asking for confirmation
        below = ", ".join(f"{partition} below {'its end' if at < 0 else at}" for partition, at in limits.items())
        confirm(f"Delete the records of topic {topic!r} in partition {below}?", yes)
        with ensure_sequencer(mq):
            mq.topics.delete_records(topic, limits)
            description = mq.topics.describe(topic)
    show(list_partitions(description), _PARTITIONS)


def _partition_limit(pair: tuple[str, str]) -> tuple[int, int]:
    partition, offset = pair
    # -1 means all offsets in the protocol: a script that computes -1 by mistake must not delete everything
    if not _NUMBER.fullmatch(partition) or not (offset == "latest" or _NUMBER.fullmatch(offset)):
        raise typer.BadParameter(f"{partition}={offset} is not PARTITION=OFFSET", param_hint="--before")
    return int(partition), -1 if offset == "latest" else int(offset)


def _size(topic: TopicDescription) -> str:
    """Return the size of a topic as part of a question."""
    partitions = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
    return f"{topic.offset_count:,} offsets in {partitions}"


def _summary(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "offsets": topic.offset_count,
        "config": topic.config,
        "subscriptions": topic.subscriptions,
    }


def list_spread(spread: KeySpread, show_hot_keys: bool) -> list[dict[str, Any]]:
    """Return a row per partition. Shares are of the topic; hot_key_share is of the partition's messages."""
    rows = []
    for partition in spread.partitions:
        row: dict[str, Any] = {
            "partition": partition.partition,
            "messages": partition.messages,
            "message_share": round(spread.share(partition, "messages"), 3),
            "keys": partition.keys,
            "key_share": round(spread.share(partition, "keys"), 3),
            "bytes": partition.size_bytes,
            "byte_share": round(spread.share(partition, "size_bytes"), 3),
            "hot_key_share": round(partition.hot_key_messages / max(1, partition.messages), 3),
        }
        if show_hot_keys:
            row["hot_key"] = None if partition.hot_key is None else partition.hot_key.decode(errors="backslashreplace")
        rows.append(row)
    return rows


def _whole(topic: TopicDescription) -> dict[str, Any]:
    offsets = {
        "beginning_offsets": topic.beginning_offsets,
        "end_offsets": topic.end_offsets,
        "partition_states": topic.partition_states,
        "schemas": list_schemas(topic),
    }
    return {**_summary(topic), "settings": topic.settings, **offsets}


def list_settings(described: TopicDescription | GroupInfo) -> list[dict[str, Any]]:
    """Return all settings of a topic or a group by name: setting, value, and whether it is set."""
    return [
        {
            "setting": name,
            "value": _shorten(format_setting(value)),
            "set": "yes" if name in described.config else "default",
        }
        for name, value in sorted(described.settings.items())
    ]


def _shorten(value: str) -> str:
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."


def list_schemas(topic: TopicDescription) -> list[dict[str, Any]]:
    """Return the versions of a topic's schema: version, type, schema, step and state."""
    in_force = topic.schemas[-1].version if topic.schemas and topic.settings["schema"] else None
    return [
        {
            "version": version.version,
            "type": version.type,
            "schema": version.schema,
            "step": version.step,
            "state": "in force" if version.version == in_force else "past",
        }
        for version in topic.schemas
    ]


def list_partitions(topic: TopicDescription) -> Iterator[dict[str, Any]]:
    """Yield the extent and the state of each partition."""
    ends = zip(topic.last_stable_offsets, topic.end_offsets, strict=True)
    logs = zip(topic.beginning_offsets, ends, topic.partition_states, strict=True)
    for partition, (first, (stable, end), state) in enumerate(logs):
        yield {
            "topic": topic.topic,
            "partition": partition,
            "beginning_offset": first,
            "end_offset": end,
            "last_stable_offset": stable,
            "offsets": end - first,
            "state": state,
        }
