"""`lakemq mirror`: move topics and groups from Kafka, as the job of this name does."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from lakemq.jobs.commands.shared.context import connect, ensure_sequencer, show
from lakemq.jobs.process.streams import log_to_stderr


def mirror(
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", metavar="HOST:PORT,...", help="Brokers of Kafka.")
    ],
    topics: Annotated[
        str, typer.Option("--topics", metavar="PATTERN", help="The topics: a regular expression (RE2) for whole names.")
    ],
    groups: Annotated[
        str,
        typer.Option("--groups", metavar="PATTERN", help="The groups whose offsets are translated, in the same way."),
    ] = ".*",
    command_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Properties of Kafka's client, such as TLS and SASL."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Permanent name of the mirror; one for each Kafka cluster.")
    ] = "kafka",
    max_records: Annotated[int, typer.Option(min=1, metavar="N", help="Most messages of a batch.")] = 1_000_000,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all messages that Kafka has now are copied.")
    ] = False,
    outage_timeout_ms: Annotated[
        int,
        typer.Option(min=0, metavar="MS", help="How long to wait for Kafka, or for a sequencer, before it ends."),
    ] = 600_000,
) -> None:
    """Copy topics of Kafka, exactly once and in order, until SIGTERM or SIGINT; then translate the offsets of groups.

    Missing topics are created with Kafka's partitions and settings. Each copy has its offset in Kafka in the header
    `kafka.offset`. A group continues at the first copy whose offset in Kafka is not below the one that it has
    committed there. Run the command again to continue, also after a kill. It needs the extra `spark`, and the jars of
    `python -m lakemq.jobs.jars kafka`.
    """
    from lakemq.jobs.mirror import MirrorOptions, open_session
    from lakemq.jobs.mirror import mirror as run_mirror

    config = None if command_config is None else str(command_config)
    options = MirrorOptions(
        bootstrap_servers, topics, groups, config, name, max_records, until_caught_up, outage_timeout_ms
    )
    with connect() as mq, ensure_sequencer(mq), log_to_stderr(logging.INFO):
        counts = run_mirror(mq, open_session(), options)
    show([counts], tuple(counts))
