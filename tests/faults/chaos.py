"""The chaos run: sequencers, producers, a pipeline of transactions, members of a classic group and a tail are stopped
and killed, and the invariants are checked.

The schedule of faults follows from the seed. The effects also depend on the machine.
"""

import heapq
import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import chaos_checks
from faults.chaos_children import FENCED, INPUT, OUTPUT, PARTITIONS, read_notes
from faults.chaos_schedule import LEASE_MS, MEMBERS, PIPELINE, PRODUCERS, SEQUENCERS, TAIL, Fault, schedule
from faults.processes import FINAL_MS, Child, start

import lakemq

PATIENCE_S = 180
"""Limit of waits that take a second or two on an idle machine."""

CONFIG: dict[str, Any] = {
    "lease.ms": LEASE_MS,
    "engine.tick.ms": 5,
    "project.interval.ms": 50,
    "final.interval.ms": FINAL_MS,
    "merge.grace.ms": 1000,
    "checkpoint.interval": 10,
    "compact.min.files": 8,
    "reader.grace.ms": 10_000,
    # less than a lease, so that clients repeat requests that were decided before
    "request.timeout.ms": 1500,
    "request.gap.ms": 2000,
    # longer than any run, so that the tables can be compared with a replay of every step
    "journal.retention.ms": 30 * 86_400_000,
}

ROLES = {
    **dict.fromkeys(SEQUENCERS, "serve"),
    **dict.fromkeys(PRODUCERS, "produce"),
    PIPELINE: "pipe",
    **dict.fromkeys(MEMBERS, "share"),
    TAIL: "watch",
}


