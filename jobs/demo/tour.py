"""A tour of LakeMQ over real data: flights and weather are published, fetched, shared, delayed, checked and asked.

    python -m lakemq.jobs.demo [--keep FOLDER] [--rows N]

Processes that share the flights raise alerts for long delays, a transaction per batch, while one of them is killed.
Reminders of departures are delayed messages. The tour exits with 1 when a check fails. It leaves one folder behind,
with the namespace `nyc` and `report.html`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.publish.producer import Producer
from lakemq.jobs.demo import checks
from lakemq.jobs.demo.checks import Check, CheckFailed
from lakemq.jobs.demo.data import FLIGHT_DDL, MissingData, Source, load_source
from lakemq.jobs.demo.folder import FolderTaken, take_folder
from lakemq.jobs.demo.group import Team, check_alerts, raise_alerts
from lakemq.jobs.demo.member import GROUP, TARGET
from lakemq.jobs.demo.progress import Progress
from lakemq.jobs.demo.questions import ask_all, check_hash
from lakemq.jobs.demo.reminders import Reminders, check_reminders, send_reminders
from lakemq.jobs.demo.report import build_report
from lakemq.jobs.session import MissingJars, MissingJava, spark_session

SETTINGS = Path(lakemq.__file__).parent / "conf/lakemq.yaml"
"""The defaults; beside it are the suites of expectations that flights pass."""

DATABASE = "nyc"
PARTITIONS = 8
SINGLE_SENDS = 20

Tiles = list[tuple[str, str]]
"""Figures of the report, each with what it measures."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", default="data/demo", metavar="FOLDER", help="where to leave the result (%(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N flights and hours of weather")
    options = parser.parse_args(arguments)
    progress, began_s = Progress(Console()), time.monotonic()
    try:
        with take_folder(Path(options.keep)):
            report = run(progress, Path(options.keep), options.rows)
    except (CheckFailed, FolderTaken, MissingData, MissingJars, MissingJava) as error:
        message = f"[red]{type(error).__name__}[/]: {escape(str(error))}"
        Console(stderr=True).print(message, soft_wrap=True, highlight=False)
        return 1
    took_s = time.monotonic() - began_s
    progress.console.print(f"\nAll {len(progress.checks)} checks passed in {took_s:.0f} s. The report:")
    progress.console.print(str(report), soft_wrap=True, highlight=False, markup=False)
    return 0


def run(progress: Progress, folder: Path, rows: int | None) -> Path:
    """Go through all stages in an empty folder, and return the path of the report. Raises CheckFailed."""
    path = folder / DATABASE
    with progress.stage("Read a year of flights from New York, and the weather there") as stage:
        source = load_source(folder, rows)
        stage.result = f"{source.flights.num_rows:,} flights, {source.weather.num_rows:,} hourly weather reports"
    with ThreadPoolExecutor(1) as background, lakemq.connect(str(path), create=True, conf=str(SETTINGS)) as mq:
        starting = background.submit(spark_session, "lakemq demo")
        with mq.serving():
            tiles = _send_weather(progress, mq, source.weather)
            with progress.stage("Wait for Spark, and give its catalog all tables and views") as stage:
                spark = starting.result()
                spark_mq = lakemq.connect(str(path), spark=spark, conf=str(SETTINGS))
                stage.result = f"Spark {pyspark.__version__}, database {DATABASE}"
            with spark_mq:
                tiles += _publish(progress, spark_mq, spark, source)
                flights = _fetch(progress, spark_mq, source)
            team, reminders, hash_check = _share_and_remind(progress, mq, spark, folder, source)
            lag = sum(partition.lag for partition in mq.groups.lag(GROUP))
        # The sequencer has written all that it decided to the tables before it ended.
        with progress.stage("Ask the tables in SQL, without a JVM") as stage:
            answers, alerts = ask_all(mq), mq.fetch(TARGET).to_arrow()
            stage.result = "does fog delay departures, who had which partition, what was committed, what came when"
    spark.stop()
    source.flights_csv.unlink()
    progress.add_checks(
        [
            hash_check,
            checks.check_delay_by_visibility(answers.delay_by_visibility, source.flights, source.weather),
            *check_alerts(alerts, flights, lag, answers.transactions),
            *check_reminders(reminders, answers.releases),
        ]
    )
    report = folder / "report.html"
    tiles.append((str(len(progress.checks)), "checks, all passed"))
    build_report(tiles, progress.checks, answers, team, reminders).write(report)
    return report.absolute()


