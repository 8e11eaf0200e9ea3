"""Processes share the flights and raise alerts: one joins late, one is killed in a transaction and comes back."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo.checks import Check, CheckFailed, check, check_key_order, parse_flights
from lakemq.jobs.demo.member import DELAY_MINUTES, GROUP, HURRY, KILL, SOURCE, TARGET
from lakemq.jobs.demo.progress import Stage

KILLED = "Ben"
_BATCHES = 150
"""Batches that the flights make. They last for a minute, so that they outlast the events also on a slow machine."""
_PAUSE_S = 1.0
"""Between two events, so that the report's picture shows them apart."""
_PATIENCE_S = 240


@dataclass
class Team:
    """The members' processes, the folder for signals to them, and the events: seconds since 1970, what happened."""

    mq: Connection
    signals: Path
    stage: Stage
    total: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)

    def start(self, *names: str) -> None:
        """Start processes that become members of the group."""
        records = max(1, self.total // _BATCHES)
        for name in names:
            command = [sys.executable, "-m", "lakemq.jobs.demo.member", "--path", str(self.mq.namespace.path)]
            command += ["--name", name, "--max-records", str(records), "--signals", str(self.signals)]
            self.processes[name] = subprocess.Popen(command)

    def note(self, event: str) -> None:
        """Keep an event for the report, and print it."""
        self.events.append((time.time(), event))
        self.stage.show(event)

    def wait_until(self, holds: Callable[[], bool], expected: str) -> None:
        """Wait for something. Raises CheckFailed when it takes too long, or when a member fails."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise CheckFailed(f"For {_PATIENCE_S} s it did not happen that {expected}.")
            for name, process in self.processes.items():
                if process.poll():
                    raise CheckFailed(f"{name} has ended with exit code {process.returncode}.")
            time.sleep(0.05)

    def wait_for_owners(self, *names: str) -> None:
        """Wait until exactly these members share the partitions, and for a moment longer."""
        self.wait_until(lambda: self._owners() == set(names), f"{', '.join(names)} share the partitions")
        time.sleep(_PAUSE_S)

    def _owners(self) -> set[str]:
        """Return the names of the members that have partitions; empty while partitions change hands."""
        partitions = self.mq.groups.assignments(GROUP)
        is_settled = all(partition.state == "ready" for partition in partitions)
        return {owner_name(partition.owner) for partition in partitions} if is_settled else set()

    def kill_in_transaction(self, name: str) -> None:
        """Have a process killed with SIGKILL while it has an open transaction, which stays open until it comes back."""
        process, kill = self.processes.pop(name), self.signals / f"{KILL}{name}"
        kill.touch()
        self.wait_until(lambda: process.poll() is not None, f"{name} is killed")
        kill.unlink()
        if process.returncode != -signal.SIGKILL:
            raise CheckFailed(f"{name} has ended with exit code {process.returncode} before it was killed.")

    def finish(self) -> None:
        """Wait until every flight is read, and every process has ended by itself."""
        (self.signals / HURRY).touch()

        def has_ended() -> bool:
            unread = sum(partition.lag for partition in self.mq.groups.lag(GROUP))
            self.stage.show(f"{self.total - unread:,} of {self.total:,} flights are read")
            return all(process.poll() is not None for process in self.processes.values())

        self.wait_until(has_ended, "all members have ended")

    def end(self) -> None:
        """Leave no process and no signal behind, whatever happened."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.signals)


def raise_alerts(mq: Connection, folder: Path, stage: Stage) -> Team:
    """Have processes copy long delays to a topic of their own, and disturb them. Raises CheckFailed."""
    mq.topics.create(TARGET, partitions=4, config={"retention.ms": -1})  # The flights are of 2013.
    mq.groups.create(GROUP, {"group.protocol": "cooperative"})
    team = Team(mq, folder / "signals", stage, sum(mq.end_offsets(SOURCE).values()))
    team.signals.mkdir(exist_ok=True)
    try:
        team.start("Ann", KILLED, "Cem")
        team.wait_for_owners("Ann", KILLED, "Cem")
        team.note("Ann, Ben and Cem share the flights")
        team.start("Dee")
        team.note("Dee joins")
        team.wait_for_owners("Ann", KILLED, "Cem", "Dee")
        team.kill_in_transaction(KILLED)
        team.note("Ben is killed with kill -9 in a transaction")
        team.wait_for_owners("Ann", "Cem", "Dee")
        team.start(KILLED)
        team.note("Ben comes back")
        team.wait_for_owners("Ann", KILLED, "Cem", "Dee")
        team.finish()
        return team
    finally:
        team.end()


def owner_name(member_id: str | None) -> str:
    """Return the name of a member: its id begins with it."""
    return (member_id or "nobody").partition("-")[0]


def check_alerts(alerts: pa.Table, flights: pa.Table, lag: int, transactions: pa.Table) -> list[Check]:
    """Check that each long delay is one alert.

    alerts: the messages; flights: from `parse_flights`; lag: of the group; transactions: transactional_id, state and
    reason of each that has ended.
    """
    columns = pa.schema([f for f in flights.schema if f.name not in ("partition", "offset")])
    raised = parse_flights(alerts, columns)
    late = flights.filter(pc.field("arr_delay") > DELAY_MINUTES)
    order = [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight", "tailnum")]
    same = raised.select(columns.names).sort_by(order).equals(late.select(columns.names).sort_by(order))
    ended = zip(
        *(transactions.column(name).to_pylist() for name in ("transactional_id", "state", "reason")), strict=True
    )
    aborted = [(owner, reason) for owner, state, reason in ended if state == "CompleteAbort"]
    committed = transactions.num_rows - len(aborted)
    left_open = (f"{TARGET}-{KILLED}", "fenced")
    return [
        check("The group has read every flight", lag == 0, f"{lag} of {flights.num_rows:,} left"),
        check(
            "Every long delay is an alert, exactly once, though a process was killed",
            same,
            f"{alerts.num_rows:,} alerts for {late.num_rows:,} delays over {DELAY_MINUTES} minutes",
        ),
        check(
            "The transaction of the killed process was aborted when the process came back",
            left_open in aborted,
            f"{committed} transactions committed, {len(aborted)} aborted",
        ),
        check_key_order(TARGET, raised),
    ]
