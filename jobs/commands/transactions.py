"""`lakemq transactions` and `lakemq describe-producers`: show open transactions and producers, and abort."""

from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import NEEDS_SEQUENCER, connect, ensure_sequencer, show
from lakemq.jobs.commands.shared.times import to_record

transactions = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]

STATES = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
"""States that last. Prepare states end within a step, and dead ids are deleted."""

_LISTED = "transactional_id, state, producer_id, producer_epoch, started_at, open_ms, partitions, groups"
_DESCRIBED = (
    "transactional_id, state, producer_id, producer_epoch, timeout_ms, started_at, open_ms, partitions, groups,"
    " error, batch_id, updated_at, shard, coordinator"
)
_PRODUCERS = "producer_id, producer_epoch, last_sequence, updated_at, transactional_id, first_offset"


@transactions.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help=f"Only ids in this state ({', '.join(STATES)}); repeatable."),
    ] = None,
) -> None:
    """List all transactional ids by name, with their open transactions."""
    for name in state or ():
        if name not in STATES:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(STATES)}", param_hint="--state")
    with connect() as mq:
        show(map(to_record, mq.transactions.all(tuple(state or ()))), _LISTED)


@transactions.command()
def describe(transactional_id: TransactionalId) -> None:
    """Show a transactional id: its producer, and the partitions and groups of its open transaction.

    error: why the open transaction can only be aborted. batch_id: the last committed micro-batch, -1 before the first.
    """
    with connect() as mq:
        show([to_record(mq.transactions.describe(transactional_id))], _DESCRIBED)


@transactions.command("find-hanging")
def find_hanging(
    max_open_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="A transaction open for longer than this is hanging.")
    ] = 900_000,
) -> None:
    """List transactions that have been open for long, oldest first. Each of them blocks read_committed.

    The sequencer aborts a transaction at its timeout. An older one means that no sequencer was running.
    """
    with connect() as mq:
        show(map(to_record, mq.transactions.find_hanging(max_open_ms)), _LISTED)


@transactions.command(help=f"Abort an open transaction; its producer is fenced. {NEEDS_SEQUENCER}")
def abort(transactional_id: TransactionalId) -> None:
    with connect() as mq, ensure_sequencer(mq):
        mq.transactions.abort(transactional_id)
    show([{"transactional_id": transactional_id, "aborted": True}], ("transactional_id", "aborted"))


def describe_producers(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
) -> None:
    """List the producers that a partition remembers. first_offset: the start of their open transaction there."""
    with connect() as mq:
        show(map(to_record, mq.transactions.describe_producers(topic, partition)), _PRODUCERS)