@dataclass
class Figures:
    """Counts of faults, messages and transactions so far."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    committed: int = 0
    aborted: int = 0
    fenced: int = 0
    shared: int = 0
    steps: int = 0
    takeovers: int = 0
    files: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.acknowledged} acknowledged, {self.steps} steps, {self.takeovers} takeovers, "
            f"{self.faults['kill']} kills, {self.faults['stop']} stops, {self.faults['replace']} replaced, "
            f"{self.committed} transactions committed, {self.aborted} aborted, {self.fenced} fenced, "
            f"{self.shared} shared batches committed, {self.files} files, {self.bytes >> 20} MiB"
        )


class Chaos:
    """A run in an empty folder. `run` raises AssertionError if an invariant is broken."""

    def __init__(self, folder: Path, seed: int, lasts_s: float) -> None:
        self.folder, self.seed, self._lasts_s = folder, seed, lasts_s
        self.path = str(folder / "namespace")
        self._log = (folder / "children.log").open("a")
        self._incarnations: Counter[str] = Counter()
        self._current: dict[str, Child] = {}
        self._replaced: list[Child] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._figures = Figures(seed)

    def run(self, report: Callable[[Figures], None] = lambda figures: None, every_s: float = 60) -> Figures:
        """Do the whole run. report: called with the figures now and then."""
        try:
            self._begin()
            self._go_through(schedule(self.seed, int(self._lasts_s * 1000)), report, every_s)
            self._settle()
            self._end()
            chaos_checks.check(self.path, self.folder)
            return self.figures()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}, in {self.folder}: {error}\n{self.read_log()}") from error
        finally:
            self._kill_all()

    def read_log(self) -> str:
        """Return the end of the processes' log."""
        return (self.folder / "children.log").read_text()[-4000:]

    def figures(self) -> Figures:
        """Count faults, messages and transactions so far."""
        figures, notes = self._figures, [read_notes(self.folder / f"{name}.notes") for name in PRODUCERS]
        figures.acknowledged = sum(len(note[1]) for lines in notes for note in lines if note[0] == "acknowledged")
        ends = Counter(note[0] for note in read_notes(self.folder / f"{PIPELINE}.notes"))
        figures.committed, figures.aborted, figures.fenced = ends["committed"], ends["aborts"], ends["fenced"]
        members = [note[0] for name in MEMBERS for note in read_notes(self.folder / f"{name}.notes")]
        figures.shared = members.count("committed")
        with lakemq.connect(self.path) as mq:
            state = mq.state()
        figures.steps, figures.takeovers = state.step, state.leader_epoch
        sizes = [_size(Path(folder, name)) for folder, _, names in os.walk(self.path) for name in names]
        figures.files, figures.bytes = len(sizes), sum(sizes)
        return figures

    # -- processes --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with lakemq.connect(self.path, create=True) as mq, mq.serving():
            for topic in (INPUT, OUTPUT):
                mq.topics.create(topic, partitions=PARTITIONS)
        for name in ROLES:
            self._start(name)
        for child in self._current.values():
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", "a process did not start"

    def _start(self, name: str) -> None:
        role, arguments = ROLES[name], {"path": self.path, "config": CONFIG}
        if role != "serve":
            own = {"folder": str(self.folder), "name": name, "incarnation": self._incarnations[name], "seed": self.seed}
            arguments |= own
        self._incarnations[name] += 1
        self._current[name] = start(role, self._log, **arguments)

    def _look_after(self) -> None:
        """Check that no process ends by itself. A pipeline may if another one took its id. Then start the next one."""
        for name, child in list(self._current.items()):
            code = child.poll()
            if name == PIPELINE and code == FENCED:
                self._start(name)
            else:
                assert code is None, f"{name} has ended with {code}"
        for child in self._replaced:
            assert child.poll() in (None, 0, FENCED), f"a replaced pipeline has ended with {child.returncode}"

    def _kill_all(self) -> None:
        for child in (*self._current.values(), *self._replaced):
            if child.poll() is None:
                child.kill()
            child.wait(PATIENCE_S)
            if child.stdout:
                child.stdout.close()
        self._log.close()

    # -- faults -----------------------------------------------------------------------------------------

    def _go_through(self, faults: Iterable[Fault], report: Callable[[Figures], None], every_s: float) -> None:
        start_s = time.monotonic()
        for fault in faults:
            self._plan(start_s + fault.at_ms / 1000, lambda fault=fault: self._befall(fault))  # type: ignore[misc]
        report_at_s = start_s + every_s
        while self._agenda or time.monotonic() < start_s + self._lasts_s:
            while self._agenda and self._agenda[0][0] <= time.monotonic():
                heapq.heappop(self._agenda)[2]()
            self._look_after()
            if time.monotonic() >= report_at_s:
                report_at_s += every_s
                report(self.figures())
            time.sleep(0.01)

    def _plan(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), act))

    def _befall(self, fault: Fault) -> None:
        child, over_s = self._current.get(fault.target), time.monotonic() + fault.for_ms / 1000
        if child is None:  # the process has not started again yet
            return
        self._figures.faults[fault.kind] += 1
        if fault.kind == "kill":
            child.kill()
            child.wait(PATIENCE_S)
            _close(child)
            del self._current[fault.target]
            self._plan(over_s, lambda: self._start(fault.target))
            return
        os.kill(child.pid, signal.SIGSTOP)
        if fault.kind == "replace":
            self._replaced.append(child)
            self._start(fault.target)
        self._plan(over_s, lambda: _go_on(child))

    # -- the end ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let all processes finish in time: those that send, then those that copy or read, then those that watch."""
        with lakemq.connect(self.path, config={"request.timeout.ms": PATIENCE_S * 1000}) as mq:
            mq.topics.create("settled")  # its answer comes after all letters of dead processes
        for names in (PRODUCERS, (PIPELINE,), MEMBERS, (TAIL,)):
            for name in names:
                (self.folder / f"{name}.end").touch()
            for name in names:
                self._await(name)
        for child in self._replaced:
            assert _wait_for_exit(child) in (0, FENCED), "a replaced pipeline goes on"

    def _await(self, name: str) -> None:
        while (code := _wait_for_exit(self._current[name])) == FENCED and name == PIPELINE:
            self._start(name)
        assert code == 0, f"{name} has ended with {code}"

    def _end(self) -> None:
        for name in SEQUENCERS:
            self._current[name].terminate()
        for name in SEQUENCERS:
            self._await(name)


def _go_on(child: Child) -> None:
    if child.poll() is None:
        os.kill(child.pid, signal.SIGCONT)


def _close(child: Child) -> None:
    if child.stdout:
        child.stdout.close()


def _wait_for_exit(child: Child) -> int:
    try:
        return child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{child.args[2]} has not ended within {PATIENCE_S} s") from None


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it is removed by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
