"""A namespace with a running sequencer for tests of clients, and functions that read its content."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from clocks import HastyClock
from typer.testing import CliRunner, Result

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.clock import Clock
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.protocol.values.offsets import FetchOffsets
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.jobs.cli import app
from lakemq.testing import QUICK_SETTINGS, serve, wait_until

CONFIG = {
    **QUICK_SETTINGS,
    "project.interval.ms": 3000,
    "inline.max.bytes": 2000,
    "retention.check.interval.ms": 300_000,
}
_numbers = itertools.count(1)

RENEWAL_MS = 4_000
"""More than a third of the lease, and less than the time after which a leader looks before its put."""

Lakemq = Callable[..., Result]
"""The command on a namespace: the fixture `lake`."""


def served(folder: Path, clock: Clock | None = None, **settings: Any) -> AbstractContextManager[Connection]:
    """Serve a namespace. clock: that of its leader and of the connection, if it is not the machine's."""
    return serve(folder / "mq", clock, {**CONFIG, **settings})


def new_name(prefix: str) -> str:
    return f"{prefix}{next(_numbers)}"


def new_topic(mq: Connection, partitions: int = 1) -> str:
    name = new_name("t")
    mq.topics.create(name, partitions)
    return name


def create_quick_topic(mq: Connection, **config: Any) -> str:
    """Create a topic whose delayed messages wait in short slots."""
    name = new_topic(mq)
    mq.topics.alter(name, {"delay.slot.ms": 50, **config})
    return name


def send(mq: Connection, topic: str, *values: str, partition: int | None = None) -> None:
    """Publish messages with these values."""
    rows: dict[str, list[Any]] = {"value": list(values)}
    if partition is not None:
        rows["partition"] = [partition] * len(values)
    mq.publish(topic, pa.table(rows))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for_messages(mq: Connection, topic: str, count: int) -> int:
    """Wait until the topic has this many messages, and return the time."""
    until(lambda: len(values(mq, topic)) >= count)
    return now_ms()


def run_sql(mq: Connection, query: str) -> list[tuple[Any, ...]]:
    return list(run_query(mq.namespace, query)[1])


def wait_for_files(mq: Connection) -> None:
    """Wait until the tables hold all decisions made so far, and no row rides in the journal."""
    step = mq.state().step
    until(lambda: read_watermark(mq.namespace.store).step >= step)


def values(mq: Connection, topic: str, isolation: Any = "read_committed") -> list[str]:
    """Return the values of the topic by partition and offset."""
    return [value.decode() for value in mq.fetch(topic, isolation=isolation).to_arrow()["value"].to_pylist()]


def everything(mq: Connection, topic: str) -> list[str]:
    """Return all values of the topic, also those that are open or aborted."""
    return values(mq, topic, "read_uncommitted")


def read_committed_offset(mq: Connection, group: str, topic: str) -> int | None:
    """Return the offset that the group has committed for partition 0."""
    fetched = mq.requester.ask(FetchOffsets(group, [(topic, 0)]))
    return fetched.offsets[0].offset if fetched.offsets else None  # type: ignore[union-attr]


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    wait_until(condition, "what the test waits for", 200)


def run_lakemq(path: str, *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
    """Run the command on the namespace. It must end with the exit code `code`."""
    result = CliRunner().invoke(app, ["--path", path, *arguments], input=stdin)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def read_objects(path: str, *arguments: str) -> list[dict[str, Any]]:
    """Run the command, and return the objects that it prints."""
    lines = run_lakemq(path, "--output", "json", *arguments).stdout.split("\n")
    return [json.loads(line) for line in lines if line]


def run_in_thread(call: Callable[[], Any]) -> Any:
    """Make the call in another thread, and return its result or raise its error within half a minute."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(30)


def has_line(mq: Connection) -> bool:
    """Return whether the last request of the connection went on a line."""
    assert mq.requester._line is not None
    return mq.requester._line._connection is not None


def find_lines(sequencer: Sequencer) -> LineServer:
    """Return the lines of a sequencer that leads."""
    assert sequencer._term is not None
    assert sequencer._term.lines is not None
    return sequencer._term.lines


class IdleLeader:
    """A leader that takes a step when it is told to. All that it has decided is projected."""

    def __init__(self, mq: Connection) -> None:
        self.mq, self.clock, self.files = mq, HastyClock(), mq.namespace.files
        self.sequencer = Sequencer(mq.namespace, "leader", self.clock, itertools.count(1).__next__)
        assert self.sequencer.try_lead()
        assert self.sequencer._term is not None
        self.background = self.sequencer._term.background
        self.background.drain(self.sequencer.state)

    def renew(self, after_ms: int = RENEWAL_MS) -> None:
        self.clock.ahead_ms += after_ms
        self.sequencer.step()

    def wait_for_pass(self) -> None:
        until(lambda: self.background._running is None or self.background._running.done())


@contextmanager
def run_leader(mq: Connection) -> Iterator[Sequencer]:
    """Run a leader that takes steps, and dies without a handover at the end of the block."""
    sequencer, stop = mq.sequencer(), threading.Event()
    until(sequencer.try_lead)

    def run() -> None:
        while not stop.wait(0.001):
            sequencer.step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sequencer
    finally:
        stop.set()
        thread.join()
