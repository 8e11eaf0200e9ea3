"""Requests of sequencers to an object store while nothing happens. The store is a folder, and counts them."""

import http.client
import itertools
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clocks import ManualClock
from obstore.store import LocalStore
from protocol_harness import AtOnce, letter_bytes
from unit.test_direct_line import letter_of

from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance.merging import FEW_FILES
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.data_file import write_data_file
from lakemq.engine.namespace.namespace import Namespace, open_namespace
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.log import DataFile, Produce, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.engine.sequencer.sequencer import STANDBY_MS, Sequencer
from lakemq.jobs.console.app import serve_consoles
from lakemq.jobs.console.console import ConsoleSettings
from lakemq.jobs.metrics.server import serve_metrics
from lakemq.jobs.process.http_listener import HttpLimits
from lakemq.tables.specs.messages import BODY_SCHEMA
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import TOPICS
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.object_stores.object_store import ObjectFiles
from lakemq.tables.storage.object_stores.objects import Data, IdentifiedObject

pytestmark = pytest.mark.slow

LEASE_MS = 10_000
RENEWAL_MS = 5_000
"""Time between two steps of a leader without a standby. It makes a few in a minute, so that minutes are quick."""


class CountedFiles(ObjectFiles):
    """Objects in a folder, as in a store. Counts the requests by kind and by the first part of the name."""

    def __init__(self, root: str) -> None:
        super().__init__(LocalStore(root), f"file://{root}")
        self.requests: Counter[tuple[str, str]] = Counter()

    def _count(self, kind: str, name: str) -> None:
        self.requests[kind, name.partition("/")[0].partition("-")[0]] += 1

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        self._count("put", name)
        return super().put(name, data, durable=durable)

    def get_identified(self, name: str, limit: int | None = None) -> IdentifiedObject:
        self._count("get", name)
        return super().get_identified(name, limit)

    def _head(self, name: str) -> Any:
        self._count("head", name)
        return super()._head(name)

    def _list_folder(self, prefix: str) -> tuple[str, Any]:
        self._count("list", prefix)
        return super()._list_folder(prefix)

    def _delete_one(self, path: str) -> None:
        self._count("delete", path)
        super()._delete_one(path)


class CountedStore(Store):
    """Tables of a store, whose openings count as requests."""

    def __init__(self, files: CountedFiles) -> None:
        super().__init__(files)
        self._requests = files.requests

    def open(self, spec: TableSpec) -> TableHandle:
        self._requests["open", spec.name] += 1
        return super().open(spec)


def count_requests(opened: Namespace) -> tuple[Namespace, Counter[tuple[str, str]]]:
    """Return the namespace as in a store, and the requests that its user makes from now on."""
    files = CountedFiles(opened.path)
    return replace(opened, files=files, store=CountedStore(files)), files.requests


def make_sequencer(name: str, namespace: Namespace, clock: ManualClock) -> Sequencer:
    return Sequencer(namespace, name, clock, iter(range(1, 1000)).__next__, background=AtOnce())


