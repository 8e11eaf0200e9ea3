"""`lakemq delayed`: list, cancel, reschedule and release delayed messages."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

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
from lakemq.jobs.commands.shared.times import DelayMs, DeliverAt, from_millis, parse_moment_option, to_millis, to_record
from lakemq.jobs.output import Output
from lakemq.jobs.process.streams import end_with_reader

if TYPE_CHECKING:
    from lakemq.jobs.release_delayed import ReleaseProgress

delayed = typer.Typer(no_args_is_help=True, help="List, cancel and reschedule delayed messages.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show which messages it would affect.")]

_CANCELLED = "topic, partition, key, deliver_at, receipt, outcome"
_LISTED = "topic, messages, open, ranges, first_due, last_due"
_DESCRIBED = "topic, messages, open, ranges, first_due, last_due, released_until"


@delayed.command("list")
def list_delayed_messages() -> None:
    """List the topics with waiting messages, by name.

    open: messages of transactions that have not ended; ranges: rows in the table `delayed`.
    """
    with connect() as mq:
        show(map(to_record, mq.delayed.all()), _LISTED)


@delayed.command()
def describe(topic: Annotated[str, typer.Argument(help="The topic.")]) -> None:
    """Show the messages that wait for a topic.

    released_until: all messages that were due by then, of any topic, are released.
    """
    with connect() as mq:
        until = from_millis(mq.delayed.pointer_ms() or None)
        rows = [{**to_record(info), "released_until": until} for info in mq.delayed.all(topic)]
        show(rows, _DESCRIBED)


@delayed.command(
    help="Cancel messages by their receipts, or all waiting messages that match a topic, a key and a condition. Shows"
    " the outcome of each: cancelled, released, rescheduled or not_found."
    f" By topic, key or condition it asks for confirmation first, unless --yes is given. {NEEDS_SEQUENCER}"
)
def cancel(
    receipts: Annotated[
        list[str] | None, typer.Argument(metavar="[RECEIPT...]", help="Receipts that `schedule` and `send` returned.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only messages of this topic.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only messages with this key.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="A condition in DuckDB's SQL over the columns of pending_delayed_rows."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    is_where = any(receipt is not None for receipt in (topic, key, where))
    if bool(receipts) == is_where:
        raise typer.BadParameter("give receipts, or --topic, --key or --where", param_hint="RECEIPT")
    if dry_run and not is_where:
        raise typer.BadParameter("it goes only with --topic, --key or --where", param_hint="--dry-run")
    with connect() as mq:
        if is_where:
            confirm(f"Cancel the delayed messages {_which(topic, key, where)}?", yes or dry_run)
        with ensure_sequencer(mq):
            if is_where:
                cancelled = mq.delayed.cancel_where(topic, key, where, dry_run=dry_run)
                show(cancelled.to_pylist(), _CANCELLED)
                return
            outcomes = mq.delayed.cancel_all(receipts or [])
    rows = [{"receipt": receipt, "outcome": outcome} for receipt, outcome in zip(receipts or [], outcomes, strict=True)]
    show(rows, ("receipt", "outcome"))


@delayed.command(help=f"Cancel all messages that wait for a topic, and count them by outcome. {ASKS} {NEEDS_SEQUENCER}")
def purge(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    with connect() as mq:
        mq.topics.describe(topic)  # refuse a topic that does not exist before asking for confirmation
        confirm(f"Cancel all delayed messages of topic {topic!r}?", yes or dry_run)
        with ensure_sequencer(mq):
            counts = mq.delayed.cancel_where(topic, dry_run=dry_run).column("outcome").value_counts().to_pylist()
    rows = [{"outcome": count["values"], "messages": count["counts"]} for count in counts]
    show(rows, ("outcome", "messages"))


@delayed.command(
    help="Deliver a waiting message at another time, and show its new receipt. If it no longer waits, show its outcome."
    f" {NEEDS_SEQUENCER}"
)
def reschedule(
    receipt: Annotated[str, typer.Argument(help="The receipt that `schedule` or `send` returned.")],
    deliver_at: DeliverAt = None,
    delay_ms: DelayMs = None,
) -> None:
    at = parse_moment_option(deliver_at)
    if (at is None) == (delay_ms is None):
        raise typer.BadParameter("give --deliver-at or --delay-ms", param_hint="--deliver-at")
    with connect() as mq, ensure_sequencer(mq):
        result = mq.delayed.reschedule(receipt, deliver_at=at, delay_ms=delay_ms)
    row = {"outcome": result.outcome, "deliver_at": from_millis(result.deliver_at_ms), "receipt": result.receipt}
    show([row], ("outcome", "deliver_at", "receipt"))


@delayed.command()
def release(
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Wait, and release messages due by then; a time as for `publish --deliver-at`. Default: now.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Continue until stopped, and print a line for each release.")
    ] = False,
) -> None:
    """Release the messages that are due, and end. Shows how many, how late, and when the next are due.

    Use it from a scheduler where no sequencer serves. If several run at once, one is active. While another sequencer
    leads, the command waits for its releases.
    """
    from lakemq.jobs.release_delayed import release as release_due
    from lakemq.jobs.release_delayed import sentence
    from lakemq.jobs.serve import catch_stop_signals

    if until is not None and watch:
        raise typer.BadParameter("it does not go with --watch, which has no end", param_hint="--until")
    at = parse_moment_option(until, "--until")
    session = get_session()

    def tell(progress: ReleaseProgress) -> None:
        if session.output is Output.table:
            typer.echo(sentence(progress))
        else:
            show([progress._asdict()], progress._fields)

    with connect() as mq, catch_stop_signals() as stop, end_with_reader() if watch else nullcontext():
        release_due(mq, None if at is None else to_millis(at), watch, stop, tell)


def _which(topic: str | None, key: str | None, where: str | None) -> str:
    """Return the selection of messages as part of a question."""
    parts = [("of topic", topic), ("with key", key), ("where", where)]
    return " ".join(f"{word} {value!r}" for word, value in parts if value is not None)
