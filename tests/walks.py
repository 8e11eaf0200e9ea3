"""Count how many files of the product a call walks through. `make walks` prints the table.

    python tests/walks.py                # calls, files and changes of file of each walk
    python tests/walks.py --show publish # how often the walk enters each file, in each thread

A walk is one call of a user with everything that it sets off in the client's threads. The sequencer runs in a process
of its own, so its work is not counted. Each walk is warm: routes, plans and lines exist. It is repeated, and the
shortest repetition counts, because heartbeats and renewed leases may fall into any of them.

A walk that enters few files, and stays in each for a while, is one that a reader can follow.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa
from bench.serving import run_sequencer

import lakemq
from lakemq.engine.client import connection
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import QueueBatch

PACKAGE = Path(connection.__file__).parents[2]
FOLDERS = ("engine", "tables", "jobs", "conf")
CONFIG = {"project.interval.ms": 60_000, "inline.max.bytes": 100_000}
REPETITIONS = 15
SETTLE_S = 0.05
"""Time after a call in which other threads of the client finish what it set off."""


@dataclass(frozen=True)
class Walk:
    """The files that a call enters, per thread in the order of the calls."""

    files_by_thread: dict[str, list[str]]

    @property
    def calls(self) -> int:
        return sum(map(len, self.files_by_thread.values()))

    @property
    def files(self) -> set[str]:
        return {file for files in self.files_by_thread.values() for file in files}

    @property
    def client_files(self) -> set[str]:
        """Return the files of the client. The others fold steps into the state, and read and send them."""
        return {file for file in self.files if file.startswith("engine/client/")}

    @property
    def changes(self) -> int:
        """Return how often a thread calls into another file than that of its call before."""
        return sum(len(entries) for entries in self.entries().values())

    def entries(self) -> dict[str, list[str]]:
        """Return the files of each thread, without repetitions of the file before."""
        return {
            thread: [file for before, file in zip([None, *files], files, strict=False) if file != before]
            for thread, files in self.files_by_thread.items()
        }


class Tracer:
    """Notes calls of the product's functions in all threads that start after it was installed."""

    def __init__(self) -> None:
        self._files: dict[str, str | None] = {}
        self._calls: dict[str, list[str]] = defaultdict(list)
        self._is_on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_on:
            return
        path = frame.f_code.co_filename
        if path not in self._files:
            self._files[path] = name_product_file(path)
        file = self._files[path]
        if file is not None:
            self._calls[threading.current_thread().name].append(file)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and those that start in the block."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def trace(self, call: Callable[[], object]) -> Walk:
        """Run the call, wait for what it set off in other threads, and return its walk."""
        self._calls.clear()
        self._is_on = True
        call()
        time.sleep(SETTLE_S)
        self._is_on = False
        return Walk(dict(self._calls))


def name_product_file(path: str) -> str | None:
    """Return the file's path in the package; None: the file does not belong to the product."""
    file = Path(path)
    if not file.is_relative_to(PACKAGE):
        return None
    name = file.relative_to(PACKAGE)
    return str(name) if name.parts[0] in FOLDERS else None


# -- the walks ------------------------------------------------------------------------------------------


class Repetition(NamedTuple):
    """A call to trace, and what must happen before it can be repeated."""

    call: Callable[[], object]
    finish: Callable[[], object] = lambda: None


@contextmanager
def publish(mq: Connection) -> Iterator[Repetition]:
    """Send one record with a producer, and flush."""
    mq.topics.create("published", partitions=4)
    with mq.producer() as producer:

        def send_and_flush() -> None:
            producer.send("published", b"value", key=b"key")
            producer.flush()

        yield Repetition(send_and_flush)


@contextmanager
def fetch(mq: Connection) -> Iterator[Repetition]:
    """Fetch a topic with messages in data files and newer ones that are only in steps."""
    mq.topics.create("fetched", partitions=4)
    mq.publish("fetched", pa.table({"value": [bytes(1000)] * 200}))
    mq.publish("fetched", pa.table({"value": ["few"] * 5}))

    def fetch_all() -> None:
        assert mq.fetch("fetched").to_arrow().num_rows == 205

    yield Repetition(fetch_all)


@contextmanager
def poll_queue(mq: Connection) -> Iterator[Repetition]:
    """Poll as a member of a queue group whose messages have been acquired by the poll before."""
    mq.topics.create("queue", partitions=1)
    mq.publish("queue", pa.table({"value": [str(number) for number in range(1000)]}))
    with mq.consumer("workers", topics=["queue"], protocol="queue") as consumer:
        batches: list[QueueBatch] = []

        def poll() -> None:
            batches.append(consumer.poll(max_records=5))

        def accept() -> None:
            consumer.ack(batches.pop())
            consumer.flush()  # so that each poll reads the step with its acknowledgements

        batches.append(consumer.poll(max_records=5, timeout_ms=10_000))
        accept()
        yield Repetition(poll, accept)


WALKS: dict[str, Callable[[Connection], AbstractContextManager[Repetition]]] = {
    "queue poll": poll_queue,
    "publish": publish,
    "fetch": fetch,
}


def trace_walks() -> dict[str, Walk]:
    """Return the shortest of a few repetitions of each walk."""
    with tempfile.TemporaryDirectory(prefix="lakemq-walks-") as folder, run_sequencer(folder, CONFIG):
        tracer = Tracer()
        with tracer.installed(), lakemq.connect(folder) as mq:
            return {name: trace_shortest(tracer, prepare(mq)) for name, prepare in WALKS.items()}


def trace_shortest(tracer: Tracer, prepared: AbstractContextManager[Repetition]) -> Walk:
    """Repeat the call, and return its shortest walk."""
    with prepared as repetition:
        walks = []
        for _ in range(REPETITIONS):
            walks.append(tracer.trace(repetition.call))
            repetition.finish()
    return min(walks, key=lambda walk: walk.calls)


# -- printing -------------------------------------------------------------------------------------------


def print_table(walks: Mapping[str, Walk]) -> None:
    print(f"{'walk':12}{'calls':>7}{'files':>7}{'of the client':>15}{'changes of file':>17}")
    for name, walk in walks.items():
        print(f"{name:12}{walk.calls:7}{len(walk.files):7}{len(walk.client_files):15}{walk.changes:17}")


def print_entries(walk: Walk) -> None:
    for thread, files in walk.entries().items():
        print(f"\n{thread}: {len(files)} changes of file")
        for file, count in Counter(files).most_common():
            print(f"{count:5}  {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how many files of the product a call walks through.")
    parser.add_argument("--show", choices=WALKS, help="how often this walk enters each file, in each thread")
    arguments = parser.parse_args()
    walks = trace_walks()
    print_table(walks)
    if arguments.show is not None:
        print_entries(walks[arguments.show])


if __name__ == "__main__":
    main()