def _send_weather(progress: Progress, mq: Connection, weather: pa.Table) -> Tiles:
    """Send the weather from plain Python, record by record, and wait for each of the last ones."""
    mq.topics.create("weather", partitions=4, config={"retention.ms": -1})  # The messages bear times of 2013.
    rows, latencies_ms = weather.to_pylist(), []
    sentence = f"Send {len(rows):,} weather reports from Python, record by record, while Spark starts"
    with mq.producer() as producer, progress.stage(sentence) as stage:
        many, last = rows[:-SINGLE_SENDS], rows[-SINGLE_SENDS:]
        began_s = time.monotonic()
        for row in many:
            _send_report(producer, row)
        producer.flush()
        per_s = len(many) / (time.monotonic() - began_s)
        for row in last:
            sent_s = time.monotonic()
            _send_report(producer, row)
            producer.flush()
            latencies_ms.append((time.monotonic() - sent_s) * 1000)
        latency_ms = statistics.median(latencies_ms)
        stage.result = f"{per_s:,.0f} a second; {latency_ms:.0f} ms until a single one is acknowledged (median)"
    return [
        (f"{per_s:,.0f}/s", "sent from Python, record by record"),
        (f"{latency_ms:.0f} ms", "until one message is acknowledged"),
    ]


def _send_report(producer: Producer, row: dict[str, Any]) -> None:
    timestamp_ms = int(row["time_hour"].timestamp() * 1000)
    producer.send("weather", key=row["origin"], value=json.dumps(row, default=str), timestamp_ms=timestamp_ms)


def _publish(progress: Progress, mq: Connection, spark: SparkSession, source: Source) -> Tiles:
    """Publish the flights from Spark, twice: their version makes the second time harmless."""
    mq.topics.create("flights", partitions=PARTITIONS, config={"retention.ms": -1})
    flights = spark.read.csv(str(source.flights_csv), schema=FLIGHT_DDL, header=True, nullValue="NA")
    how: dict[str, Any] = {
        "key": "tailnum",
        "value": F.to_json(F.struct("*")),
        "timestamp": F.expr("timestampadd(MINUTE, minute, time_hour)"),
        "order_by": ["time_hour", "minute", "carrier", "flight"],
        "txn_app_id": "demo",
        "txn_version": 1,
    }
    with progress.stage("Publish the flights from Spark, ordered per aircraft") as stage:
        began_s = time.monotonic()
        published = mq.publish("flights", flights, **how)
        count = sum(unit.record_count for unit in published.units)
        per_s = count / (time.monotonic() - began_s)
        stage.result = f"{count:,} messages in {PARTITIONS} partitions, {published.rejected_count} rejected by the gate"
    with progress.stage("Publish them again, as a job does that is run twice") as stage:
        again = mq.publish("flights", flights, **how)
        added = sum(mq.end_offsets("flights").values()) - count
        stage.result = f"{added} messages added"
    claim = "A version that was published before adds nothing"
    progress.add_checks([checks.check(claim, again.duplicate and added == 0, stage.result)])
    return [(f"{per_s:,.0f}/s", "published from a Spark that has just started")]


def _fetch(progress: Progress, mq: Connection, source: Source) -> pa.Table:
    """Fetch everything, the flights in Arrow and in Spark, and check it; return the flights with their offsets."""
    with progress.stage("Fetch the flights in Arrow and in Spark, and compare them with the input") as stage:
        messages = mq.fetch("flights").to_arrow()
        through_spark = mq.fetch("flights").to_spark().toArrow()
        weather = mq.fetch("weather").to_arrow()
        flights = checks.parse_flights(messages, source.flights.schema)
        passed = [
            checks.check_count("flights", messages, source.flights.num_rows),
            checks.check_count("weather", weather, source.weather.num_rows),
            checks.check_dense_offsets("flights", messages, mq.end_offsets("flights")),
            checks.check_dense_offsets("weather", weather, mq.end_offsets("weather")),
            checks.check_content(flights, source.flights),
            checks.check_key_order("flights", flights),
            checks.check_ways_agree(messages, through_spark),
        ]
        stage.result = f"{messages.num_rows + weather.num_rows:,} messages"
    progress.add_checks(passed)
    return flights


def _share_and_remind(
    progress: Progress, mq: Connection, spark: SparkSession, folder: Path, source: Source
) -> tuple[Team, Reminders, Check]:
    """Have processes share the flights; meanwhile, since they mostly wait, send reminders and ask Spark."""
    sentence = "Raise alerts in processes that share the flights, and kill one; remind of departures meanwhile"
    with progress.stage(sentence) as stage, ThreadPoolExecutor(2) as aside:
        reminding = aside.submit(send_reminders, mq, source.flights)
        asking = aside.submit(check_hash, spark, DATABASE, PARTITIONS)
        team = raise_alerts(mq, folder, stage)
        stage.show("waiting for the last reminders")
        reminders, hash_check = reminding.result(), asking.result()
        stage.result = "; ".join(event for _, event in team.events)
    return team, reminders, hash_check
