"""`lakemq delayed`: what waits for its time, and to cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import of_millis
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from lakemq.engine.client.publish.delayed import DelayedInfo

delayed = typer.Typer(no_args_is_help=True, help="List and cancel delayed messages.")

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
    help=f"Cancel messages by their receipts; of each it is told what became of it: cancelled, released or not_found."
    f" {NEEDS_ANSWER}"
)
def cancel(
    ctx: typer.Context,
    receipts: Annotated[list[str], typer.Argument(metavar="RECEIPT...", help="As `schedule` and `send` give them.")],
) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        outcomes = mq.delayed.cancel_all(receipts)
    rows = [{"receipt": one, "outcome": outcome} for one, outcome in zip(receipts, outcomes, strict=True)]
    show(rows, session.output, ("receipt", "outcome"))


def _shown(one: DelayedInfo) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "messages": one.messages,
        "open": one.open,
        "ranges": one.ranges,
        "first_due": of_millis(one.first_due_ms),
        "last_due": of_millis(one.last_due_ms),
    }
