"""`lakemq dead-letters`: what groups gave up, and to send it back."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.output import show

dead_letters = typer.Typer(no_args_is_help=True, help="List, show, redrive and purge dead letters.")

Topic = Annotated[str, typer.Argument(help="The dead-letter topic.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="SQL, as DuckDB has it, over partition, offset (to be quoted), consumer_group, reason, error,"
        " delivery_count, source_topic, source_partition, source_offset, timestamp, key, value and headers.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]

_LISTED = ("topic", "consumer_group", "reason", "source_topic", "messages")
_SHOWN = (
    "partition",
    "offset",
    "consumer_group",
    "reason",
    "error",
    "delivery_count",
    "source_topic",
    "source_partition",
    "source_offset",
    "timestamp",
    "key",
    "value",
)


def add_to(app: typer.Typer) -> None:
    app.add_typer(dead_letters, name="dead-letters")


@dead_letters.command("list")
def list_dead_letters(
    ctx: typer.Context, topic: Annotated[str | None, typer.Argument(help="Only of this dead-letter topic.")] = None
) -> None:
    """How many dead letters there are with which nobody has dealt: by topic, group, reason and source."""
    session = session_of(ctx)
    with session.connect() as mq:
        show((one._asdict() for one in mq.dead_letters.counts(topic)), session.output, _LISTED)


@dead_letters.command("show")
def show_dead_letters(
    ctx: typer.Context,
    topic: Topic,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """Dead letters with which nobody has dealt, by partition and offset, and why they are."""
    session = session_of(ctx)
    with session.connect() as mq:
        rows = mq.dead_letters.all(topic, where, limit).select(_SHOWN)
        show(rows.to_pylist(), session.output, _SHOWN)


@dead_letters.command(
    help="Send dead letters back to the topics they come from, each once. waiting: have not come there in the time"
    f" that an answer may take; without_topic: theirs is deleted. {NEEDS_ANSWER}"
)
def redrive(
    ctx: typer.Context,
    topic: Topic,
    where: Where = None,
    rate: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many in a second.")] = None,
    dry_run: DryRun = False,
) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        told = mq.dead_letters.redrive(topic, where, dry_run=dry_run, rate_per_s=rate)
    row = {"messages": told.messages, "waiting": told.waiting, "without_topic": told.without_topic}
    show([row], session.output, tuple(row))


@dead_letters.command(
    help="Be done with dead letters: they are listed no more, and do not go back. Their messages stay as long"
    f" as the topic's retention says. {NEEDS_ANSWER}"
)
def purge(ctx: typer.Context, topic: Topic, where: Where = None, dry_run: DryRun = False) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        count = mq.dead_letters.purge(topic, where, dry_run=dry_run)
    show([{"messages": count}], session.output, ("messages",))
