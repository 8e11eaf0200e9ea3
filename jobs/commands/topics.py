"""`lakemq topics`: create, list, describe, alter, delete, and delete records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.output import Output, show

if TYPE_CHECKING:
    from lakemq.engine.client.topics import TopicDescription

topics = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A setting of the topic; repeatable, each key once."),
]
Subscription = Annotated[
    list[str] | None,
    typer.Option(metavar="DESTINATION", help="A destination it also receives, such as 'flights/>'; repeatable."),
]

_NUMBER = re.compile("[0-9]{1,19}")
_PARTITIONS = ("topic", "partition", "beginning_offset", "end_offset", "messages", "state")
_COLUMNS = ("topic", "partitions", "messages", "config", "subscriptions")


def add_to(app: typer.Typer) -> None:
    app.add_typer(topics, name="topics")


@topics.command(help=f"Create a topic. {NEEDS_ANSWER}")
def create(
    ctx: typer.Context,
    topic: Name,
    partitions: Annotated[int, typer.Option(metavar="N", help="Number of partitions.")] = 1,
    config: Config = None,
    subscription: Subscription = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="One with as many partitions may be there already.")
    ] = False,
) -> None:
    from lakemq.engine.client.topics import parse_config

    session, settings = session_of(ctx), parse_config(config or [])
    with session.connect() as mq, answered(mq):
        made = mq.topics.create(topic, partitions, settings, subscription or (), exist_ok=if_not_exists)
    show([_summary(made)], session.output, _COLUMNS)


@topics.command("list")
def list_topics(ctx: typer.Context) -> None:
    """All topics, by name."""
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_summary, mq.topics.list()), session.output, _COLUMNS)


@topics.command()
def describe(ctx: typer.Context, topic: Name) -> None:
    """One topic: settings (those set, and all with defaults) and how far its partitions reach."""
    session = session_of(ctx)
    with session.connect() as mq:
        found = mq.topics.describe(topic)
    if session.output is Output.json:
        show([_whole(found)], session.output, ())
        return
    if session.output is Output.table:
        show([_summary(found)], session.output, ("topic", "topic_id", *_COLUMNS[1:3], "subscriptions"))
        typer.echo()
        show(_settings(found), session.output, ("setting", "value", "set"))
        typer.echo()
    show(_partitions(found), session.output, _PARTITIONS)


@topics.command(help=f"Change settings, the number of partitions, subscriptions. {NEEDS_ANSWER}")
def alter(
    ctx: typer.Context,
    topic: Name,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="The new number of partitions; fewer only with --force.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also to fewer: keys go to those left, the others are read to their ends."),
    ] = False,
    config: Config = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A setting that gets its default back; repeatable.")
    ] = None,
    subscription: Subscription = None,
    no_subscriptions: Annotated[
        bool, typer.Option("--no-subscriptions", help="It receives no other destination any more.")
    ] = False,
) -> None:
    from lakemq.engine.client.topics import parse_config

    changes: dict[str, Any] = dict(parse_config(config or []))
    both = sorted(set(reset or ()) & set(changes))
    if both:
        raise typer.BadParameter(f"{both[0]} is also set with --config", param_hint="--reset")
    if no_subscriptions and subscription:
        raise typer.BadParameter("contradicts --subscription", param_hint="--no-subscriptions")
    wanted = [] if no_subscriptions else subscription
    if not changes and not reset and partitions is None and wanted is None:
        raise typer.BadParameter("nothing to change", param_hint="lakemq topics alter")
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        changed = mq.topics.alter(topic, {**changes, **dict.fromkeys(reset or ())}, partitions, wanted, force)
    show([_summary(changed)], session.output, _COLUMNS)


@topics.command(help=f"Delete a topic and all it holds, at once and for good. {NEEDS_ANSWER}")
def delete(ctx: typer.Context, topic: Name) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        mq.topics.delete(topic)
    show([{"topic": topic, "deleted": True}], session.output, ("topic", "deleted"))


@topics.command("delete-records", help=f"Delete the oldest records of partitions. {NEEDS_ANSWER}")
def delete_records(
    ctx: typer.Context,
    topic: Name,
    before: Annotated[
        list[str],
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="Offsets below this one go; `latest` deletes all there are; repeatable, each partition once.",
        ),
    ],
) -> None:
    from lakemq.engine.client.topics import parse_config

    limits = dict(map(_partition_limit, parse_config(before).items()))
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        mq.topics.delete_records(topic, limits)
        left = mq.topics.describe(topic)
    show(_partitions(left), session.output, _PARTITIONS)


def _partition_limit(pair: tuple[str, str]) -> tuple[int, int]:
    partition, offset = pair
    # -1 would be all there are: what a script came to that subtracts must not be taken for it
    if not _NUMBER.fullmatch(partition) or not (offset == "latest" or _NUMBER.fullmatch(offset)):
        raise typer.BadParameter(f"{partition}={offset} is not PARTITION=OFFSET", param_hint="--before")
    return int(partition), -1 if offset == "latest" else int(offset)


def _summary(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "messages": topic.message_count,
        "config": topic.config,
        "subscriptions": topic.subscriptions,
    }


def _whole(topic: TopicDescription) -> dict[str, Any]:
    offsets = {
        "beginning_offsets": topic.beginning_offsets,
        "end_offsets": topic.end_offsets,
        "partition_states": topic.partition_states,
    }
    return {**_summary(topic), "settings": topic.settings, **offsets}


def _settings(topic: TopicDescription) -> list[dict[str, Any]]:
    return [
        {"setting": key, "value": str(value), "set": "yes" if key in topic.config else "default"}
        for key, value in sorted(topic.settings.items())
    ]


def _partitions(topic: TopicDescription) -> Iterator[dict[str, Any]]:
    logs = zip(topic.beginning_offsets, topic.end_offsets, topic.partition_states, strict=True)
    for partition, (first, end, state) in enumerate(logs):
        yield {
            "topic": topic.topic,
            "partition": partition,
            "beginning_offset": first,
            "end_offset": end,
            "messages": end - first,
            "state": state,
        }
