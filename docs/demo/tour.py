"""A tour of LakeMQ over real data: flights and weather are published, fetched, shared, delayed, checked and asked.

    python docs/demo/tour.py [--keep FOLDER] [--rows N]

Processes that share the flights raise alerts for long delays, a transaction per batch, while one of them is killed.
Reminders of departures are delayed messages. The tour exits with 1 when a check fails. It leaves one folder behind,
with the namespace `nyc` and `report.html`.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import checks
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from checks import CheckFailed, Progress, ask, ask_checks, check_hash
from group import raise_alerts, send_reminders
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from report import SUMMARY, TITLE, build_report
from rich.console import Console

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo.data import MissingData, Source, load_source
from lakemq.jobs.reports.history import read_history
from lakemq.jobs.reports.history_report import write_page
from lakemq.jobs.session import MissingJars, MissingJava, spark_session

SETTINGS = Path(lakemq.__file__).parent / "conf/lakemq.yaml"
"""The defaults; beside it are the suites of expectations that flights pass."""

PARTITIONS = 8
SINGLE_SENDS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour and return the exit code."""
    parser = argparse.ArgumentParser(prog="tour.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", default="data/demo", metavar="FOLDER", help="where to leave the result (%(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N flights and hours of weather")
    options = parser.parse_args(arguments)
    progress, began_s = Progress(Console()), time.monotonic()
    try:
        take_folder(Path(options.keep))
        report = run(progress, Path(options.keep), options.rows)
    except (CheckFailed, FolderTaken, MissingData, MissingJars, MissingJava) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"\nAll {len(progress.checks)} checks passed in {time.monotonic() - began_s:.0f} s. The report:\n{report}")
    return 0


