"""The demo's fifth part: processes share the flights; one joins, one is killed, one restarts, one leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakemq.engine.client.connection import Connection
from lakemq.jobs.demo.checks import Checked, CheckFailed, check

GROUP, TOPIC = "crew", "flights"
HURRY = "hurry"
"""A file by which members are told to work without a rest."""
WORK_S = 0.05
"""Which a batch takes."""
_QUIET_S = 2.0
"""Between two events."""
_LASTS_S = 60
"""All of it, at this rate: longer than the events do."""
_PATIENCE_S = 90
_CONFIG = {"group.protocol": "queue", "rebalance.delay.ms": 1_000, "max.handoff.ms": 1_000}


@dataclass(frozen=True)
class Event:
    """What was done, and from when to when partitions changed hands for it (epoch seconds)."""

    what: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Crew:
    """handled: name, time_s, partition, offset, delivery_count of each message that somebody took, by time;
    names: member_id -> whose process it was; lags: when, and how much was left.
    """

    handled: pa.Table
    names: dict[str, str]
    events: list[Event]
    lags: list[tuple[float, int]]


@dataclass
class _Staff:
    """The processes, and what is noted of them."""

    mq: Connection
    notes: Path
    most: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lags: list[tuple[float, int]] = field(default_factory=list)

    def hire(self, name: str, static: bool = False) -> None:
        command = [sys.executable, "-m", "lakemq.jobs.demo.crew_member", "--path", str(self.mq.namespace.path)]
        command += ["--topic", TOPIC, "--name", name, "--notes", str(self.notes), "--most", str(self.most)]
        self.processes[name] = subprocess.Popen([*command, *(["--static"] if static else [])])

    def end(self, name: str, number: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(_PATIENCE_S)

    def owners(self) -> list[str]:
        """Of its partitions, where each is somebody's for good; else nothing."""
        found = self.mq.groups.assignments(GROUP)
        return [one.owner or "" for one in found] if all(one.state == "ready" for one in found) else []

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise CheckFailed(f"In {_PATIENCE_S} s it did not come to it that {what}.")
            if not all(process.poll() is None for process in self.processes.values()):
                raise CheckFailed("A member has ended by itself.")
            self.watch(0.05)

    def watch(self, seconds: float) -> None:
        """The lag, while time passes."""
        end_s = time.monotonic() + seconds
        while True:
            if known := self.mq.groups.lag(GROUP):
                self.lags.append((time.time(), sum(one.lag or 0 for one in known)))
            if time.monotonic() >= end_s:
                return
            time.sleep(0.1)

    @contextmanager
    def event(self, what: str, members: int) -> Iterator[None]:
        """It is over when so many members share all partitions, other ones than before."""
        before, began_s = self.owners(), time.time()
        yield
        self.until(
            lambda: (now := self.owners()) not in ([], before) and len(set(now)) == members,
            f"{members} members share the partitions",
        )
        self.events.append(Event(what, began_s, time.time()))
        self.watch(_QUIET_S)


def share(mq: Connection, folder: Path) -> Crew:
    """All flights, handled by processes that come and go. Raises CheckFailed."""
    total = sum(mq.end_offsets(TOPIC).values())
    notes = folder / "crew"
    notes.mkdir()
    mq.groups.create(GROUP, _CONFIG)
    staff = _Staff(mq, notes, max(1, int(total * WORK_S / (3 * _LASTS_S))))
    try:
        _come_and_go(staff)
        return Crew(*_read(notes), staff.events, staff.lags)
    finally:
        for process in staff.processes.values():
            process.kill()
            process.wait()
        for file in notes.iterdir():
            file.unlink()
        notes.rmdir()


def _come_and_go(staff: _Staff) -> None:
    with staff.event("Ann, Ben and Cem begin", members=3):
        for name in ("Ann", "Ben"):
            staff.hire(name)
        staff.hire("Cem", static=True)
    with staff.event("Dee joins", members=4):
        staff.hire("Dee")
    with staff.event("Ben is killed with kill -9", members=3):
        staff.end("Ben", signal.SIGKILL)
    with staff.event("Cem restarts, under his instance id", members=3):
        staff.end("Cem", signal.SIGTERM)
        staff.hire("Cem", static=True)
    with staff.event("Ann leaves", members=2):
        staff.end("Ann", signal.SIGTERM)
    (staff.notes / HURRY).touch()
    staff.until(lambda: staff.mq.groups.describe(GROUP).lag == 0, "all is done")
    for name in list(staff.processes):
        staff.end(name, signal.SIGTERM)
    staff.watch(0)


