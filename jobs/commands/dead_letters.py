"""`lakemq dead-letters`: list dead letters, send them back, or purge them."""

from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import ASKS, NEEDS_SEQUENCER, Yes, confirm, connect, ensure_sequencer, show

dead_letters = typer.Typer(no_args_is_help=True, help="List, show, redrive and purge dead letters.")

Topic = Annotated[str, typer.Argument(help="The dead-letter topic.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help='A condition in DuckDB\'s SQL over partition, "offset" (in quotes), consumer_group, reason, error,'
        " delivery_count, source_topic, source_partition, source_offset, timestamp, key, value and headers.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the dead letters.")]

_LISTED = ("topic", "consumer_group", "reason", "source_topic", "messages")
_SHOWN = (
    "partition, offset, consumer_group, reason, error, delivery_count, source_topic, source_partition, source_offset,"
    " timestamp, key, value"
)


@dead_letters.command("list")
def list_dead_letters(topic: Annotated[str | None, typer.Argument(help="Only this dead-letter topic.")] = None) -> None:
    """Count the pending dead letters by topic, group, reason and source.

    A dead letter is pending until it is redriven or purged.
    """
    with connect() as mq:
        show((count._asdict() for count in mq.dead_letters.counts(topic)), _LISTED)


@dead_letters.command("show")
def show_dead_letters(
    topic: Topic,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most N.")] = 100,
) -> None:
    """Show pending dead letters and their reasons, by partition and offset."""
    with connect() as mq:
        rows = mq.dead_letters.all(topic, where, limit).select(_SHOWN.split(", "))
        show(rows.to_pylist(), _SHOWN)


@dead_letters.command(
    help="Send dead letters back to their source topics, each once. waiting: letters that have not arrived there within"
    f" the time for an answer; without_topic: letters whose topic is deleted. {NEEDS_SEQUENCER}"
)
def redrive(
    topic: Topic,
    where: Where = None,
    rate: Annotated[int | None, typer.Option(min=1, metavar="N", help="Send at most N per second.")] = None,
    dry_run: DryRun = False,
) -> None:
    with connect() as mq, ensure_sequencer(mq):
        report = mq.dead_letters.redrive(topic, where, dry_run=dry_run, rate_per_s=rate)
    row = {"messages": report.messages, "waiting": report.waiting, "without_topic": report.without_topic}
    show([row], tuple(row))


@dead_letters.command(
    help="Be done with dead letters: they are listed no more, and do not go back. Their messages stay as long"
    f" as the topic's retention says. {ASKS} {NEEDS_SEQUENCER}"
)
def purge(topic: Topic, where: Where = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    with connect() as mq:
        which = "" if where is None else f" where {where}"
        confirm(f"Purge the dead letters of {topic!r}{which}?", yes or dry_run)
        with ensure_sequencer(mq):
            count = mq.dead_letters.purge(topic, where, dry_run=dry_run)
    show([{"messages": count}], ("messages",))
