"""Processes of a test that are started, stopped and killed, and publishers in threads."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

from faults.forks import Fork
from faults.messages import Acknowledged, value_of

import lakemq
from lakemq.engine.namespace import crash

Child: TypeAlias = "subprocess.Popen[str] | Fork"
TOPIC = "t"
PARTITIONS = 2
PATIENCE_S = 200
"""The limit of every wait. What is waited for takes seconds on an idle machine."""

FINAL_MS = int(os.environ.get("LAKEMQ_FINAL_MS", "200"))
"""Time between two looks for final messages. With the default of 60,000 most tests end before the first one."""

QUICK: dict[str, Any] = {
    "lease.ms": 500,
    "engine.tick.ms": 1,
    "project.interval.ms": 20,
    "checkpoint.interval": 5,
    "compact.min.files": 4,
    "reader.grace.ms": 5000,
    "merge.grace.ms": 2000,
    "request.timeout.ms": 1000,
    "final.interval.ms": FINAL_MS,
}
"""Settings that do within a second what otherwise takes hours."""


MERGING_POINTS = (
    "housekeeping.merged_data_written",
    "housekeeping.merged_registered",
    "housekeeping.segments_swapped",
    "housekeeping.old_removed",
    "housekeeping.old_deleted",
)


def settings_that_reach(point: str) -> dict[str, Any]:
    """Return settings with which a sequencer reaches a crash point."""
    if point.startswith(MERGING_POINTS):
        return {"merge.grace.ms": 100}
    if point.startswith(("finalizing.", "projector.final")):
        return {"final.interval.ms": 100, "merge.grace.ms": 100}
    return {"journal.rows.max.bytes": 0} if point.startswith("sequencer.rows_written") else {}


def start(
    role: str, log: IO[str], crash_at: str | None = None, environ: Mapping[str, str] | None = None, **arguments: Any
) -> Child:
    """Start a child process. Its stderr goes to `log`. environ: added to the environment.

    A library that is to be preloaded needs a new program. Other children are forks of one that has started.
    """
    variables = {**{k: v for k, v in os.environ.items() if k != crash.VARIABLE}, **(environ or {})}
    if crash_at:
        variables[crash.VARIABLE] = crash_at
    if "LD_PRELOAD" not in variables:
        return Fork(role, arguments, variables, log.name)
    command = [sys.executable, "-m", "faults.child", role, json.dumps(arguments)]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True)


class Processes:
    """The children of a test, on one namespace. None of them outlives the test."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.path = str(folder / "namespace")
        self._log = (folder / "children.log").open("a")
        self._children: list[Child] = []

    def serve(
        self,
        crash_at: str | None = None,
        stop_at: str | None = None,
        environ: Mapping[str, str] | None = None,
        packs: bool = False,
        recurs_ms: int | None = None,
        **config: Any,
    ) -> Child:
        """Start a sequencer, and wait until it is at work.

        packs: it packs delays that are due within a second. recurs_ms: schedules publish at multiples of this.
        """
        arguments = {"stop_at": stop_at, "packs": packs, "recurs_ms": recurs_ms}
        return self._start("serve", crash_at, config, environ, **arguments)

    def publish(
        self, publisher: str, count: int, by: str = "producer", crash_at: str | None = None, **config: Any
    ) -> Child:
        """Start a publisher, and wait until it is at work. `read_acknowledgements` reads its notes."""
        notes = str(self._notes(publisher))
        arguments = {"topic": TOPIC, "publisher": publisher, "count": count, "acknowledged": notes, "by": by}
        return self._start("publish", crash_at, config, **arguments)

    def read_acknowledgements(self, publisher: str) -> list[Acknowledged]:
        """Return the messages whose acknowledgement the publisher has noted by now."""
        notes = self._notes(publisher)
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [Acknowledged(*json.loads(line)) for line in lines]

    def transact(
        self,
        transactional_id: str,
        count: int,
        timeout_ms: int = 60_000,
        crash_at: str | None = None,
        stop_at: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Child:
        """Start a transactional producer, and wait until it is at work. `outcomes` reads its notes."""
        notes = str(self._notes(transactional_id))
        arguments = {"topic": TOPIC, "transactional_id": transactional_id, "count": count, "timeout_ms": timeout_ms}
        return self._start("transact", crash_at, settings or {}, **arguments, outcomes_file=notes, stop_at=stop_at)

    def outcomes(self, transactional_id: str) -> list[tuple[int, str]]:
        """Return for each transaction its number, and `committed` or the name of an error."""
        return [tuple(json.loads(line)) for line in _read_whole_lines(self._notes(transactional_id))]

    def consume(self, name: str, group: str, session_ms: int = 6_000, role: str = "consume") -> Child:
        """Start a member of a group, or of a queue with the role `drain`. `read_notes_of` reads its notes."""
        arguments = {"topic": TOPIC, "group": group, "session_ms": session_ms}
        return self._start(role, None, {}, **arguments, notes=str(self._notes(name)))

    def read_notes_of(self, name: str) -> list[tuple[str, list[list[Any]]]]:
        """Return the lines that a member has noted by now: a word, and its details."""
        notes = self._notes(name)
        return [tuple(json.loads(line)) for line in (_read_whole_lines(notes) if notes.exists() else [])]

    def read_log(self) -> str:
        """Return all that the children have logged."""
        return (self.folder / "children.log").read_text()

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait(PATIENCE_S)
            if child.stdout:
                child.stdout.close()
        self._log.close()

    def _start(
        self,
        role: str,
        crash_at: str | None,
        config: dict[str, Any],
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        settings = {**self.config, **config}
        child = start(role, self._log, crash_at, environ, path=self.path, config=settings, **arguments)
        self._children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", self.read_log()
        return child

    def _notes(self, publisher: str) -> Path:
        return self.folder / f"{publisher}.acknowledged"


class MemberNotes:
    """The notes of the members of a group."""

    def __init__(self, family: Processes, *names: str) -> None:
        self.family, self.names = family, names

    def read(self, word: str, name: str) -> list[Any]:
        """Return all places of the lines of a member with this word."""
        return [tuple(place) for kind, places in self.family.read_notes_of(name) if kind == word for place in places]

    def count(self, word: str) -> Counter[Any]:
        return Counter(place for name in self.names for place in self.read(word, name))

    def partitions(self, word: str, name: str, since: int) -> set[int]:
        """Return the partitions of the messages that a member has got after the first `since`."""
        return {partition for partition, *_ in self.read(word, name)[since:]}


@contextmanager
def processes(folder: Path, template: Path, config: dict[str, Any]) -> Iterator[Processes]:
    """Run children on a copy of a namespace."""
    shutil.copytree(template, folder / "namespace")
    family = Processes(folder, config)
    try:
        yield family
    finally:
        family.close()


def make_template(folder: Path) -> Path:
    """Make a namespace with an empty topic. Tests copy it, because making one takes longer."""
    path = folder / "template"
    with lakemq.connect(str(path), create=True) as mq:
        mq.serving()
        mq.topics.create(TOPIC, partitions=PARTITIONS)
    return path


class Publishing:
    """A thread that publishes one message after the other; a context manager.

    idempotent: it repeats requests without an answer. Otherwise it puts each letter once and waits, so each letter must
    be decided once and answered in the end. by_mailbox: its letters are files, like those of a client on another
    machine. Otherwise they go on a line.
    """

    def __init__(
        self, path: str, publisher: str, config: dict[str, Any], idempotent: bool = True, by_mailbox: bool = False
    ) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._arguments = (path, publisher, config if idempotent else {**config, "request.timeout.ms": 60_000})
        self._idempotent, self._by_mailbox = idempotent, by_mailbox
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=publisher, daemon=True)

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join(1 if kind else PATIENCE_S)
        if kind:
            return  # the failure of the test matters more
        assert not self._thread.is_alive(), "the publisher waits for an answer that never comes"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        path, publisher, config = self._arguments
        try:
            with (
                lakemq.connect(path, config=config) as mq,
                mq.producer(linger_ms=0, idempotent=self._idempotent) as producer,
            ):
                if self._by_mailbox:
                    mq.requester._line = None
                number = 0
                while not self._stop.is_set():
                    value = value_of(publisher, number)
                    producer.send(TOPIC, value, key=value)
                    (((_, partition), (offset, _)),) = producer.flush().offsets().items()
                    self.acknowledged.append(Acknowledged(value, partition, offset))
                    number += 1
        except BaseException as error:
            self._error = error

    def wait_for(self, more: int) -> None:
        """Wait until so many more are acknowledged."""
        expected = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= expected or self._error is not None, "acknowledgements")


def _read_whole_lines(path: Path) -> list[str]:
    """Return the lines of a file. One that a process is just writing is left out."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def until(condition: Callable[[], bool], event: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something to happen."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s} s: {event}"
        time.sleep(0.02)  # a condition may read much, and other processes need the machine, too


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def assert_killed(child: Child) -> None:
    """Check that the process has killed itself with SIGKILL at its crash point."""
    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def terminate(child: Child) -> None:
    """Send SIGTERM, and check that the process ends without an error."""
    child.terminate()
    assert child.wait(PATIENCE_S) == 0


def kill_one(children: list[Child], chance: random.Random) -> None:
    """Kill one of the children with SIGKILL, and remove it from the list."""
    child = children.pop(chance.randrange(len(children)))
    child.kill()
    child.wait(PATIENCE_S)
