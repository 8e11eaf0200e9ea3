"""An audit of a topic: its suite of Great Expectations over its stored messages, which Spark reads.

Great Expectations judges here, so a suite may have all of its expectations, not only those of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lakemq.tables.specs.messages import FINAL_MESSAGES
from lakemq.tables.storage.delta.catalog import database_name

from ...namespace.namespace import Namespace
from ...protocol.errors import ExpectationFailed, IllegalState, InvalidConfig
from ...protocol.values.topics import Topic
from ..topic_views import DATA, find_ddl
from . import import_great_expectations
from .expectation_types import Kwargs
from .gate import find_suite, read_suite

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pyspark.sql import DataFrame, SparkSession

TABLES = (FINAL_MESSAGES.name, "log_committed")
"""The table and the view that an audit reads."""

_COLUMNS = ("column", "column_A", "column_B")


class AuditedMessages(NamedTuple):
    """The messages of one audit. An audit of the same offsets reads the same messages.

    df: the columns of the table, key and value as text, and the fields of values. version: of `final_messages`; None
    for the view. offsets: per partition the first offset, and the one after the last.
    """

    df: DataFrame
    table: str
    version: int | None
    offsets: dict[int, tuple[int, int]]
    message_count: int

    def describe(self) -> dict[str, Any]:
        """Return what an audit says of its messages, to be repeated."""
        version = {} if self.version is None else {"version": self.version}
        return {"table": self.table, **version, "offsets": self.offsets, "messages": self.message_count}


def select_messages(
    spark: SparkSession, namespace: Namespace, topic: Topic, table: str, offsets: Mapping[int, Sequence[int]] | None
) -> AuditedMessages:
    """Return the messages of a topic that a table has now. The session must have the namespace's tables.

    offsets: the same as in the result. None: all messages.

    Raises IllegalState if none of the topic's messages is final yet.
    """
    from pyspark.sql import functions as F

    query, version = f"SELECT * FROM `{database_name(namespace.path)}`.{table}", None
    if table == FINAL_MESSAGES.name:
        version = namespace.store.open(FINAL_MESSAGES).version
        query += f" VERSION AS OF {version} WHERE topic_id = {topic.topic_id} AND coalesce(ttl_ms, 0) >= 0"
    rows = spark.sql(query).where(F.col("topic") == topic.topic)
    if offsets is not None:
        rows = rows.where(_within(offsets))
    ends = rows.groupBy("partition").agg(F.min("offset"), F.max("offset") + 1, F.count("*")).orderBy("partition")
    collected = ends.collect()
    ranges, count = {row[0]: (row[1], row[2]) for row in collected}, sum(row[3] for row in collected)
    if not count and version is not None and (topic.final_offsets < topic.last_stable_offsets).any():
        raise IllegalState(
            f"Topic {topic.topic} has messages, and none of these is final yet.",
            expected=f"the sequencer's setting final.interval.ms and some time, or an audit of {TABLES[1]}",
        )
    # the view may show newer messages by now
    return AuditedMessages(_add_fields(rows.where(_within(ranges)), topic), table, version, ranges, count)


def _within(offsets: Mapping[int, Sequence[int]]) -> str:
    cases = (
        f"WHEN {partition} THEN offset >= {start} AND offset < {end}" for partition, (start, end) in offsets.items()
    )
    return f"CASE partition {' '.join(cases)} ELSE FALSE END" if offsets else "FALSE"


def _add_fields(rows: DataFrame, topic: Topic) -> DataFrame:
    """Show the fields of values as columns. A field with the name of another column is in the struct only."""
    from pyspark.sql import functions as F

    texts = {name: F.col(name).cast("string") for name in ("key", "value")}
    rows, ddl = rows.withColumns(texts), find_ddl(topic) if topic.schema is not None else None
    if ddl is None:
        return rows
    rows = rows.withColumn(DATA, F.from_json("value", ddl))
    column_names = {name.lower() for name in rows.columns}
    fields = [name for name in rows.select(f"{DATA}.*").columns if name.lower() not in column_names]
    return rows.select("*", *(F.col(f"{DATA}.`{name.replace('`', '``')}`").alias(name) for name in fields))


def load_topic_suite(namespace: Namespace, topic: str, file: Path | None) -> ExpectationSuite:
    """Load the suite in a file, or else that of the topic's gate. Raises InvalidConfig, MissingExtra."""
    folder = namespace.config.expectations
    file = file or (find_suite(folder, topic) if folder else None)
    if file is None:
        expected = f"{topic}.json or {topic}.yaml in the folder expectations beside the settings file, or a file"
        raise InvalidConfig(f"Topic {topic} has no suite.", expected=expected)
    import_great_expectations()

    def build(loaded: Kwargs) -> ExpectationSuite:
        from great_expectations import ExpectationSuite
        from great_expectations.exceptions import ExpectationNotFoundError
        from great_expectations.expectations.registry import get_expectation_impl

        expectations = [
            {name: expectation[name] for name in ("type", "kwargs", "severity", "meta") if expectation.get(name)}
            for expectation in loaded["expectations"]
        ]
        for expectation in expectations:
            expectation.setdefault("kwargs", {})
            try:
                get_expectation_impl(expectation["type"])
                ExpectationSuite(name=topic, expectations=[expectation])
            except ExpectationNotFoundError:
                kind = expectation["type"]
                raise InvalidConfig("Great Expectations does not know this expectation.", found=kind) from None
            except ValueError as error:  # pydantic's
                _, *why = str(error).splitlines()
                raise InvalidConfig(f"{expectation['type']} is not usable: {' '.join(' '.join(why).split())}") from None
        return ExpectationSuite(name=topic, expectations=expectations)

    return read_suite(file, build)


def check_columns(suite: ExpectationSuite, messages: AuditedMessages) -> None:
    """Raise ExpectationFailed if a column that the suite uses is missing."""
    names = {*messages.df.columns}
    if DATA in names:
        names |= {f"{DATA}.{field}" for field in messages.df.select(f"{DATA}.*").columns}
    used = [
        column
        for expectation in suite.expectations
        if (kwargs := expectation.configuration.kwargs) and expectation.expectation_type != "expect_column_to_exist"
        for column in [*(kwargs.get(name) for name in _COLUMNS), *(kwargs.get("column_list") or ())]
    ]
    if missing := [column for column in dict.fromkeys(used) if column is not None and column not in names]:
        raise ExpectationFailed(
            f"The messages of {suite.name} lack columns of its suite.",
            found=messages.df.columns,
            expected=", ".join(missing),
        )
