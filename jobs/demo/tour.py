"""The tour: a year of flights published from Spark, the weather sent from Python, both read back, checked and asked.

Long delays become alerts in a topic of their own, exactly once, by a job that is killed twice on the way. A message
that takes long is worked on in a group of each protocol, and a group of processes handles all flights while one of
them joins, one is killed, one restarts and one leaves. Reminders of departures are delayed messages.

    python -m lakemq.jobs.demo [--keep FOLDER] [--rows N]

It exits with 1 when a check fails. What it leaves behind lies in one folder: the namespace `nyc` and `report.html`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo import alerts, answers, checks, slow
from lakemq.jobs.demo.answers import Answers
from lakemq.jobs.demo.checks import CheckFailed
from lakemq.jobs.demo.crew import Crew, check_crew, share
from lakemq.jobs.demo.data import FLIGHT_DDL, MissingData, Source, load_source
from lakemq.jobs.demo.reminders import Reminded, check_reminders, remind
from lakemq.jobs.demo.report import build_report
from lakemq.jobs.demo.stages import Tour
from lakemq.jobs.session import MissingJars, MissingJava, spark_session

DATABASE = "nyc"
PARTITIONS = 8
SINGLE_SENDS = 20
READ_SHARE = 0.7

PUBLISH = "Publish the flights from Spark"
SEND = "Send the weather from Python"
FETCH = "Fetch the flights in Arrow"
SHARE = "Share the flights among processes that come and go, and remind of departures"
ALERT = "Turn long delays into alerts, killing the job twice"


class NotOurs(Exception):
    """The folder holds something that the demo did not make."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--keep", default="data/demo", metavar="FOLDER", help="where it leaves what it made (%(default)s)"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N flights and hours of weather")
    asked = parser.parse_args(arguments)
    tour, begun_s = Tour(Console()), time.monotonic()
    try:
        report = run(tour, Path(asked.keep), asked.rows)
    except (CheckFailed, MissingData, MissingJars, MissingJava, NotOurs) as failed:
        told = f"[red]{type(failed).__name__}[/]: {escape(str(failed))}"
        Console(stderr=True).print(told, soft_wrap=True, highlight=False)
        return 1
    took_s = time.monotonic() - begun_s
    tour.console.print(f"\nAll {len(tour.checked)} checks passed; {took_s:.0f} s. The report:")
    tour.console.print(str(report), soft_wrap=True, highlight=False, markup=False)
    return 0


def run(tour: Tour, folder: Path, rows: int | None) -> Path:
    """All stages, in order; the path of the report. Raises CheckFailed."""
    with tour.stage("Read the input") as say:
        path = _clean_namespace(folder)
        source = load_source(folder, rows)
        say(f"{source.flights.num_rows:,} flights, {source.weather.num_rows:,} hours of weather")
    with tour.stage("Start Spark") as say:
        spark = spark_session("lakemq demo")
        say(f"Spark {pyspark.__version__} on {spark.sparkContext.master}")
    with tour.stage("Make the namespace") as say:
        mq = lakemq.connect(str(path), spark=spark, create=True)
        say(f"{path}, in Spark the database {DATABASE}")
    with mq:
        with mq.serving():
            flights = _flights(spark, source)
            # they bear times of 2013
            mq.topics.create("flights", partitions=PARTITIONS, config={"retention.ms": -1})
            mq.topics.create("weather", partitions=4, config={"retention.ms": -1})
            _publish(tour, mq, flights)
            latency_ms = _send_weather(tour, mq, source.weather)
            values = _fetch(tour, mq, source)
            _alert(tour, mq, folder, values)
            _slow(tour, mq)
            crew, reminded = _share_and_remind(tour, mq, folder, source)
            ends = mq.end_offsets("flights")
            position = mq.fetch("flights", end=int(READ_SHARE * source.flights.num_rows / PARTITIONS)).to_arrow()
        source.flights_csv.unlink()
        # the sequencer has projected all it decided before it handed over the lease, so SQL sees everything
        answers = _ask(tour, spark, source, position)
        tour.passed([*check_crew(crew, ends, answers.owners), *check_reminders(reminded, answers.releases)])
    spark.stop()
    report = folder / "report.html"
    with tour.stage("Write the report"):
        build_report(_tiles(tour, source, latency_ms), tour.checked, answers, crew, reminded, tour.stages).write(report)
    return report.absolute()


