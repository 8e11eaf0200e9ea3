"""What the demo asks in SQL. DuckDB answers in Spark's SQL, without a JVM; one question goes to Spark itself."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo.checks import Check, check
from lakemq.jobs.demo.member import GROUP, TARGET
from lakemq.jobs.demo.reminders import TOPIC


@dataclass(frozen=True)
class Question:
    """A question that a person has, and the SQL that answers it."""

    title: str
    sql: str


DELAY_BY_VISIBILITY = Question(
    "SQL: does fog delay departures?",
    """\
WITH flights AS (
  SELECT get_json_object(CAST(value AS STRING), '$.origin') AS origin, date_trunc('HOUR', timestamp) AS hour,
         CAST(get_json_object(CAST(value AS STRING), '$.dep_delay') AS INT) AS dep_delay
  FROM log_committed WHERE topic = 'flights'
), weather AS (
  SELECT CAST(key AS STRING) AS origin, timestamp AS hour,
         CAST(get_json_object(CAST(value AS STRING), '$.visib') AS DOUBLE) AS miles
  FROM log_committed WHERE topic = 'weather'
)
SELECT CASE WHEN miles < 1 THEN 'below 1' WHEN miles < 3 THEN '1 to 3'
            WHEN miles < 6 THEN '3 to 6' WHEN miles < 10 THEN '6 to 10' ELSE '10' END AS visibility,
       count(*) AS flights, CAST(sum(dep_delay) AS BIGINT) AS delay_minutes
FROM flights JOIN weather USING (origin, hour)
WHERE dep_delay IS NOT NULL AND miles IS NOT NULL
GROUP BY 1 ORDER BY min(miles)""",
)

OWNERS = Question(
    "Groups: who had which partition, and when?",
    f"""\
SELECT partition, state, owner, since, until, reason
FROM assignment_history WHERE `group` = '{GROUP}' ORDER BY partition, since""",
)

TRANSACTIONS = Question(
    "Transactions: what became of each batch?",
    f"""\
SELECT transactional_id, state, reason, started_at, updated_at
FROM transaction_history
WHERE transactional_id LIKE '{TARGET}-%' AND state IN ('CompleteCommit', 'CompleteAbort')
ORDER BY updated_at, transactional_id""",
)

RELEASES = Question(
    "Delays: when did each reminder come?",
    f"""\
SELECT CAST(CAST(value AS STRING) AS INT) AS number, decided_at AS released_at
FROM log_committed WHERE topic = '{TOPIC}' AND origin = 'delay' ORDER BY number""",
)

_MISPLACED = """\
SELECT count_if(partition <> pmod(xxhash64(key), {partitions})) AS misplaced, count(*) AS keyed
FROM {database}.log_committed WHERE topic = 'flights' AND key IS NOT NULL"""


@dataclass(frozen=True)
class Answers:
    """The answer to each question, with the columns that its SQL names."""

    delay_by_visibility: pa.Table
    owners: pa.Table
    transactions: pa.Table
    releases: pa.Table


def ask_all(mq: Connection) -> Answers:
    """Ask DuckDB all questions."""
    return Answers(*(mq.sql(question.sql) for question in (DELAY_BY_VISIBILITY, OWNERS, TRANSACTIONS, RELEASES)))


def check_hash(spark: SparkSession, database: str, partitions: int) -> Check:
    """Check by Spark's own hash function, which LakeMQ does not use, that each key is in its partition."""
    row = spark.sql(_MISPLACED.format(database=database, partitions=partitions)).first()
    assert row is not None
    evidence = f"{row.misplaced} of {row.keyed:,} misplaced"
    return check("A message is where the hash of its key says, asked in Spark SQL", row.misplaced == 0, evidence)
