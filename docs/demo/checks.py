"""What the demo checks of its messages, what it asks in SQL, and what it prints.

Each row that was sent is one message, in order. A check says what it saw. It raises CheckFailed where it does not
hold.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.json
from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape

from lakemq.engine.client.connection import Connection

_SQL = Path(__file__).with_name("sql")


class CheckFailed(Exception):
    """A claim of the demo does not hold."""


@dataclass(frozen=True)
class Check:
    """A check that passed: the claim, and the figures that show it."""

    claim: str
    evidence: str


def check(claim: str, holds: bool, evidence: str) -> Check:
    """Return a check that passed. Raises CheckFailed."""
    if not holds:
        raise CheckFailed(f"It does not hold that {claim[0].lower()}{claim[1:]}: {evidence}")
    return Check(claim, evidence)


def check_content(messages: pa.Table, sent: pa.Table) -> Check:
    """Check that the messages of flights are the rows that were sent, each once, column by column."""
    by_departure = [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight")]
    sent = sent.sort_by(by_departure)
    received = parse_flights(messages, sent.schema).sort_by(by_departure).cast(sent.schema)
    different = [name for name in sent.column_names if not received.column(name).equals(sent.column(name))]
    evidence = (
        f"columns that differ: {different}" if different else f"{sent.num_rows:,} rows of {sent.num_columns} columns"
    )
    return check("Every value is the row that was sent, once", not different, evidence)


def check_ways_agree(from_arrow: pa.Table, from_spark: pa.Table) -> Check:
    """Check that Arrow and Spark fetch the same messages, byte by byte. from_arrow: by partition and offset."""
    order = [("partition", "ascending"), ("offset", "ascending")]
    same_columns = from_spark.column_names == from_arrow.column_names
    same = same_columns and from_spark.cast(from_arrow.schema).sort_by(order).equals(from_arrow)
    evidence = f"{from_arrow.num_rows:,} and {from_spark.num_rows:,} messages"
    return check("Arrow and Spark fetch the same", same, evidence)


def parse_flights(messages: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the JSON values as columns."""
    # The times in the JSON are UTC, and pyarrow reads no zone.
    fields = [pa.field(f.name, pa.timestamp("ms")) if pa.types.is_timestamp(f.type) else f for f in columns]
    options = pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    lines = b"\n".join(messages.column("value").to_pylist())
    return pa.json.read_json(pa.BufferReader(lines), pa.json.ReadOptions(block_size=1 << 24), parse_options=options)


# -- questions in SQL -------------------------------------------------------------------------------------


class SqlAnswer(NamedTuple):
    """A question that a person has, the SQL that answers it, and the answer, with the columns that the SQL names."""

    title: str
    sql: str
    rows: pa.Table


def ask(mq: Connection, name: str) -> SqlAnswer:
    """Ask DuckDB the question in the file `sql/<name>.sql`, whose first line is its title."""
    title, _, sql = (_SQL / f"{name}.sql").read_text().partition("\n")
    return SqlAnswer(title.removeprefix("-- "), sql.rstrip(), mq.sql(sql))


def ask_checks(mq: Connection) -> list[Check]:
    """Check the claims of the file `sql/checks.sql`: each is a query, whose row counts what breaks it."""
    checks = []
    for text in (_SQL / "checks.sql").read_text().split(";\n"):
        claim, _, query = text.strip().partition("\n")
        if query:
            (row,) = mq.sql(query).to_pylist()
            checks.append(check(claim.removeprefix("-- "), row["broken"] == 0, row["evidence"]))
    return checks


def check_hash(spark: SparkSession, database: str) -> Check:
    """Check by Spark's own hash function, which LakeMQ does not use, that each key is in its partition."""
    row = spark.sql((_SQL / "misplaced.sql").read_text().replace("log_committed", f"{database}.log_committed")).first()
    assert row is not None
    evidence = f"{row.misplaced} of {row.keyed:,} misplaced"
    return check("A message is where the hash of its key says, asked in Spark SQL", row.misplaced == 0, evidence)


# What the demo prints: a sentence per stage with its time, a line per check that holds.


@dataclass
class Stage:
    """A stage that runs. result: what it ends with, in a few words."""

    show: Callable[[str], None]
    result: str = ""


@dataclass
class Progress:
    """The console, with the checks and figures so far. tiles: figures, each with what it measures."""

    console: Console
    checks: list[Check] = field(default_factory=list)
    tiles: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def stage(self, sentence: str) -> Iterator[Stage]:
        """Print a sentence that says what is being done, and how long it took.

        On a terminal `show` of the stage replaces the text beside the spinner.
        """
        began_s = time.monotonic()
        self._print(f"[bold]{escape(sentence)}[/]")
        with self.console.status("") as status:
            stage = Stage(lambda text: status.update(escape(text)))
            yield stage
        self._print(f"  {escape(stage.result)}  [dim]{time.monotonic() - began_s:.1f} s[/]")

    def add_checks(self, *checks: Check) -> None:
        """Print checks that passed, and keep them for the report."""
        for check in checks:
            self.checks.append(check)
            self._print(f"  [green]✓[/] {escape(check.claim)}  [dim]{escape(check.evidence)}[/]")

    def _print(self, markup: str) -> None:
        self.console.print(markup, soft_wrap=True, highlight=False)
