"""The questions of the demo, and the SQL over the log that answers them. `{mq}` is the namespace's database."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakemq.jobs.demo.data import FLIGHT_DDL

LATE_MINUTES = 15
AIRCRAFT = "N14228"

_FLIGHTS = f"""\
CREATE OR REPLACE TEMPORARY VIEW flights AS
SELECT partition, offset, timestamp AS departure, f.*
FROM (SELECT *, from_json(CAST(value AS STRING), '{FLIGHT_DDL}') AS f
      FROM {{mq}}.log_committed WHERE topic = 'flights')"""

_WEATHER = """\
CREATE OR REPLACE TEMPORARY VIEW weather AS
SELECT timestamp AS time_hour, CAST(key AS STRING) AS origin, w.*
FROM (SELECT *, from_json(CAST(value AS STRING), 'visib double, wind_speed double') AS w
      FROM {mq}.log_committed WHERE topic = 'weather')"""


@dataclass(frozen=True)
class Question:
    """What a person wants to know, and how to ask it."""

    title: str
    sql: str


BUSIEST = Question(
    "Which aircraft flew most?",
    """\
SELECT tailnum, count(*) AS flights, max(carrier) AS carrier, count(DISTINCT dest) AS destinations
FROM flights WHERE tailnum IS NOT NULL
GROUP BY tailnum ORDER BY flights DESC, tailnum LIMIT 10""",
)

ONE_AIRCRAFT = Question(
    f"What happened to {AIRCRAFT}, in order?",
    f"""\
SELECT partition, offset, departure, concat(carrier, ' ', flight) AS flight, origin, dest, dep_delay, arr_delay
FROM flights WHERE tailnum = '{AIRCRAFT}' ORDER BY offset""",
)

LAG = Question(
    "How far behind is a reader, per partition?",
    """\
SELECT partition, end_offset AS messages, position AS read, end_offset - position AS lag
FROM (SELECT partition, max_by(high_watermark, step) AS end_offset
      FROM {mq}.partitions WHERE topic = 'flights' GROUP BY partition)
JOIN positions USING (partition) ORDER BY partition""",
)

LATE = Question(
    "Which carriers are late?",
    f"""\
SELECT carrier, name, count(*) AS flights, count_if(arr_delay >= {LATE_MINUTES}) AS late,
       round(100 * count_if(arr_delay >= {LATE_MINUTES}) / count(arr_delay), 1) AS late_percent
FROM flights JOIN airlines USING (carrier)
GROUP BY carrier, name ORDER BY late_percent DESC""",
)

WEATHER = Question(
    "Does fog delay departures? (two topics, joined)",
    """\
SELECT CASE WHEN visib < 1 THEN 'below 1' WHEN visib < 3 THEN '1 to 3'
            WHEN visib < 6 THEN '3 to 6' WHEN visib < 10 THEN '6 to 10' ELSE '10' END AS miles,
       count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay_minutes
FROM flights JOIN weather USING (origin, time_hour)
WHERE dep_delay IS NOT NULL AND visib IS NOT NULL
GROUP BY 1 ORDER BY min(visib)""",
)

ALERTS = Question(
    "What became of the transactions behind the alerts?",
    """\
SELECT state, coalesce(reason, '') AS ended_by, count(*) AS transactions, max(open_ms) AS longest_open_ms
FROM {mq}.transaction_history
WHERE transactional_id = 'delay-alerts' AND state IN ('CompleteCommit', 'CompleteAbort')
GROUP BY 1, 2 ORDER BY 1 DESC, 2""",
)

OWNERS = Question(
    "Who had which partition, and when?",
    """\
SELECT partition, state, owner, since, until, reason
FROM {mq}.assignment_history WHERE `group` = 'crew' ORDER BY partition, since""",
)

HANDOFFS = Question(
    "How long did each change of hands take, and what was delivered again?",
    """\
SELECT partition, reason, began_at, took_ms, redelivered
FROM {mq}.handoffs WHERE `group` = 'crew' AND from_member IS NOT NULL ORDER BY began_at, partition""",
)

RELEASES = Question(
    "When did each reminder come?",
    """\
SELECT CAST(get_json_object(CAST(value AS STRING), '$[0]') AS BIGINT) AS number, decided_at AS released_at
FROM {mq}.log WHERE topic = 'reminders' AND origin = 'delay' ORDER BY number""",
)

WAITED = Question(
    "How late were reminders, and what became of those that waited?",
    """\
SELECT state, count(*) AS ranges, sum(messages) AS messages, sum(rescheduled) AS rescheduled, max(late_ms) AS latest_ms
FROM {mq}.delayed_history WHERE topic = 'reminders' GROUP BY state ORDER BY state""",
)

QUESTIONS = (BUSIEST, ONE_AIRCRAFT, LAG, LATE, WEATHER, ALERTS, OWNERS, HANDOFFS, RELEASES, WAITED)

_MISPLACED = """\
SELECT count_if(partition <> pmod(xxhash64(key), {partitions})) AS misplaced, count(*) AS keyed
FROM {mq}.log_committed WHERE topic = 'flights' AND key IS NOT NULL"""


@dataclass(frozen=True)
class Answers:
    """The answers to QUESTIONS, in that order."""

    busiest: pa.Table
    one_aircraft: pa.Table
    lag: pa.Table
    late: pa.Table
    weather: pa.Table
    alerts: pa.Table
    owners: pa.Table
    handoffs: pa.Table
    releases: pa.Table
    waited: pa.Table


def create_views(spark: SparkSession, database: str, airlines: pa.Table, read: pa.Table) -> None:
    """The temporary views that the questions name.

    flights, weather: the messages of a topic with their JSON as columns; airlines: carrier, name; positions: per
    partition the offset after the last of the messages `read`.
    """
    for view in (_FLIGHTS, _WEATHER):
        spark.sql(view.format(mq=database))
    # several questions, one reading of the JSON
    spark.catalog.cacheTable("flights")
    spark.createDataFrame(airlines).createOrReplaceTempView("airlines")
    last = read.group_by("partition").aggregate([("offset", "max")])
    positions = {"partition": last.column("partition"), "position": pc.add(last.column("offset_max"), 1)}
    spark.createDataFrame(pa.table(positions)).createOrReplaceTempView("positions")


def ask(spark: SparkSession, database: str, question: Question) -> pa.Table:
    """The answer to a question, in its order."""
    answer: pa.Table = spark.sql(question.sql.format(mq=database)).toArrow()
    return answer


def misplaced(spark: SparkSession, database: str, partitions: int) -> tuple[int, int]:
    """Flights whose partition is not the hash of their key, by Spark's own hash function, and all that have a key."""
    row = spark.sql(_MISPLACED.format(mq=database, partitions=partitions)).first()
    assert row is not None
    return row.misplaced, row.keyed