class IdleNamespace:
    """A namespace with a leader that has just created a topic. Everything runs in this thread, by one clock."""

    def __init__(self, folder: Path, final_interval_ms: int = 1000) -> None:
        path = str(folder / "mq")
        settings = {"project.interval.ms": 1000, "final.interval.ms": final_interval_ms}
        opened = open_namespace(path, load_config(overrides=settings), create=True)
        self.clock, self._letters = ManualClock(), itertools.count(1)
        self.namespace, self.requests = count_requests(opened)
        self.leader = make_sequencer("leader", self.namespace, self.clock)
        assert self.leader.try_lead()
        self.create_topic()
        self.renew(for_ms=120_000)

    def create_topic(self) -> None:
        number = next(self._letters)
        self.namespace.mailbox.put("c1", number, letter_of("c1", number, f"topic-{number}"), 0)
        self.renew(RENEWAL_MS)

    def publish(self) -> None:
        """Publish a message in a file of its own to the first topic."""
        number = next(self._letters)
        now_ms = self.namespace.files.time_ms()
        values = {"topic": "topic-1", "partition": 0, "timestamp": now_ms * 1000, "value": b"x"}
        body = pa.table([pa.array([values.get(field.name)], field.type) for field in BODY_SCHEMA], BODY_SCHEMA)
        file = DataFile(*write_data_file(self.namespace.files, number, body))
        request = Produce([TopicRef("topic-1", 1, 1)], Ranges([0], [0], [0], [0], [1], [now_ms], [now_ms]), 0, [file])
        self.namespace.mailbox.put("c1", number, letter_bytes(Letter("c1", number, [request], 0)), 0)
        self.renew(RENEWAL_MS)

    def renew(self, for_ms: int) -> Counter[tuple[str, str]]:
        """Let the leader renew its lease for so long. Return the requests, without lists of the mailbox."""
        before = self.requests.copy()
        for _ in range(for_ms // RENEWAL_MS):
            self.clock.sleep(RENEWAL_MS)
            self.leader.step()
        requests = self.requests - before
        del requests["list", "mailbox"]
        return requests


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[IdleNamespace]:
    namespace = IdleNamespace(tmp_path)
    yield namespace
    namespace.leader.resign()


def test_an_idle_leader_looks_at_no_table_that_has_nothing_to_remove(idle: IdleNamespace) -> None:
    requests = idle.renew(for_ms=8 * 60_000)
    tables = {table for kind, table in requests if table in BY_NAME}
    assert tables == {"journal", "watermarks"}, "which get the renewals once a minute"
    assert {kind for kind, table in requests if table in BY_NAME} == {"put", "head"}
    assert ("put", "time") not in requests


@pytest.mark.extended
def test_final_messages_cost_an_idle_leader_no_requests(tmp_path: Path) -> None:
    counts = list[int]()
    for interval_ms in (0, 60_000):
        idle = IdleNamespace(tmp_path / str(interval_ms), interval_ms)
        for _ in range(FEW_FILES):
            idle.publish()
        idle.renew(for_ms=30 * 60_000)
        assert idle.leader.state.topics[1].final_offsets.tolist() == [FEW_FILES if interval_ms else 0]
        counts.append(idle.renew(for_ms=10 * 60_000).total())
        idle.leader.resign()
    assert counts[1] <= counts[0]


def test_a_quiet_table_is_checkpointed_after_a_few_commits_and_its_log_cleaned_in_time(
    idle: IdleNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "mq" / TOPICS.name / "_delta_log"
    for _ in range(FEW_FILES - 2):
        idle.create_topic()
    assert idle.renew(for_ms=180_000)["open", TOPICS.name] == 0
    idle.create_topic()
    assert idle.renew(for_ms=180_000)["open", TOPICS.name] == 1
    assert len(list(log.glob("*.json"))) > FEW_FILES
    for entry in log.iterdir():
        os.utime(entry, (time.time() - TOPICS.log_retention_ms / 1000 - 10,) * 2)
    requests = idle.renew(for_ms=TOPICS.log_retention_ms)
    assert requests["list", TOPICS.name] <= 2, "once for what an earlier leader may have left"
    assert len(list(log.glob("*.json"))) == 1


def test_a_standby_of_a_store_looks_four_times_in_a_lease_and_takes_over_when_it_has_run_out(
    idle: IdleNamespace,
) -> None:
    clock, renewal_ms = idle.clock, LEASE_MS // 3 + 1
    namespace, requests = count_requests(idle.namespace)
    standby = make_sequencer("standby", namespace, clock)
    idle.leader.step()
    assert not standby.try_lead()
    requests.clear()
    put_ms, end_ms = clock.steady_ms(), clock.steady_ms() + 60_000
    while clock.steady_ms() < end_ms:
        look_ms = clock.steady_ms() + standby.standby_ms
        while put_ms + renewal_ms < look_ms:
            clock.sleep(put_ms + renewal_ms - clock.steady_ms())
            put_ms = clock.steady_ms()
            idle.leader.step()
        clock.sleep(look_ms - clock.steady_ms())
        assert not standby.try_lead()
    minute = requests.copy()
    while not standby.try_lead():
        clock.sleep(standby.standby_ms)
    took_ms = clock.steady_ms() - put_ms
    standby.resign()
    assert minute["get", "steps"] <= 60_000 / (LEASE_MS / 4) + 60_000 / renewal_ms + 1, "one per look, one per step"
    assert sum(minute.values()) - minute["get", "steps"] <= 1
    assert LEASE_MS < took_ms <= 1.25 * LEASE_MS + STANDBY_MS


# Idle connections, which anybody may open: they end soon, and take no descriptor that the sequencer needs.

PATIENCE_S = 60


@contextmanager
def open_console(mq: Connection, limits: HttpLimits, token: str | None = None) -> Iterator[int]:
    with serve_consoles([(mq, list)], ConsoleSettings(port=0, token=token), limits=limits) as address:
        yield int(address.rstrip("/").rpartition(":")[2])


@contextmanager
def open_metrics(mq: Connection, limits: HttpLimits) -> Iterator[int]:
    with serve_metrics(mq, "127.0.0.1", 0, limits=limits) as port:
        yield port


OpenServer = Callable[[Connection, HttpLimits], AbstractContextManager[int]]
each_server = pytest.mark.parametrize("open_server", [open_console, open_metrics], ids=["console", "metrics"])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read_status(port: int) -> int:
    """Ask for a page that needs no token, and return its status when the answer is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)
BEGINNINGS = {"nothing": b"", "half a request": GET, "a request, and half of one": GET + b"\r\n" + GET}


@each_server
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_connection_without_whole_request_is_closed(mq: Connection, open_server: OpenServer, beginning: bytes) -> None:
    with open_server(mq, HttpLimits(connections=2, request_s=0.2)) as port, connect(port) as idle:
        idle.sendall(beginning)
        with suppress(ConnectionResetError):
            while idle.recv(1 << 16):
                pass


def test_console_closes_connection_whose_form_does_not_come(mq: Connection) -> None:
    limits = HttpLimits(connections=2, request_s=0.2)
    with open_console(mq, limits, token="0123456789abcdef") as port, connect(port) as idle:
        idle.sendall(FORM)
        with suppress(ConnectionResetError):
            assert idle.recv(1 << 16) == b"", "there is no answer"


@each_server
def test_silent_connections_keep_no_visitor_out(mq: Connection, open_server: OpenServer) -> None:
    with open_server(mq, HttpLimits(connections=4, request_s=1_000 * PATIENCE_S)) as port, ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connect(port)).sendall(GET)
        assert read_status(port) == 200