def _clean_namespace(folder: Path) -> Path:
    """The place of the namespace, empty. Raises NotOurs rather than delete what is no namespace."""
    path = folder / DATABASE
    if path.exists() and not (path / "journal" / "_delta_log").is_dir():
        raise NotOurs(f"{path} is there and is no namespace of LakeMQ: move it, or name another folder with --keep.")
    shutil.rmtree(path, ignore_errors=True)
    return path


def _flights(spark: SparkSession, source: Source) -> DataFrame:
    """The flights, with the scheduled time of departure."""
    read = spark.read.csv(str(source.flights_csv), schema=FLIGHT_DDL, header=True, nullValue="NA")
    return read.withColumn("departure", F.expr("timestampadd(MINUTE, minute, time_hour)"))


def _publish(tour: Tour, mq: Connection, flights: DataFrame) -> None:
    """The flights, twice: the version makes the second time harmless."""
    value = F.to_json(F.struct(*(name for name in flights.columns if name != "departure")))
    publish: dict[str, Any] = {
        "key": "tailnum",
        "value": value,
        "timestamp": "departure",
        "order_by": ["departure", "carrier", "flight"],
        "txn_app_id": "demo",
        "txn_version": 1,
    }
    with tour.stage(PUBLISH) as say:
        published = mq.publish("flights", flights, **publish)
        count = sum(unit.record_count for unit in published.units)
        say(f"{count:,} messages, key tailnum, {len(published.units)} partitions")
    with tour.stage("Publish the same version again") as say:
        again = mq.publish("flights", flights, **publish)
        found = f"{sum(mq.end_offsets('flights').values()) - count} messages added"
        say(found)
    once = again.duplicate and sum(mq.end_offsets("flights").values()) == count
    tour.passed([checks.check("The same version again adds nothing", once, found)])


def _send_weather(tour: Tour, mq: Connection, weather: pa.Table) -> float:
    """The weather from plain Python: most of it at once, the last hours one by one; their median latency in ms."""
    rows, latencies_ms = weather.to_pylist(), []
    with mq.producer() as producer:

        def send(row: dict[str, Any]) -> None:
            timestamp_ms = int(row["time_hour"].timestamp() * 1000)
            producer.send("weather", key=row["origin"], value=json.dumps(row, default=str), timestamp_ms=timestamp_ms)

        with tour.stage(SEND) as say:
            for row in rows[:-SINGLE_SENDS]:
                send(row)
            producer.flush()
            say(f"{len(rows[:-SINGLE_SENDS]):,} messages, key origin, record by record")
        with tour.stage("Send one, wait, send the next") as say:
            for row in rows[-SINGLE_SENDS:]:
                begun_s = time.monotonic()
                send(row)
                producer.flush()
                latencies_ms.append((time.monotonic() - begun_s) * 1000)
            latency_ms = statistics.median(latencies_ms)
            say(f"{len(latencies_ms)} messages, acknowledged after {latency_ms:.0f} ms (median)")
    return latency_ms


