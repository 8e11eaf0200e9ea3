"""`lakemq sql` and `lakemq spark-sql`: DuckDB, or Spark's shell, over the tables of a namespace."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lakemq.jobs.commands.context import session_of
from lakemq.jobs.commands.times import AsOf, parse_as_of
from lakemq.jobs.dialects import Dialect
from lakemq.jobs.output import show


def add_to(app: typer.Typer) -> None:
    app.command()(sql)
    app.command("spark-sql")(spark_sql)


def sql(
    ctx: typer.Context,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Statements, the last one's result is printed; - reads stdin.")
    ],
    dialect: Annotated[Dialect, typer.Option(help="Whose SQL it is.")] = Dialect.spark,
    as_of: AsOf = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="The statements may read and write any file, load extensions and change DuckDB's settings.",
        ),
    ] = False,
) -> None:
    """Query the tables and views (log, log_committed, open_transactions, ...) in Spark's SQL, without a JVM.

    Everything is as of the last projection, at most a second old while a sequencer serves, or --as-of an earlier one,
    as far back as reader.grace.ms at least. DuckDB answers: the text is
    put into its words, with --dialect duckdb it is in them. Keys and values are bytes: CAST(value AS STRING) is their
    text, and get_json_object(CAST(value AS STRING), '$.user') a field of it. A text in double quotes is a text, as in
    Spark; a name that is no plain word stands in backticks.

    The statements reach the tables and views, and nothing else: no file (COPY, ATTACH, read_csv, ...), no network, no
    extension, no setting of DuckDB, unless --allow-files is given.
    """
    from lakemq.jobs.sql import run_query

    session = session_of(ctx)
    text = _from_stdin() if query == "-" else query
    with session.connect() as mq:
        columns, rows = run_query(mq.namespace, text, allow_files, dialect, parse_as_of(as_of))
        show((dict(zip(columns, row, strict=True)) for row in rows), session.output, columns)


def spark_sql(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="For spark-sql, such as -- -e QUERY.")
    ] = None,
    as_of: AsOf = None,
    archive: Annotated[
        bool, typer.Option("--archive", help="Keep the classes it has loaded, 170 MB: it starts in half the time then.")
    ] = False,
) -> None:
    """Start Spark's own spark-sql with the tables and views, in their database. It leaves nothing behind.

    In spark-sql, as in any Spark, INSERT INTO inbox publishes with the next micro-batch.
    """
    from lakemq.jobs.spark_shell import run_spark_sql

    with session_of(ctx).connect() as mq:
        code = run_spark_sql(mq.namespace, arguments or (), archive, parse_as_of(as_of))
    raise typer.Exit(code)


def _from_stdin() -> str:
    from lakemq.errors import InvalidRequest

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The statements are not UTF-8: {error}.") from None
