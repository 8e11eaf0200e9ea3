"""A reader that is slower than its leader decides, projects and merges, and still catches up."""

import itertools
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from clocks import HastyClock
from protocol_harness import letter_bytes

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.topics import CreateTopic
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.object_stores.files import Files

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CONFIG = {"project.interval.ms": 0, "journal.retention.ms": 0, "compact.min.files": 2, "checkpoint.interval": 5}
"""Each step is projected at once. Then the tables are merged and the journal is trimmed."""


class ImmediateExecutor(Executor):
    """An executor that runs its work within the call."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Busy:
    """A leader that decides, projects, merges and trims the journal each time a test calls `go_on`."""

    def __init__(self, mq: Connection) -> None:
        self._mq, self._numbers = mq, itertools.count(1)
        self.sequencer = Sequencer(
            mq.namespace, "busy", HastyClock(), itertools.count(1).__next__, background=ImmediateExecutor()
        )
        assert self.sequencer.try_lead()

    def go_on(self) -> None:
        for _ in range(3):
            number = next(self._numbers)
            letter = Letter("c", number, [CreateTopic(f"t{number}", 1)], 0)
            self._mq.namespace.mailbox.put("c", number, letter_bytes(letter), 0)
            assert self.sequencer.step().letters == 1


class BusyStore(Store):
    """A store on which the leader goes on while a table is opened."""

    def __init__(self, files: Files, busy: Busy) -> None:
        super().__init__(files)
        self._busy, self.opened = busy, 0

    def open(self, spec: TableSpec) -> TableHandle:
        handle = super().open(spec)
        self._busy.go_on()
        self.opened += 1
        return handle


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as connection:
        yield connection


def test_reader_catches_up_while_the_leader_goes_on_at_each_table(mq: Connection) -> None:
    busy = Busy(mq)
    busy.go_on()
    store = BusyStore(mq.namespace.files, busy)
    reader = Reader(store, HastyClock())
    begun_at = busy.sequencer.state.step
    state = reader.refresh()
    assert store.opened < 20, "it starts over"
    assert read_watermark(mq.namespace.store).step > begun_at, "the leader projected nothing meanwhile"
    # loaded as of an older watermark, then followed step by step
    assert state.step == busy.sequencer.state.step > begun_at
    assert {topic.topic for topic in state.topics.values()} == {
        topic.topic for topic in busy.sequencer.state.topics.values()
    }
    busy.sequencer.resign()