def _fetch(tour: Tour, mq: Connection, source: Source) -> pa.Table:
    """Everything, both ways, and checked; the flights as they were fetched."""
    with tour.stage(FETCH) as say:
        flights = mq.fetch("flights").to_arrow()
        say(f"{flights.num_rows:,} messages")
    with tour.stage("Fetch the flights in Spark") as say:
        through_spark = mq.fetch("flights").to_spark().toArrow()
        say(f"{through_spark.num_rows:,} messages")
    with tour.stage("Check them"):
        weather = mq.fetch("weather").to_arrow()
        values = checks.flights_of(flights, source.flights.schema)
        checked = [
            checks.check_count("flights", flights, source.flights.num_rows),
            checks.check_count("weather", weather, source.weather.num_rows),
            checks.check_dense_offsets("flights", flights, mq.end_offsets("flights")),
            checks.check_dense_offsets("weather", weather, mq.end_offsets("weather")),
            checks.check_content(values, source.flights),
            checks.check_key_order(values),
            checks.check_ways_agree(flights, through_spark),
        ]
    tour.passed(checked)
    return values


def _alert(tour: Tour, mq: Connection, folder: Path, flights: pa.Table) -> None:
    """Long delays into a topic of their own, by a job that is killed on the way."""
    with tour.stage(ALERT) as say:
        exits = alerts.alert(mq, folder, flights.num_rows)
        say(f"{len(exits)} runs of the job, {alerts.KILLS} of them killed")
    with tour.stage("Check the alerts"):
        columns = pa.schema([f for f in flights.schema if f.name not in ("partition", "offset")])
        raised = checks.flights_of(mq.fetch(alerts.TARGET).to_arrow(), columns)
        checked = alerts.check_alerts(raised, flights, exits)
    tour.passed(checked)


def _slow(tour: Tour, mq: Connection) -> None:
    """Who stands still while a member of a group takes long for a message."""
    with tour.stage("Take long for a message, in groups of three protocols"):
        found = slow.slow_message(mq, "flights")
    tour.passed([slow.check_slow(found)])


def _share_and_remind(tour: Tour, mq: Connection, folder: Path, source: Source) -> tuple[Crew, Reminded]:
    """The flights, handled by processes that come and go; meanwhile, as both mostly wait, reminders of departures."""
    with tour.stage(SHARE) as say, ThreadPoolExecutor(1) as aside:
        asked = aside.submit(remind, mq, source.flights)
        crew, reminded = share(mq, folder), asked.result()
        members = len(set(crew.names.values()))
        say(f"{crew.handled.num_rows:,} handled by {members} members, {reminded.count:,} reminders")
    return crew, reminded


def _ask(tour: Tour, spark: SparkSession, source: Source, read: pa.Table) -> Answers:
    """SQL over the log, and what it says held against the input. read: the messages some reader has seen."""
    answers.create_views(spark, DATABASE, source.airlines, read)
    found: list[pa.Table] = []
    for question in answers.QUESTIONS:
        with tour.stage(question.title):
            found.append(answers.ask(spark, DATABASE, question))
        tour.show(found[-1])
    told = Answers(*found)
    with tour.stage("Check the answers"):
        misplaced, keyed = answers.misplaced(spark, DATABASE, PARTITIONS)
        checked = [
            checks.check_partition_is_hash(misplaced, keyed),
            checks.check_busiest(told.busiest, source.flights),
            checks.check_late(told.late, source.flights, answers.LATE_MINUTES),
            checks.check_one_aircraft(told.one_aircraft, source.flights, answers.AIRCRAFT),
        ]
    tour.passed(checked)
    return told


def _tiles(tour: Tour, source: Source, latency_ms: float) -> list[tuple[str, str]]:
    flights, weather = source.flights.num_rows, source.weather.num_rows
    return [
        (f"{flights + weather:,}", "messages"),
        (f"{flights / tour.seconds(PUBLISH):,.0f}/s", "published from a Spark just started, in order per key"),
        (f"{weather / tour.seconds(SEND):,.0f}/s", "sent from Python, record by record"),
        (f"{latency_ms:.0f} ms", "until one message is acknowledged"),
        (f"{flights / tour.seconds(FETCH):,.0f}/s", "fetched in Arrow"),
        (str(len(tour.checked)), "checks, all passed"),
    ]