def run(progress: Progress, folder: Path, rows: int | None) -> Path:
    """Go through all stages in an empty folder, and return the path of the report. Raises CheckFailed."""
    path, began_ms = folder / NAMESPACE, time.time_ns() // 1_000_000
    with progress.stage("Read a year of flights from New York, and the weather there") as stage:
        source = load_source(rows)
        stage.result = f"{source.flights.num_rows:,} flights, {source.weather.num_rows:,} hourly weather reports"
    with ThreadPoolExecutor(2) as background, lakemq.connect(str(path), create=True, conf=str(SETTINGS)) as mq:
        starting = background.submit(spark_session, "lakemq demo")
        with mq.serving():
            _send_weather(progress, mq, source.weather)
            with progress.stage("Wait for Spark, and give its catalog all tables and views") as stage:
                spark = starting.result()
                spark_mq = lakemq.connect(str(path), spark=spark, conf=str(SETTINGS))
                stage.result = f"Spark {pyspark.__version__}, database {NAMESPACE}"
            with spark_mq:
                _publish(progress, spark_mq, spark, source, folder / FLIGHTS)
                _fetch(progress, spark_mq, source)
            # The processes mostly wait, so reminders are sent and Spark is asked meanwhile.
            reminding = background.submit(send_reminders, mq, source.flights)
            asking = background.submit(check_hash, spark, NAMESPACE)
            with progress.stage(
                "Raise alerts in processes that share the flights, and kill one; send reminders"
            ) as stage:
                team = raise_alerts(mq, stage)
                stage.show("waiting for the last reminders")
                reminded, hash_check = reminding.result(), asking.result()
                stage.result = "; ".join(event for _, event in team.events)
        # The sequencer has written all that it decided to the tables before it ended.
        with progress.stage("Ask the tables in SQL, without a JVM") as stage:
            answers = {name: ask(mq, name) for name in ("delay_by_visibility", "owners", "transactions", "releases")}
            claims = ask_checks(mq)
            history = read_history(mq, began_ms, time.time_ns() // 1_000_000)
            stage.result = "does fog delay departures, who had which partition, what was committed, what came when"
    spark.stop()
    (folder / FLIGHTS).unlink()
    progress.add_checks(hash_check, *claims, reminded)
    report = folder / REPORT
    write_page(TITLE, SUMMARY, build_report(progress, answers, team, history), report)
    return report.absolute()


def _send_weather(progress: Progress, mq: Connection, weather: pa.Table) -> None:
    """Send the weather from plain Python, record by record, and wait for each of the last ones."""
    mq.topics.create("weather", partitions=4, config={"retention.ms": -1})  # The messages bear times of 2013.
    reports = weather.to_pylist()
    many, last = reports[:-SINGLE_SENDS], reports[-SINGLE_SENDS:]
    sentence = f"Send {len(reports):,} weather reports from Python, record by record, while Spark starts"
    with mq.producer() as producer, progress.stage(sentence) as stage:

        def time_send(rows: list[dict[str, Any]]) -> float:
            began_s = time.monotonic()
            for row in rows:
                timestamp_ms, value = int(row["time_hour"].timestamp() * 1000), json.dumps(row, default=str)
                producer.send("weather", key=row["origin"], value=value, timestamp_ms=timestamp_ms)
            producer.flush()
            return time.monotonic() - began_s

        per_s = len(many) / time_send(many)
        latency_ms = 1000 * statistics.median(time_send([row]) for row in last)
        stage.result = f"{per_s:,.0f} a second; {latency_ms:.0f} ms until a single one is acknowledged (median)"
    progress.tiles.append((f"{per_s:,.0f}/s", "sent from Python, record by record"))
    progress.tiles.append((f"{latency_ms:.0f} ms", "until one message is acknowledged"))


def _publish(progress: Progress, mq: Connection, spark: SparkSession, source: Source, file: Path) -> None:
    """Publish the flights from Spark, twice: their version makes the second time harmless."""
    mq.topics.create("flights", partitions=PARTITIONS, config={"retention.ms": -1})
    pq.write_table(source.flights, file)
    flights = spark.read.parquet(str(file))
    publish = partial(
        mq.publish,
        key="tailnum",
        value=F.to_json(F.struct("*")),
        timestamp=F.expr("timestampadd(MINUTE, minute, time_hour)"),
        order_by=["time_hour", "minute", "carrier", "flight"],
        txn_app_id="demo",
        txn_version=1,
    )
    with progress.stage("Publish the flights from Spark, ordered per aircraft") as stage:
        began_s = time.monotonic()
        published = publish("flights", flights)
        count = sum(unit.record_count for unit in published.units)
        per_s = count / (time.monotonic() - began_s)
        stage.result = f"{count:,} messages in {PARTITIONS} partitions, {published.rejected_count} rejected by the gate"
    with progress.stage("Publish them again, as a job does that is run twice") as stage:
        again = publish("flights", flights)
        added = sum(mq.end_offsets("flights").values()) - count
        stage.result = f"{added} messages added"
    claim = "A version that was published before adds nothing"
    progress.add_checks(checks.check(claim, again.duplicate and added == 0, stage.result))
    progress.tiles.append((f"{per_s:,.0f}/s", "published from a Spark that has just started"))


def _fetch(progress: Progress, mq: Connection, source: Source) -> None:
    """Fetch everything, the flights in Arrow and in Spark, and check it."""
    with progress.stage("Fetch the flights in Arrow and in Spark, and compare them with the input") as stage:
        messages, weather = mq.fetch("flights").to_arrow(), mq.fetch("weather").to_arrow()
        through_spark = mq.fetch("flights").to_spark().toArrow()
        stage.result = f"{messages.num_rows + weather.num_rows:,} messages"
    count = f"{weather.num_rows:,} messages of {source.weather.num_rows:,} sent"
    progress.add_checks(
        checks.check_content(messages, source.flights),
        checks.check("All of weather is there, once", weather.num_rows == source.weather.num_rows, count),
        checks.check_ways_agree(messages, through_spark),
    )


# The folder of the demo: the demo removes only what it made itself.


MARKER = ".lakemq-demo"
"""A file that says that the demo made the folder."""

NAMESPACE, FLIGHTS, REPORT = "nyc", "flights.parquet", "report.html"
"""All that a demo makes."""


class FolderTaken(Exception):
    """The folder holds files that the demo did not make."""


def take_folder(folder: Path) -> None:
    """Make the folder, or remove what an earlier demo left in it. Raises FolderTaken; then nothing has changed."""
    if folder.exists() and not folder.is_dir():
        raise FolderTaken(f"{folder} is a file. Name a folder with --keep.")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise FolderTaken(f"{folder} has files that this demo did not make. Name another folder with --keep.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    shutil.rmtree(folder / NAMESPACE, ignore_errors=True)
    for name in (FLIGHTS, REPORT):
        (folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
