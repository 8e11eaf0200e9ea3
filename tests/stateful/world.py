"""A namespace in a folder with its sequencers and its time, all controlled by the test, and its model."""

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
import pyarrow.compute as pc
from clocks import ManualClock
from deltalake import DeltaTable
from protocol_harness import letter_bytes
from stateful.model import Model
from stateful.side_by_side import ISOLATIONS, Shown, SideBySide

from lakemq.engine.client.fetch.arrow import fetch_arrow
from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.client.fetch.plan import Isolation, beginning_offsets, end_offsets, plan_fetch, replan
from lakemq.engine.client.fetch.rows import FetchPlan
from lakemq.engine.maintenance.housekeeping import LOAD_MS
from lakemq.engine.namespace.clock import Clock
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.data_file import write_data_file
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.step_reader import StepReader, follow_from_watermark
from lakemq.engine.protocol.codec.letter import decode_answer
from lakemq.engine.protocol.codec.steps import decode_steps
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import DataFile
from lakemq.engine.protocol.values.topics import DeleteRecords, Topic
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.errors import FileTruncated
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import BODY_SCHEMA, FINAL_MESSAGES
from lakemq.tables.storage.coordination.mailbox import Mailbox
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import LocalFiles

LEASE_MS = 900
EXPIRATION_MS = 60_000
EXPIRY_INTERVAL_MS = 10_000
GAP_MS = 200
GRACE_MS = 400
FINAL_MS = 100
RENEWED_MS = LEASE_MS // 2

CONFIG = {
    "lease.ms": LEASE_MS,
    "client.expiration.ms": EXPIRATION_MS,
    "producer.id.expiration.ms": EXPIRATION_MS,
    "request.gap.ms": GAP_MS,
    "project.interval.ms": 0,
    "journal.retention.ms": 0,
    "reader.grace.ms": 1000,
    "merge.grace.ms": GRACE_MS,
    "retention.check.interval.ms": 86_400_000,  # the timestamps of messages are old
    "final.interval.ms": FINAL_MS,
    "checkpoint.interval": 5,
    "compact.min.files": 2,
    "journal.rows.max.bytes": 400,
}


class TimedFiles(LocalFiles):
    """A store whose clock the test controls too. An object's time is that of the first look at it."""

    def __init__(self, root: str, clock: ManualClock) -> None:
        super().__init__(root)
        self._clock, self._times_ms = clock, dict[str, int]()

    def time_ms(self) -> int:
        return self._clock.now_ms()

    def modified_ms(self, name: str) -> int | None:
        modified = super().modified_ms(name)
        return None if modified is None else self._times_ms.setdefault(name, self.time_ms())

    def set_modified_ms(self, name: str, ms: int) -> None:
        self._times_ms[name] = ms


class Killed(BaseException):
    """The process is dead."""


