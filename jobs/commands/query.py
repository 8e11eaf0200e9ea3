"""`lakemq sql` (in DuckDB) and `lakemq spark-sql` (Spark's shell): SQL over the tables of a namespace."""

import sys
from typing import Annotated

import typer

from lakemq.engine.client.sql import SqlDialect
from lakemq.jobs.commands.shared.context import connect, show
from lakemq.jobs.commands.shared.times import AsOf, parse_as_of
from lakemq.jobs.output import note


def sql(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="SQL statements; the result of the last one is printed. - reads stdin."),
    ],
    dialect: Annotated[SqlDialect, typer.Option(help="The dialect of the statements.")] = SqlDialect.spark,
    as_of: AsOf = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="Let the statements read and write any file, load extensions and change DuckDB's settings.",
        ),
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Wait until the tables hold everything decided so far, but at most this long. If no sequencer updates"
            " them, this command runs one.",
        ),
    ] = None,
) -> None:
    """Query the tables and views (log, log_committed, open_transactions, ...) in Spark's SQL, without a JVM.

    The result is as of the last projection, which is at most a second old while a sequencer serves. --as-of reads an
    earlier one: the first that holds a step, or the newest up to a time. Merges keep at least the last ten seconds. If
    there are steps that the tables lack, a line on stderr says by how many steps; --wait waits for them.

    DuckDB runs the query, translated from Spark's SQL; --dialect duckdb takes DuckDB's own SQL. Keys and values are
    bytes: CAST(value AS STRING) is their text, and get_json_object(CAST(value AS STRING), '$.user') is a JSON field. As
    in Spark, double quotes enclose a text, and backticks a name that is not a plain word.

    The statements can reach only the tables and views: no files (COPY, ATTACH, read_csv, ...), no network, no
    extensions and no settings of DuckDB, unless --allow-files is given.
    """
    if wait is not None and as_of is not None:
        raise typer.BadParameter("it contradicts --as-of, whose result does not change", param_hint="--wait")
    from lakemq.engine.client.live_tables import make_live_readers
    from lakemq.engine.client.sql.arrow_query import find_projection_lag, wait_for_projection
    from lakemq.engine.client.sql.query import run_query
    from lakemq.engine.namespace.step_reader import take_snapshot

    text = _from_stdin() if query == "-" else query
    with connect() as mq:
        if wait is not None:
            wait_for_projection(mq.namespace.store, wait, mq.serving)
        snapshot = take_snapshot(mq.namespace.store, parse_as_of(as_of))
        live = make_live_readers(mq.namespace, mq.observer, mq) if as_of is None else {}
        columns, rows = run_query(mq.namespace, text, allow_files, dialect, snapshot=snapshot, live=live)
        if as_of is None and (lag := find_projection_lag(mq.namespace.store, snapshot.watermark.step)).steps_behind:
            note(f"{lag} (--wait SECONDS waits for these steps)" if wait is None else str(lag))
        show((dict(zip(columns, row, strict=True)) for row in rows), columns)


def spark_sql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments for spark-sql, such as -- -e QUERY.")
    ] = None,
    as_of: AsOf = None,
) -> None:
    """Start Spark's own spark-sql with the tables and views, in their database. It leaves nothing behind.

    In spark-sql, as in any Spark, INSERT INTO inbox publishes with the next micro-batch.
    """
    from lakemq.jobs.spark_shell import run_spark_sql

    with connect() as mq:
        code = run_spark_sql(mq.namespace, arguments or (), parse_as_of(as_of))
    raise typer.Exit(code)


def _from_stdin() -> str:
    from lakemq.errors import InvalidRequest

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The statements are not UTF-8: {error}.") from None
