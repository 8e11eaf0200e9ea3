"""`lakemq transactions` and `lakemq describe-producers`: who has a transaction open, since when, and to end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.jobs.commands.context import NEEDS_ANSWER, answered, session_of
from lakemq.jobs.commands.times import of_millis
from lakemq.jobs.output import show

if TYPE_CHECKING:
    from lakemq.engine.client.transactions.operations import ProducerInfo, TransactionInfo

transactions = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]

_STATES = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
"""Those that last: Prepare states are over within a step, and what is Dead is forgotten."""

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
        typer.Option(metavar="STATE", help=f"Only those in this state ({', '.join(_STATES)}); repeatable."),
    ] = None,
) -> None:
    """All transactional ids, by name, and what they have open."""
    for one in state or ():
        if one not in _STATES:
            raise typer.BadParameter(f"{one!r} is none of {', '.join(_STATES)}", param_hint="--state")
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_transaction, mq.transactions.all(tuple(state or ()))), session.output, _LISTED)


@transactions.command()
def describe(ctx: typer.Context, transactional_id: TransactionalId) -> None:
    """One transactional id: its producer and, while a transaction is open, what that has touched.

    error: why the open transaction can only be aborted. batch_id: the last micro-batch committed, -1 before the first.
    """
    session = session_of(ctx)
    with session.connect() as mq:
        show([_transaction(mq.transactions.describe(transactional_id))], session.output, _DESCRIBED)


@transactions.command("find-hanging")
def find_hanging(
    ctx: typer.Context,
    max_open_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="Open for longer than this is hanging.")
    ] = 900_000,
) -> None:
    """Transactions that have been open for long, the oldest first: read_committed waits behind each of them.

    The sequencer aborts a transaction at its own timeout; what is older has waited for a sequencer.
    """
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_transaction, mq.transactions.find_hanging(max_open_ms)), session.output, _LISTED)


@transactions.command(help=f"Abort an open transaction; its producer is fenced. {NEEDS_ANSWER}")
def abort(ctx: typer.Context, transactional_id: TransactionalId) -> None:
    session = session_of(ctx)
    with session.connect() as mq, answered(mq):
        mq.transactions.abort(transactional_id)
    show([{"transactional_id": transactional_id, "aborted": True}], session.output, ("transactional_id", "aborted"))


def describe_producers(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
) -> None:
    """The producers remembered of a partition; first_offset is that of their open transaction there."""
    session = session_of(ctx)
    with session.connect() as mq:
        show(map(_producer, mq.transactions.describe_producers(topic, partition)), session.output, _PRODUCERS)


def _transaction(info: TransactionInfo) -> dict[str, Any]:
    return {
        "transactional_id": info.transactional_id,
        "state": info.state,
        "producer_id": info.producer_id,
        "producer_epoch": info.producer_epoch,
        "timeout_ms": info.timeout_ms,
        "started_at": of_millis(info.started_at_ms),
        "open_ms": info.open_ms,
        "partitions": info.partitions,
        "groups": info.groups,
        "error": info.error,
        "batch_id": info.batch_id,
        "updated_at": of_millis(info.updated_at_ms),
        "shard": info.shard,
        "coordinator": info.coordinator,
    }


def _producer(info: ProducerInfo) -> dict[str, Any]:
    return {
        "producer_id": info.producer_id,
        "producer_epoch": info.producer_epoch,
        "last_sequence": info.last_sequence,
        "updated_at": of_millis(info.updated_at_ms),
        "transactional_id": info.transactional_id,
        "first_offset": info.first_offset,
    }
