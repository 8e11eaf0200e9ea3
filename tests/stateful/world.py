"""The world: a namespace in a folder, its sequencers, and time, all in the hands of the test; beside it its model."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from clocks import ManualClock
from protocol_harness import letter_bytes
from stateful.model import Model
from stateful.side_by_side import ISOLATIONS, Shown, SideBySide

from lakemq.engine.client.fetch.arrow import fetch_arrow
from lakemq.engine.client.fetch.plan import Isolation, beginning_offsets, end_offsets, plan_fetch
from lakemq.engine.client.fetch.reader import Reader
from lakemq.engine.namespace.clock import Clock
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.data_file import write_data_file
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.step_reader import StepReader, follow_from_watermark
from lakemq.engine.protocol.codec.journal import decode_steps
from lakemq.engine.protocol.codec.letter import decode_answer
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import DataFile
from lakemq.engine.protocol.values.topics import Topic
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.storage.files import LocalFiles
from lakemq.tables.storage.mailbox import Mailbox
from lakemq.tables.storage.step_objects import StepsGone
from lakemq.tables.storage.store import Store

LEASE_MS = 900
EXPIRATION_MS = 60_000
EXPIRY_INTERVAL_MS = 10_000
GAP_MS = 200
GRACE_MS = 400

CONFIG = {
    "lease.ms": LEASE_MS,
    "client.expiration.ms": EXPIRATION_MS,
    "producer.id.expiration.ms": EXPIRATION_MS,
    "request.gap.ms": GAP_MS,
    "project.interval.ms": 0,
    "journal.retention.ms": 0,
    "reader.grace.ms": 1000,
    "merge.grace.ms": GRACE_MS,
    "retention.check.interval.ms": 86_400_000,  # messages bear times of long ago
    "checkpoint.interval": 5,
    "compact.min.files": 2,
    "journal.rows.max.bytes": 400,
}


class TimedFiles(LocalFiles):
    """A store whose time the test owns as well: an object was written when it was first looked at."""

    def __init__(self, root: str, clock: ManualClock) -> None:
        super().__init__(root)
        self._clock, self._seen = clock, dict[str, int]()

    def time_ms(self) -> int:
        return self._clock.now_ms()

    def modified_ms(self, name: str) -> int | None:
        found = super().modified_ms(name)
        return None if found is None else self._seen.setdefault(name, self.time_ms())


class Killed(BaseException):
    """The process is gone."""


class LaterFuture(Future[Any]):
    """Done when somebody runs it, at the latest who waits for it; not any more when its process is gone."""

    def __init__(self, work: Callable[[], Any], background: Background) -> None:
        super().__init__()
        self._work, self._background = work, background

    def run(self) -> None:
        if not self.done():
            try:
                if not self._background.alive:
                    raise Killed
                self.set_result(self._work())
            except BaseException as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class Background(Executor):
    """A background thread that the test owns: work waits until it says so."""

    def __init__(self) -> None:
        self.alive = True
        self.waiting: deque[LaterFuture] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LaterFuture:
        future = LaterFuture(lambda: fn(*args, **kwargs), self)
        self.waiting.append(future)
        return future

    def run(self) -> None:
        while self.waiting:
            self.waiting.popleft().run()


def _new_folder() -> str:
    """On a memory disk where there is one."""
    return tempfile.mkdtemp(prefix="lakemq-stateful-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


@cache
def _template() -> str:
    """An empty namespace, made once by each process: a copy of it takes a fiftieth of the time."""
    folder = _new_folder()
    atexit.register(shutil.rmtree, folder)
    open_namespace(folder, EngineConfig(CONFIG), create=True)
    return folder


class World(SideBySide):
    """A namespace in a folder of its own; `close` removes it."""

    def __init__(self) -> None:
        super().__init__(Model())
        self.folder = _new_folder()
        self.clock = ManualClock()
        shutil.copytree(_template(), self.folder, dirs_exist_ok=True)
        namespace = open_namespace(self.folder, EngineConfig(CONFIG))
        files = TimedFiles(self.folder, self.clock)
        self.namespace = replace(namespace, files=files, store=Store(files), mailbox=Mailbox(files))
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self.reader = Reader(self.namespace.store, self.clock)
        self.history: list[Step] = []
        self._steps = StepReader(files, 0, self.clock.steady_ms)
        self.doomed = ""
        """The point at which the next sequencer to arrive is killed."""
        self.meanwhile: tuple[str, Callable[[], None]] | None = None
        """Where the next sequencer to arrive is stopped, and what happens until it goes on."""

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def reconfigure(self, settings: dict[str, Any]) -> None:
        """For sequencers made from now on."""
        self.namespace = replace(self.namespace, config=EngineConfig({**CONFIG, **settings}))

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"

    def new_file_id(self) -> int:
        return next(self._ids)

    def sequencer(self, clock: Clock | None = None) -> tuple[Sequencer, Background]:
        """clock: of its process, if it is not the world's."""
        background = Background()

        def reached(point: str) -> None:
            if point == self.doomed:
                self.doomed, background.alive = "", False
            if not background.alive:
                raise Killed
            if self.meanwhile is not None and self.meanwhile[0] == point:
                (_, happen), self.meanwhile = self.meanwhile, None
                happen()

        name = f"sequencer-{next(self._names)}"
        namespace = replace(self.namespace, mailbox=Mailbox(self.namespace.files))
        return Sequencer(namespace, name, clock or self.clock, self.new_file_id, reached, background), background

    def lead(self, sequencer: Sequencer) -> None:
        """It leads, when the lease of whoever led before has run out."""
        if not sequencer.try_lead():
            self.clock.sleep(LEASE_MS + 1)
            assert sequencer.try_lead()
        self.remember_steps()

    def remember_steps(self) -> None:
        """Keep the new steps: they are removed once they are projected, and leave the journal when they are old."""
        last, store = self.history[-1].step if self.history else 0, self.namespace.store
        try:
            self.history += self._steps.read()
        except StepsGone:
            watermark, self._steps = follow_from_watermark(store, self.clock.steady_ms)
            self.history += decode_steps(store.open(JOURNAL).read(step=(last + 1, watermark.step)))
            self.history += self._steps.read()
        assert [step.step for step in self.history[last:]] == list(range(last + 1, self.history[-1].step + 1))

    # -- a client ---------------------------------------------------------------------------------------

    def body(self, values: list[str]) -> pa.Table:
        columns = {
            "topic": ["anything"] * len(values),
            "partition": [0] * len(values),
            "value": [value.encode() for value in values],
            "timestamp": [1_000_000 * (i + 1) for i in range(len(values))],
        }
        return pa.table(
            [pa.array(columns.get(f.name, [None] * len(values)), f.type) for f in BODY_SCHEMA], schema=BODY_SCHEMA
        )

    def write_file(self, values: list[str]) -> DataFile:
        return DataFile(*write_data_file(self.namespace.files, self.new_file_id(), self.body(values)))

    def put(self, client_id: str, number: int, requests: list[AnyRequest], inline: list[str]) -> None:
        rows = self.body(inline) if inline else None
        letter = Letter(client_id, number, requests, self.clock.now_ms())
        self.namespace.mailbox.put(client_id, number, letter_bytes(letter, rows), self.clock.now_ms())

    def take_reply(self, client_id: str, number: int) -> list[Any] | None:
        """The results of a letter, None where there is no reply; a reply is taken once."""
        body = self.namespace.mailbox.poll_reply(client_id, number)
        if body is None:
            return None
        self.namespace.mailbox.forget_reply(client_id, number)
        answer = decode_answer(body)
        assert (answer.client_id, answer.number) == (client_id, number)
        return answer.results

    # -- a consumer -------------------------------------------------------------------------------------

    def logs(self, reader: Reader, topic: Topic, isolation: Isolation = "read_committed") -> Shown:
        """Partition -> (offset, value) of all that can be read."""
        found: Shown = {p: [] for p in range(topic.log_count)}
        plan = plan_fetch(reader, topic, isolation, beginning_offsets(topic), end_offsets(topic, isolation))
        for row in fetch_arrow(self.namespace.files, plan).to_pylist():
            found[row["partition"]].append((row["offset"], row["value"].decode()))
        return found

    def check_reader(self, reader: Reader, isolations: Sequence[Isolation] = ISOLATIONS) -> None:
        """It sees what the model says, once it has looked."""
        state = reader.refresh()
        self.check_shown(state, lambda topic, isolation: self.logs(reader, topic, isolation), isolations)

    def new_reader(self) -> Reader:
        """Who just came."""
        return Reader(self.namespace.store, self.clock)