class LaterFuture(Future[Any]):
    """A future whose work is run by the test, or at the latest by `result`. It fails if its process is dead."""

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
    """A background thread that the test controls: work waits for `run`."""

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
    """Make a folder, in memory if there is a memory disk."""
    return tempfile.mkdtemp(prefix="lakemq-stateful-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


@cache
def _template() -> str:
    """Return an empty namespace, which each process makes once. A copy of it takes a fiftieth of the time."""
    folder = _new_folder()
    atexit.register(shutil.rmtree, folder)
    open_namespace(folder, EngineConfig(CONFIG), create=True)
    return folder


class World(SideBySide):
    """A namespace in a folder of its own, which `close` removes."""

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
        self._steps = StepReader(self.namespace.store, 0, self.clock.steady_ms)
        self.doomed = ""
        """The crash point at which the next sequencer that reaches it is killed."""
        self.meanwhile: tuple[str, Callable[[], None]] | None = None
        """The crash point at which the next sequencer stops, and what happens before it goes on."""

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def reconfigure(self, settings: dict[str, Any]) -> None:
        """Change the settings of sequencers that are made from now on."""
        self.namespace = replace(self.namespace, config=EngineConfig({**CONFIG, **settings}))

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"

    def new_file_id(self) -> int:
        return next(self._ids)

    def sequencer(self, clock: Clock | None = None) -> tuple[Sequencer, Background]:
        """Make a sequencer. clock: that of its process, if it is not the world's."""
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
        """Let the sequencer lead, if need be after the lease of the last leader has run out."""
        if not sequencer.try_lead():
            self.clock.sleep(LEASE_MS + 1)
            assert sequencer.try_lead()
        self.remember_steps()

    def remember_steps(self) -> None:
        """Keep the new steps. They are removed when they are projected, and leave the journal when they are old."""
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

    def take_answer(self, client_id: str, number: int) -> list[Any] | None:
        """Return the results of a letter, or None without an answer. An answer can be taken once."""
        body = self.namespace.mailbox.poll_answer(client_id, number)
        if body is None:
            return None
        self.namespace.mailbox.forget_answer(client_id, number)
        answer = decode_answer(body)
        assert (answer.client_id, answer.number) == (client_id, number)
        return answer.results

    # -- a consumer -------------------------------------------------------------------------------------

    def logs(self, reader: Reader, topic: Topic, isolation: Isolation = "read_committed") -> Shown:
        """Return partition -> (offset, value) of all that can be read."""
        logs: Shown = {p: [] for p in range(topic.log_count)}
        plan = plan_fetch(reader, topic, isolation, beginning_offsets(topic), end_offsets(topic, isolation))
        for row in self._read(plan).to_pylist():
            logs[row["partition"]].append((row["offset"], row["value"].decode()))
        return logs

    def _read(self, plan: FetchPlan) -> pa.Table:
        """Read what was planned; plan once more if a file has been merged and is gone, as a fetch does."""
        try:
            return fetch_arrow(self.namespace.files, plan)
        except FileTruncated:
            reader = self.new_reader()
            reader.refresh()
            new_plan = replan(reader, plan)
            if new_plan is None:
                raise
            return fetch_arrow(self.namespace.files, new_plan)

    def check_reader(self, reader: Reader, isolations: Sequence[Isolation] = ISOLATIONS) -> None:
        """Check that a reader sees what the model says, after it has looked."""
        state = reader.refresh()
        self.check_visible_messages(state, lambda topic, isolation: self.logs(reader, topic, isolation), isolations)

    def finalize(self) -> None:
        """Let a sequencer lead until all messages with a known outcome are final, and read from their files."""
        sequencer, background = self.sequencer()
        self.lead(sequencer)
        for _ in range(3):  # what it projects, what it writes, and what it decides of that
            self.clock.sleep(FINAL_MS)
            sequencer.step()
            background.run()
        sequencer.step()
        background.run()
        self.pass_time(sequencer)
        background.run()
        sequencer.resign()
        self.remember_steps()

    def pass_time(self, sequencer: Sequencer) -> None:
        """Let the sequencer lead until no reader begins at the present step, and decide one more."""
        for _ in range(LOAD_MS // RENEWED_MS + 1):
            self.clock.sleep(RENEWED_MS)
            sequencer.step()
        self.put(self.new_id(), 1, [DeleteRecords("no topic", {0: 0})], [])  # is refused, and by that projected
        sequencer.step()

    def check_final_messages(self) -> None:
        """Check that `final_messages`, read without LakeMQ, has the committed messages, once, and no other.

        Call it when everything is projected.
        """
        rows = DeltaTable(f"{self.folder}/{FINAL_MESSAGES.name}").to_pyarrow_table().sort_by("offset")
        reader = self.new_reader()
        topics = reader.refresh().topics
        assert set(rows.column("topic_id").to_pylist()) <= set(topics)
        for topic in topics.values():
            of_topic = rows.filter(pc.field("topic_id") == topic.topic_id)
            assert set(of_topic.column("topic").to_pylist()) <= {topic.topic}
            assert topic.final_offsets.tolist() == topic.last_stable_offsets.tolist()
            for partition, messages in self.logs(reader, topic).items():
                of_partition = of_topic.filter(pc.field("partition") == partition)
                columns = (of_partition.column(name).to_pylist() for name in ("offset", "value"))
                assert [(offset, value.decode()) for offset, value in zip(*columns, strict=True)] == messages

    def new_reader(self) -> Reader:
        """Return a reader that has just started."""
        return Reader(self.namespace.store, self.clock)
