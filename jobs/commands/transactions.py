"""`lakemq transactions` and `lakemq describe-producers`: show open transactions and producers, and abort."""

from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, ensure_sequencer, get_session
from lakemq.jobs.commands.shared.times import to_record
from lakemq.jobs.output import show

transactions = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]

STATES = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
"""States that last. Prepare states end within a step, and dead ids are deleted."""

_LISTED = (
    "transactional_id",
    "state",
    "producer_id",
    "producer_epoch",
    "started_at",
    "open_ms",
    "partitions",
    "groups",
)
_DESCRIBED = (
    *_LISTED[:4],
    "timeout_ms",
    *_LISTED[4:],
    "error",
    "batch_id",
    "updated_at",
    "shard",
    "coordinator",
)
_PRODUCERS = ("producer_id", "producer_epoch", "last_sequence", "updated_at", "transactional_id", "first_offset")


def add_to(app: typer.Typer) -> None:
    app.command("describe-producers")(describe_producers)
    app.add_typer(transactions, name="transactions")


@transactions.command("list")
def list_transactions(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help=f"Only ids in this state ({', '.join(STATES)}); repeatable."),
    ] = None,
) -> None:
    """List all transactional ids by name, with their open transactions."""
    for name in state or ():
        if name not in STATES:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(STATES)}", param_hint="--state")
    session = get_session(ctx)
    with session.connect() as mq:
        show(map(to_record, mq.transactions.all(tuple(state or ()))), session.output, _LISTED)


@transactions.command()
def describe(ctx: typer.Context, transactional_id: TransactionalId) -> None:
    """Show a transactional id: its producer, and the partitions and groups of its open transaction.

    error: why the open transaction can only be aborted. batch_id: the last committed micro-batch, -1 before the first.
    """
    session = get_session(ctx)
    with session.connect() as mq:
        show([to_record(mq.transactions.describe(transactional_id))], session.output, _DESCRIBED)


@transactions.command("find-hanging")
def find_hanging(
    ctx: typer.Context,
    max_open_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="A transaction open for longer than this is hanging.")
    ] = 900_000,
) -> None:
    """List transactions that have been open for long, oldest first. Each of them blocks read_committed.

    The sequencer aborts a transaction at its timeout. An older one means that no sequencer was running.
    """
    session = get_session(ctx)
    with session.connect() as mq:
        show(map(to_record, mq.transactions.find_hanging(max_open_ms)), session.output, _LISTED)


@transactions.command(help=f"Abort an open transaction; its producer is fenced. {NEEDS_SEQUENCER}")
def abort(ctx: typer.Context, transactional_id: TransactionalId) -> None:
    session = get_session(ctx)
    with session.connect() as mq, ensure_sequencer(mq):
        mq.transactions.abort(transactional_id)
    show([{"transactional_id": transactional_id, "aborted": True}], session.output, ("transactional_id", "aborted"))


def describe_producers(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
) -> None:
    """List the producers that a partition remembers. first_offset: the start of their open transaction there."""
    session = get_session(ctx)
    with session.connect() as mq:
        show(map(to_record, mq.transactions.describe_producers(topic, partition)), session.output, _PRODUCERS)
