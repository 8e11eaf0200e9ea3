"""`lakemq delayed`: what waits for its time, and to cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import DelayMs, DeliverAt, millis_of, moment_of, of_millis
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from lakemq.engine.client.publish.delayed import DelayedInfo

delayed = typer.Typer(no_args_is_help=True, help="List, cancel and reschedule delayed messages.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell of which messages it would be.")]

_CANCELLED = ("topic", "partition", "key", "deliver_at", "receipt", "outcome")
_LISTED = ("topic", "messages", "open", "ranges", "first_due", "last_due")
_DESCRIBED = ("topic", "messages", "open", "ranges", "first_due", "last_due", "released_until")


def add_to(app: typer.Typer) -> None:
    app.add_typer(delayed, name="delayed")


@delayed.command("list")
def list_delayed(ctx: typer.Context) -> None:
    """Topics with messages that wait, by name. open: of transactions that have not ended; ranges: in the table."""
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_shown, mq.delayed.all()), session.output, _LISTED)


@delayed.command()
def describe(ctx: typer.Context, topic: Annotated[str, typer.Argument(help="The topic.")]) -> None:
    """What waits for a topic. released_until: all that was due by then, of any topic, is released."""
    session = session_of(ctx)
    with session.connect() as mq:
        until = of_millis(mq.delayed.pointer_ms() or None)
        rows = [{**_shown(one), "released_until": until} for one in mq.delayed.all(topic)]
        show(rows, session.output, _DESCRIBED)


@delayed.command(
    help="Cancel messages by their receipts, or all that wait and are of a topic, have a key, and for which a condition"
    " holds; of each it is told what became of it: cancelled, released, rescheduled or not_found."
    f" {NEEDS_ANSWER}"
)
def cancel(
    ctx: typer.Context,
    receipts: Annotated[
        list[str] | None, typer.Argument(metavar="[RECEIPT...]", help="As `schedule` and `send` give them.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Those of this topic.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Those with this key.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="SQL, as DuckDB has it, over the columns of pending_delayed_rows."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    session, is_where = session_of(ctx), any(one is not None for one in (topic, key, where))
    if bool(receipts) == is_where:
        raise typer.BadParameter("give receipts, or --topic, --key or --where", param_hint="RECEIPT")
    if dry_run and not is_where:
        raise typer.BadParameter("only with --topic, --key or --where", param_hint="--dry-run")
    with session.connect() as mq, answered(mq):
        if is_where:
            show(mq.delayed.cancel_where(topic, key, where, dry_run=dry_run).to_pylist(), session.output, _CANCELLED)
            return
        outcomes = mq.delayed.cancel_all(receipts or [])
    rows = [{"receipt": one, "outcome": outcome} for one, outcome in zip(receipts or [], outcomes, strict=True)]
    show(rows, session.output, ("receipt", "outcome"))


@delayed.command(help=f"Cancel all that waits for a topic; shows how many messages of each outcome. {NEEDS_ANSWER}")
def purge(
    ctx: typer.Context, topic: Annotated[str, typer.Argument(help="The topic.")], dry_run: DryRun = False
) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        told = mq.delayed.cancel_where(topic, dry_run=dry_run).column("outcome").value_counts().to_pylist()
    rows = [{"outcome": one["values"], "messages": one["counts"]} for one in told]
    show(rows, session.output, ("outcome", "messages"))


@delayed.command(
    help=f"Let a message that waits come at another time; shows its receipt from now on, or what became of it."
    f" {NEEDS_ANSWER}"
)
def reschedule(
    ctx: typer.Context,
    receipt: Annotated[str, typer.Argument(help="As `schedule` and `send` give it.")],
    deliver_at: DeliverAt = None,
    delay_ms: DelayMs = None,
) -> None:
    session, at = session_of(ctx), moment_of(deliver_at)
    if (at is None) == (delay_ms is None):
        raise typer.BadParameter("give --deliver-at or --delay-ms", param_hint="--deliver-at")
    with session.connect() as mq, answered(mq):
        told = mq.delayed.reschedule(receipt, deliver_at=at, delay_ms=delay_ms)
    row = {"outcome": told.outcome, "deliver_at": of_millis(told.deliver_at_ms), "receipt": told.receipt}
    show([row], session.output, ("outcome", "deliver_at", "receipt"))


@delayed.command()
def release(
    ctx: typer.Context,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait, and release what is due by then; as --deliver-at of `publish`. Now."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, with a line for what is released, until stopped.")
    ] = False,
) -> None:
    """Release messages that are due, and end; tells how many, how late, and when the next are due.

    For schedules, where nothing serves. Of several at once one is active; another sequencer that leads is waited for.
    """
    from lakemq.jobs.release_delayed import release as release_due
    from lakemq.jobs.serve import stopping_signals

    if until is not None and watch:
        raise typer.BadParameter("with --watch there is no end", param_hint="--until")
    at = moment_of(until, "--until")
    with session_of(ctx).connect() as mq, stopping_signals() as stop:
        release_due(mq, None if at is None else millis_of(at), watch, stop, typer.echo)


def _shown(one: DelayedInfo) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "messages": one.messages,
        "open": one.open,
        "ranges": one.ranges,
        "first_due": of_millis(one.first_due_ms),
        "last_due": of_millis(one.last_due_ms),
    }