def _read(notes: Path) -> tuple[pa.Table, dict[str, str]]:
    """What the members have noted: a line that a kill has cut off was not acknowledged either."""
    names: dict[str, str] = {}
    columns: dict[str, list[Any]] = {name: [] for name in ("name", "time_s", "partition", "offset", "delivery_count")}
    for file in sorted(notes.glob("*.jsonl")):
        first, *lines = file.read_text().splitlines()
        me = json.loads(first)
        names[me["member_id"]] = me["name"]
        for line in lines:
            if not line.endswith("]"):
                continue
            time_s, *rows = json.loads(line)
            for name, values in zip(("partition", "offset", "delivery_count"), rows, strict=True):
                columns[name] += values
            columns["name"] += [me["name"]] * len(rows[0])
            columns["time_s"] += [time_s] * len(rows[0])
    order = [(name, "ascending") for name in ("time_s", "partition", "offset")]
    return pa.table(columns).sort_by(order), names


# -- what must hold ---------------------------------------------------------------------------------------


def check_crew(crew: Crew, ends: Mapping[int, int], owners: pa.Table) -> list[Checked]:
    """ends: partition -> its end offset; owners: partition, and since when it was what, as the history has it."""
    partitions, offsets, counts = (crew.handled.column(n).to_numpy() for n in ("partition", "offset", "delivery_count"))
    missing = sum(len(np.setdiff1d(np.arange(end), offsets[partitions == p])) for p, end in ends.items())
    again = int((counts > 1).sum())
    first = counts == 1
    twice = sum(int(first[partitions == p].sum()) - len(np.unique(offsets[(partitions == p) & first])) for p in ends)
    back = sum(_steps_back(offsets[partitions == p], counts[partitions == p]) for p in ends)
    still, moved = _standstills(crew, owners)
    told = ", ".join(f"{ms:,.0f} ms ({what})" for what, ms in still)
    return [
        check(
            "Whoever comes and goes, every flight is handled",
            missing == 0,
            f"{sum(ends.values()):,} flights, {missing} missing",
        ),
        check(
            "None is handled again but those that somebody had in hand",
            twice == 0,
            f"{again:,} redelivered, with a count, {twice} without",
        ),
        check("Who shares a topic keeps the order per key", back == 0, f"{back} messages before an earlier one"),
        check(
            "What did not change hands did not stand still",
            max(ms for _, ms in still) < moved / 2,
            f"at most {told}; where the owner was killed, {moved:,.0f} ms",
        ),
    ]


def _steps_back(offsets: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> int:
    """Messages of a partition that came after a later one, though they were not delivered again."""
    highest = np.maximum.accumulate(offsets)
    return int(((offsets < highest) & (counts == 1)).sum())


def _standstills(crew: Crew, owners: pa.Table) -> tuple[list[tuple[str, float]], float]:
    """Per event the longest time in which nothing came of a partition that stayed where it was; and in which nothing
    came of one whose owner was killed, in ms.
    """
    partitions, times = crew.handled.column("partition").to_numpy(), crew.handled.column("time_s").to_numpy()
    moves = [(row["partition"], row["since"].timestamp()) for row in owners.to_pylist()]
    still, killed_ms = [], 0.0
    for event in crew.events[1:]:
        moved = {p for p, since_s in moves if event.began_s <= since_s <= event.ended_s}
        gaps = {p: _longest_gap_ms(times[partitions == p], event) for p in set(partitions.tolist())}
        still.append((event.what, max((ms for p, ms in gaps.items() if p not in moved), default=0.0)))
        if "killed" in event.what:
            killed_ms = max((ms for p, ms in gaps.items() if p in moved), default=0.0)
    return still, killed_ms


def _longest_gap_ms(times: Sequence[float], event: Event) -> float:
    """Until all of it was handled."""
    within = sorted({t for t in times if event.began_s <= t <= event.ended_s})
    end_s = max(event.began_s, min(event.ended_s, max(times)))
    return 1000 * max(after - before for before, after in pairwise(chain([event.began_s], within, [end_s])))
