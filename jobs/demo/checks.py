"""What the demo checks of its messages, what it asks in SQL, and what it prints.

Each row that was sent is one message, in order. A check compares what was sent with what was read, and says what it
saw. It raises CheckFailed where they differ.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape

from lakemq.engine.client.connection import Connection

_SQL = Path(__file__).with_name("sql")

DEPARTURE = ("time_hour", "minute", "carrier", "flight")
"""Columns that identify a flight, and order the flights of an aircraft."""


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


def check_count(topic: str, messages: pa.Table, sent_count: int) -> Check:
    """Check that a topic has as many messages as were sent."""
    evidence = f"{messages.num_rows:,} messages of {sent_count:,} sent"
    return check(f"All of {topic} is there, once", messages.num_rows == sent_count, evidence)


def check_dense_offsets(topic: str, messages: pa.Table, end_offsets: Mapping[int, int]) -> Check:
    """Check that each partition holds offsets 0, 1, 2, ... to its end."""
    partitions, offsets = messages.column("partition").to_numpy(), messages.column("offset").to_numpy()
    wrong = [
        partition
        for partition, end in end_offsets.items()
        if not np.array_equal(np.sort(offsets[partitions == partition]), np.arange(end))
    ]
    evidence = f"partitions with a gap: {wrong}" if wrong else f"{len(end_offsets)} partitions"
    return check(f"Offsets of {topic} run from 0 without a gap", not wrong, evidence)


def check_content(flights: pa.Table, sent: pa.Table) -> Check:
    """Check that the messages are the rows that were sent, column by column. flights: from `parse_flights`."""
    by_departure = [(name, "ascending") for name in DEPARTURE]
    received, sent = flights.select(sent.column_names).sort_by(by_departure), sent.sort_by(by_departure)
    received = received.cast(sent.schema)
    different = [name for name in sent.column_names if not received.column(name).equals(sent.column(name))]
    evidence = f"columns that differ: {different}" if different else f"{len(sent.column_names)} columns alike"
    return check("Every value is the row that was sent", not different, evidence)


def check_key_order(topic: str, flights: pa.Table) -> Check:
    """Check that flights of an aircraft are in one partition, ordered by departure. flights: from `parse_flights`."""
    keyed = flights.filter(pc.field("tailnum").is_valid())
    ordered = keyed.sort_by([(name, "ascending") for name in ("tailnum", *DEPARTURE)])
    keys = ordered.column("tailnum").combine_chunks().dictionary_encode().indices.to_numpy()
    is_same_key = keys[1:] == keys[:-1]
    moved = np.diff(ordered.column("partition").to_numpy()) != 0
    stepped_back = np.diff(ordered.column("offset").to_numpy()) <= 0
    wrong_count = int((is_same_key & (moved | stepped_back)).sum())
    key_count = int(keys.max()) + 1 if len(keys) else 0
    evidence = f"{key_count:,} keys, {wrong_count} messages out of order"
    return check(f"In {topic} the order per key is kept", wrong_count == 0, evidence)


def check_ways_agree(from_arrow: pa.Table, from_spark: pa.Table) -> Check:
    """Check that Arrow and Spark fetch the same messages, byte by byte. from_arrow: by partition and offset."""
    order = [("partition", "ascending"), ("offset", "ascending")]
    same_columns = from_spark.column_names == from_arrow.column_names
    same = same_columns and from_spark.cast(from_arrow.schema).sort_by(order).equals(from_arrow)
    evidence = f"{from_arrow.num_rows:,} and {from_spark.num_rows:,} messages"
    return check("Arrow and Spark fetch the same", same, evidence)


def check_delay_by_visibility(answer: pa.Table, flights: pa.Table, weather: pa.Table) -> Check:
    """Check a SQL answer against the input. answer: visibility, flights, delay_minutes; the others: as sent."""
    joined = flights.join(weather.select(["origin", "time_hour", "visib"]), ["origin", "time_hour"], join_type="inner")
    joined = joined.filter(pc.field("dep_delay").is_valid() & pc.field("visib").is_valid())
    visibility, delays = joined.column("visib").to_numpy(), joined.column("dep_delay").to_numpy()
    ranges = np.digitize(visibility, [1, 3, 6, 10])
    expected = [
        (label, int((ranges == r).sum()), int(delays[ranges == r].sum()))
        for r, label in enumerate(("below 1", "1 to 3", "3 to 6", "6 to 10", "10"))
        if (ranges == r).any()
    ]
    columns = ("visibility", "flights", "delay_minutes")
    answered = list(zip(*(answer.column(name).to_pylist() for name in columns), strict=True))
    evidence = f"{answer.num_rows} ranges of visibility, {sum(count for _, count, _ in answered):,} flights"
    return check("SQL over two topics gives what the input gives", answered == expected, evidence)


def parse_flights(messages: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the JSON values as columns (those of `columns`), with the partition and offset of each message."""
    # The times in the JSON are UTC, and pyarrow reads no zone.
    fields = [pa.field(f.name, pa.timestamp("ms")) if pa.types.is_timestamp(f.type) else f for f in columns]
    options = pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    lines = b"\n".join(messages.column("value").to_pylist())
    flights = pa.json.read_json(pa.BufferReader(lines), pa.json.ReadOptions(block_size=1 << 24), parse_options=options)
    placed = flights.append_column("partition", messages.column("partition"))
    return placed.append_column("offset", messages.column("offset"))


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
