"""A sequencer with a slow store, with odd requests, or that is stuck: all other clients are served."""

import errno
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from decided import read_steps
from unit.served import until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.data_file import new_file_id, write_data_file
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.namespace.namespace import Namespace, open_namespace
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import FileMissing, StorageError, UnknownServerError
from lakemq.engine.protocol.rules import schedules
from lakemq.engine.protocol.values.clients import LeaderElected
from lakemq.engine.protocol.values.decision import Decision, DecisionInputs
from lakemq.engine.protocol.values.journal import JournalEntry
from lakemq.engine.protocol.values.log import DataFile, Produce, Ranges
from lakemq.engine.protocol.values.segments import Segments
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import CreateTopic, TopicCreated, TopicDone, TopicRef
from lakemq.engine.sequencer import projector, step_decider
from lakemq.engine.sequencer import serving as serving_module
from lakemq.engine.sequencer.sequencer import MAX_FAILED_TERMS, Sequencer, StepReport
from lakemq.engine.sequencer.serving import Serving, _Pace
from lakemq.jobs.doctor.namespace import check_aside
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import LocalFiles

pytestmark = [pytest.mark.slow, pytest.mark.extended]

LEASE_MS = 500
CONFIG = {"lease.ms": LEASE_MS, "step.timeout.ms": 1000, "engine.tick.ms": 1, "engine.idle.ms": 10}


@pytest.fixture
def path(tmp_path: Path) -> str:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        mq.sequencer().resign()
    return str(tmp_path / "mq")


@pytest.fixture
def mq(path: str) -> Iterator[Connection]:
    with lakemq.connect(path, config=CONFIG) as mq:
        yield mq


class SlowFiles(LocalFiles):
    """A store that takes time to return the size of a file."""

    answer = staticmethod(lambda: time.sleep(0.08))

    def size(self, name: str) -> int | None:
        self.answer()
        return super().size(name)


def namespace_on(files: LocalFiles, config: dict[str, Any] = CONFIG) -> Namespace:
    opened = open_namespace(files.root, lakemq.engine.namespace.config.EngineConfig(config))
    return replace(opened, files=files, store=Store(files))


def make(namespace: Namespace, name: str, reached: Callable[[str], None] = lambda _: None) -> Sequencer:
    return Sequencer(namespace, name, SystemClock(), new_file_id, reached)


def serving(namespace: Namespace, name: str) -> Serving:
    return Serving(lambda: make(namespace, name), namespace.config, SystemClock())


def produce(mq: Connection, files: list[DataFile]) -> Produce:
    """Publish one row of each file to partition 0 of `t`."""
    n, topic = len(files), mq.topics.describe("t")
    ranges = Ranges([0] * n, [0] * n, list(range(n)), [0] * n, [1] * n, [0] * n, [0] * n)
    return Produce([TopicRef("t", topic.topic_id, 1)], ranges, mq.state().step, files)


def data_file(files: LocalFiles) -> DataFile:
    columns = {"topic": ["t"], "partition": [0], "value": [b"v"], "timestamp": [0]}
    body = pa.table([pa.array(columns.get(f.name, [None]), f.type) for f in BODY_SCHEMA], schema=BODY_SCHEMA)
    return DataFile(*write_data_file(files, new_file_id(), body))


# -- a slow store -------------------------------------------------------------------------------------------


def test_a_step_that_takes_longer_than_the_lease_is_decided_though_another_stands_by(path: str, mq: Connection) -> None:
    with mq.serving():
        mq.topics.create("t")
    # 400 files, 16 at a time, take about twice the lease
    written = [data_file(LocalFiles(path)) for _ in range(5)]
    named_files = [replace_id(written[i % 5], i) for i in range(400)]
    namespace = namespace_on(SlowFiles(path), {**CONFIG, "lease.ms": 1000, "step.timeout.ms": 20_000})
    with serving(namespace, "slow") as first:
        until(lambda: first.sequencer.leads)
        with mq.serving() as standby:
            epoch = mq.state().leader_epoch
            with pytest.raises(FileMissing):
                mq.requester.ask(produce(mq, named_files))
            assert first.sequencer.leads
            assert not standby.sequencer.leads
            assert mq.state().leader_epoch == epoch
    renewals = [
        entry.record
        for step in read_steps(mq.namespace.store)
        for entry in step.entries
        if isinstance(entry.record, LeaderElected) and (entry.record.leader, entry.record.epoch) == ("slow", epoch)
    ]
    assert len(renewals) >= 3, "signs of life within the step"


