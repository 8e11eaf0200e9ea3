"""The demo's third part: long delays become alerts in a topic of their own, by a job that is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo import checks
from lakemq.jobs.demo.checks import Checked, CheckFailed

SOURCE, TARGET, NAME = "flights", "alerts", "delay-alerts"
DELAY_MINUTES = 60
KILLS = 2
BATCHES = 4
_PATIENCE_S = 120

WHERE = f"cast(get_json_object(cast(value AS string), '$.arr_delay') AS double) > {DELAY_MINUTES}"


def alert(mq: Connection, folder: Path, flights: int) -> tuple[int, ...]:
    """Run the copy job until it ends by itself, after so many kills; the exit codes. Raises CheckFailed."""
    mq.topics.create(TARGET, partitions=4, config={"retention.ms": -1})  # as what is copied
    log = folder / "alerts.log"
    exits = tuple(_run(mq, log, max(1, flights // BATCHES), kill=number < KILLS) for number in range(KILLS + 1))
    if exits[-1] != 0:
        raise CheckFailed(f"The job for the alerts has ended with {exits[-1]}: {log.read_text()[-500:]}")
    log.unlink()
    return exits


def _run(mq: Connection, log: Path, max_records: int, kill: bool) -> int:
    """One run in a process of its own, killed -9 once it has committed a batch."""
    command = [sys.executable, "-m", "lakemq.jobs.copy_topic", "--path", mq.namespace.path, "--master", "local[2]"]
    command += ["--from", SOURCE, "--to", TARGET, "--id", NAME, "--where", WHERE, "--max-records", str(max_records)]
    with log.open("ab") as sink:
        before = _committed(log)
        job = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        if kill:
            deadline_s = time.monotonic() + _PATIENCE_S
            while _committed(log) == before and job.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.02)
            # its JVM and workers too, as when a machine goes away
            os.killpg(job.pid, signal.SIGKILL)
        return job.wait()


def _committed(log: Path) -> int:
    """Batches that the job says it has committed."""
    return log.read_text().count(" to go")


def check_alerts(alerts: pa.Table, flights: pa.Table, exits: tuple[int, ...]) -> list[Checked]:
    """Each long delay is one alert, in order. Both as `flights_of` reads them; flights: with partition and offset."""
    late = flights.filter(pc.field("arr_delay") > DELAY_MINUTES)
    alike = _sorted(alerts, late.column_names).equals(_sorted(late, late.column_names))
    killed = sum(code == -signal.SIGKILL for code in exits)
    return [
        checks.check(
            "Every long delay is an alert, once, though the job was killed",
            alike,
            f"{alerts.num_rows:,} alerts for {late.num_rows:,} delays over {DELAY_MINUTES} minutes",
        ),
        checks.check("The job was killed on the way", killed == KILLS, f"{killed} times with kill -9"),
        checks.check_key_order(alerts),
    ]


def _sorted(table: pa.Table, columns: list[str]) -> pa.Table:
    named = [name for name in columns if name not in ("partition", "offset")]
    order = [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight", "tailnum")]
    return table.select(named).sort_by(order).combine_chunks()