def test_the_lease_is_renewed_while_the_rows_of_recurring_messages_are_written(
    path: str, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "lease.ms": 1000, "step.timeout.ms": 20_000, "journal.rows.max.bytes": 0}
    writes: list[int] = []

    def write(*arguments: Any) -> Any:
        writes.append(mq.state().step)
        until(lambda: mq.state().step > writes[0])
        return write_data_file(*arguments)

    with serving(namespace_on(LocalFiles(path), config), "slow") as first:
        until(lambda: first.sequencer.leads)
        mq.topics.create("t")
        monkeypatch.setattr(step_decider, "write_data_file", write)
        with monkeypatch.context() as patch:  # the first occurrence is due at once
            patch.setattr(schedules, "find_next_ms", lambda cron, time_zone, after_ms: after_ms)
            mq.schedules.create("s", "t", cron="0 0 1 1 *")
        until(lambda: mq.schedules.describe("s").last_at is not None)
    assert len(writes) == 1


def replace_id(file: DataFile, number: int) -> DataFile:
    return file if number < 5 else DataFile(number, 1, 1, 0, 0, 0)


# -- odd requests -------------------------------------------------------------------------------------------


def test_unexpected_error_refuses_only_its_own_request(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = machine.DECIDE[CreateTopic]

    def decide(state: State, request: CreateTopic, inputs: DecisionInputs) -> Decision:
        return 1 // 0 if request.topic == "odd" else real(state, request, inputs)  # type: ignore[return-value]

    monkeypatch.setitem(machine.DECIDE, CreateTopic, decide)
    with mq.serving():
        requests = [(CreateTopic(name, 1), None) for name in ("before", "odd", "after")]
        before, odd, after = mq.requester.submit_all(requests)
        assert isinstance(before.result(5), TopicDone)
        with pytest.raises(UnknownServerError, match=r"ZeroDivisionError") as refused:
            odd.result(5)
        assert refused.value.code == -1
        assert isinstance(after.result(5), TopicDone)
    assert "ZeroDivisionError" in caplog.text
    (aside_name,) = mq.namespace.files.list("aside")
    assert b'"odd"' in mq.namespace.files.get(aside_name)
    finding = check_aside(mq)
    assert not finding.ok
    assert aside_name in finding.found
    mq.namespace.files.delete([aside_name])
    assert check_aside(mq).ok


@pytest.mark.parametrize("stage", ["folded", "journaled"])
def test_request_that_cannot_be_applied_is_refused_the_next_time(
    stage: str, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure occurs in the middle of a step. The other requests are decided in the next one."""
    real_decide, real_fold = machine.DECIDE[CreateTopic], machine.EVOLVE[TopicCreated]

    def decide(state: State, request: CreateTopic, inputs: DecisionInputs) -> Decision:
        if stage == "journaled" and request.topic == "odd":
            record = TopicCreated(state.next_topic_id, "\ud800", 1, {}, [])
            return Decision(TopicDone(record.topic_id, 1), (JournalEntry(record),))
        return real_decide(state, request, inputs)

    def fold(state: State, record: TopicCreated, segments: Segments) -> None:
        real_fold(state, record, segments)
        if stage == "folded" and record.topic == "odd":
            raise RuntimeError("half folded")

    monkeypatch.setitem(machine.DECIDE, CreateTopic, decide)
    monkeypatch.setitem(machine.EVOLVE, TopicCreated, fold)
    mq.topics  # noqa: B018 - made before the sequencer, so that nothing else is asked
    with mq.serving(), lakemq.connect(mq.namespace.path, config=CONFIG) as other:
        other.topics.create("first")
        odd = mq.requester.submit(CreateTopic("odd", 1))
        assert other.topics.create("good").partitions == 1
        with pytest.raises(UnknownServerError):
            odd.result(10)
        assert [topic.topic for topic in other.topics.list()] == ["first", "good"]


# -- a sequencer that is stuck ------------------------------------------------------------------------------


def test_stuck_sequencer_is_reported_and_replaced(mq: Connection, caplog: pytest.LogCaptureFixture) -> None:
    stuck, names = threading.Event(), iter("abc")

    def wait_at_point(point: str) -> None:
        if point == "sequencer.letters_taken" and mq.namespace.files.list("mailbox"):
            stuck.wait(30)

    def sequencer() -> Sequencer:
        name = next(names)
        return make(mq.namespace, name, wait_at_point if name == "a" else lambda _: None)

    with Serving(sequencer, mq.namespace.config, SystemClock()) as watched:
        first = watched.sequencer
        until(lambda: first.leads)
        assert mq.topics.create("t").partitions == 1
        assert watched.sequencer is not first
        assert mq.state().leader == "b"
        stuck.set()
        until(lambda: not first.leads)
        assert [topic.topic for topic in mq.topics.list()] == ["t"]
    (log_record,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "stuck.wait" in log_record.getMessage(), "the stack says where"
    assert watched.error is None


def test_close_ends_though_the_sequencer_is_stuck(mq: Connection) -> None:
    stuck = threading.Event()
    watched = Serving(
        lambda: make(mq.namespace, "s", lambda point: stuck.wait(30) and None), mq.namespace.config, SystemClock()
    )
    began_s = time.monotonic()
    watched.close()
    assert time.monotonic() - began_s < 5
    stuck.set()


def test_a_watchdog_that_can_make_no_other_sequencer_says_so(mq: Connection) -> None:
    stuck, sequencers = threading.Event(), iter([make(mq.namespace, "s", lambda point: stuck.wait(30) and None)])
    with Serving(lambda: next(sequencers), mq.namespace.config, SystemClock()) as watched:
        assert watched.wait(10)
        assert isinstance(watched.error, StorageError)
        stuck.set()


def test_steps_wait_for_a_projection_that_is_slower(path: str, mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are not projected are in memory, so their number has a bound."""
    monkeypatch.setattr(projector, "MAX_TAIL", 5)
    slow, waiting = threading.Event(), list[int]()

    def wait_at_point(point: str) -> None:
        if point == "projector.watermark_written":
            slow.wait(0.1)

    namespace = namespace_on(LocalFiles(path), {**CONFIG, "project.interval.ms": 0})
    sequencer = make(namespace, "s", wait_at_point)
    assert sequencer.try_lead()
    for i in range(20):
        mq.requester.submit(CreateTopic(f"t{i}", 1))
        until(lambda: bool(mq.namespace.files.list("mailbox")))
        sequencer.step()
        waiting.append(sequencer.state.step - read_watermark(mq.namespace.store).step)
    slow.set()
    sequencer.resign()
    assert max(waiting) <= 6
    assert len(mq.topics.list()) == 20


def test_resign_succeeds_if_the_next_leader_projects_the_last_step(mq: Connection) -> None:
    standby = make(mq.namespace, "standby")

    def lead_and_project(point: str) -> None:
        if point == "sequencer.resigned":
            assert standby.try_lead()
            assert standby.resign()

    leader = make(mq.namespace, "leader", lead_and_project)
    assert leader.try_lead()
    assert leader.resign()


# -- the first look -----------------------------------------------------------------------------------------


def test_serving_ends_where_it_may_not_write(mq: Connection) -> None:
    def forbidden(point: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with Serving(lambda: make(mq.namespace, "guest", forbidden), mq.namespace.config, SystemClock()) as served:
        assert served.wait(20)
        assert isinstance(served.error, StorageError)


# -- failing threads ----------------------------------------------------------------------------------------


def test_leader_that_fails_in_every_step_gives_way_to_a_standby(mq: Connection) -> None:
    """The failing leader can still take the lease, and would do so again and again."""

    def fail(point: str) -> None:
        if point == "sequencer.letters_taken":
            raise OSError("this machine cannot")

    unlucky = make(mq.namespace, "unlucky", fail)
    for _ in range(MAX_FAILED_TERMS):
        assert unlucky.try_lead(), "a mishap is forgiven"
        with pytest.raises(StorageError, match="this machine cannot"):
            unlucky.step()
    assert not unlucky.try_lead()
    with mq.serving():
        assert mq.topics.create("t").partitions == 1
    unlucky.resign()


class Panic(BaseException):
    """An error like that of a panicking Rust library."""


def test_serving_ends_with_an_error_when_a_step_panics(mq: Connection) -> None:
    panicking = threading.Event()

    def panic(point: str) -> None:
        if panicking.is_set() and point == "sequencer.letters_taken":
            raise Panic

    with Serving(lambda: make(mq.namespace, "s", panic), mq.namespace.config, SystemClock()) as served:
        until(lambda: served.sequencer.leads)
        panicking.set()
        assert served.wait(10)
        assert "Panic" in str(served.error)


def test_rest_after_a_failed_step_does_not_count_as_stuck(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a disk is full for long, the sequencer tries again at growing intervals, and does not count as stuck."""
    # more than three times step.timeout.ms, as after some attempts
    monkeypatch.setattr(serving_module, "SHORTEST_RETRY_MS", 4_500)
    began, failed, is_gone = threading.Event(), threading.Event(), threading.Event()

    def full(point: str) -> None:
        if began.is_set() and not is_gone.is_set():
            failed.set()
            raise OSError(28, "No space left on device")

    with Serving(lambda: make(mq.namespace, "s", full), mq.namespace.config, SystemClock()) as served:
        until(lambda: served.sequencer.leads)
        first = served.sequencer
        began.set()
        assert failed.wait(10)
        is_gone.set()
        assert mq.topics.create("t").partitions == 1
        assert served.sequencer is first


def test_a_projection_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hang(point: str) -> None:
        if point == "projector.tables_appended":
            begun.set()
            goes_on.wait(60)

    config = CONFIG | {"step.timeout.ms": 1_000}
    with lakemq.connect(tmp_path / "mq", create=True, config=config) as mq:
        sequencer = make(mq.namespace, "s", hang)
        until(sequencer.try_lead)
        begun_s = time.monotonic()
        with pytest.raises(StorageError, match="did not end in 1000 ms"):
            sequencer.resign()
        assert begun.is_set()
        assert 1 <= time.monotonic() - begun_s < 10
        goes_on.set()


END = """
import atexit, sys, threading, time
import lakemq, pyarrow as pa
mq = lakemq.connect(sys.argv[1])
mq.serving()
mq.topics.create("t")
def work():
    time.sleep(0.3)
    mq.publish("t", pa.table({"value": ["late"]}))
threading.Thread(target=work).start()
producer = mq.producer(linger_ms=60_000)
producer.send("t", "given")
atexit.register(mq.close)
"""


def test_a_sequencer_of_the_process_goes_on_when_the_main_thread_has_ended(path: str) -> None:
    completed = subprocess.run([sys.executable, "-c", END, path], capture_output=True, text=True, timeout=60)
    assert (completed.returncode, completed.stderr) == (0, "")
    with lakemq.connect(path) as mq:
        assert sorted(values(mq, "t")) == ["given", "late"]


HANGS = """
import threading
import lakemq
from lakemq.tables.storage.native_calls import Workers
workers = Workers(1, "w")
workers.submit(threading.Event().wait)
print(workers.submit(lambda: 1).cancel())
workers.shutdown(wait=False, cancel_futures=True)
"""


def test_a_store_that_hangs_does_not_keep_the_process() -> None:
    completed = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30)
    assert completed.stdout == "True\n"


def test_leader_looks_once_per_tick_after_a_letter() -> None:
    """engine.tick.ms limits what the looks cost."""
    pace = _Pace(EngineConfig({"engine.tick.ms": 100}))
    pace.rest_after_ms(StepReport(step=1, letters=1, backlog=False, is_watching=False), 15.0)
    quiet = StepReport(step=1, letters=0, backlog=False, is_watching=False)
    assert [pace.rest_after_ms(quiet, 15.0) for _ in range(3)] == [85.0, 85.0, 85.0]
