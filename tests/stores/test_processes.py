"""Sequencers and clients in processes of their own, on real object stores: killed, stopped, on a bad network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from decided import read_terms
from finals import are_all_final, check_final_messages
from object_servers import ObjectServer
from store_proxy import run_proxy
from targets import nightly_but
from unit.served import has_line

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace import crash
from lakemq.tables.storage.coordination.sockets import list_lines
from lakemq.testing import wait_until

CONFIG = "lease.ms: 3000\nfinal.interval.ms: 1000\nmerge.grace.ms: 1000\n"
TOPIC = "orders"
STEP_PUT = "sequencer.step_put:8"
WITHIN_S = 120
"""Bound of every wait, because a machine may be slow."""


@pytest.fixture
def path(object_server: ObjectServer) -> str:
    return object_server.path(f"{uuid.uuid4().hex}/mq")


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children_ = Children(tmp_path)
    try:
        yield children_
    finally:
        children_.kill_all()
        print((tmp_path / "children.log").read_text()[-20_000:])


class Children:
    """Processes that end with their test."""

    def __init__(self, folder: Path) -> None:
        self._settings = folder / "lakemq.yaml"
        self._log = (folder / "children.log").open("w")
        self._processes: list[subprocess.Popen[bytes]] = []

    def serve(
        self, path: str, options: dict[str, str], settings: str = CONFIG, crash_at: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a sequencer, which gets all options from its environment.

        Args:
            settings: the text of its file.
            crash_at: the crash point where it kills itself, and at which arrival.
        """
        self._settings.write_text(settings)
        arguments = [argument for key in options for argument in ("--storage-option", key)]
        command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", path, "--conf", str(self._settings), *arguments]
        environment = {**os.environ, **options, **({crash.VARIABLE: crash_at} if crash_at else {})}
        process = subprocess.Popen([*command, "serve"], env=environment, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        return process

    def kill_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.send_signal(signal.SIGCONT)
            process.wait(WITHIN_S)
        self._log.close()


class Sending(threading.Thread):
    """Sends numbered messages one after the other until `end`."""

    def __init__(self, mq: Connection) -> None:
        super().__init__(daemon=True)
        self._mq, self._ends = mq, threading.Event()
        self.acknowledged = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._mq.producer() as producer:
                while not self._ends.is_set():
                    producer.send(TOPIC, value=str(self.acknowledged)).result(WITHIN_S)
                    self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ends.set()
        self.join(WITHIN_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more messages were acknowledged."""
        goal = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= goal or self.error is not None, f"{goal} acknowledgements", WITHIN_S)


def check_each_once(mq: Connection, count: int) -> None:
    values = [int(message.value) for message in mq.fetch(TOPIC)]
    assert values == list(range(count))
    wait_until(lambda: are_all_final(mq), "all messages are final", WITHIN_S)
    assert check_final_messages(mq) == count


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_standby_takes_over_and_no_message_is_lost_or_doubled(
    fault: str, object_server: ObjectServer, path: str, children: Children
) -> None:
    """A stopped leader goes on while another one leads: both put the next step."""
    with lakemq.connect(path, storage_options=object_server.options, create=True) as mq:
        first = children.serve(path, object_server.options)
        mq.topics.create(TOPIC)
        children.serve(path, object_server.options)
        sending = Sending(mq)
        sending.start()
        sending.wait_for_more(5)
        first.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        sending.wait_for_more(5)
        first.send_signal(signal.SIGCONT)
        sending.wait_for_more(5)
        sending.end()
        check_each_once(mq, sending.acknowledged)
        epochs = [epoch for epoch, _ in read_terms(mq.namespace.store)]
        assert epochs == list(range(1, len(epochs) + 1))
        assert len(epochs) > 1


@pytest.mark.parametrize("crash_at", nightly_but([STEP_PUT], [STEP_PUT, "projector.table_appended:3"]))
def test_a_sequencer_dies_between_two_writes_and_each_message_is_there_once(
    crash_at: str, object_server: ObjectServer, path: str, children: Children
) -> None:
    """It dies right after the put of a step, before it knows the answer, or between appends to tables."""
    settings = CONFIG + "project.interval.ms: 100\n"
    with lakemq.connect(path, storage_options=object_server.options, create=True) as mq:
        first = children.serve(path, object_server.options, settings, crash_at)
        mq.topics.create(TOPIC)
        sending = Sending(mq)
        sending.start()
        assert first.wait(WITHIN_S) == -signal.SIGKILL
        children.serve(path, object_server.options, settings)
        sending.wait_for_more(5)
        sending.end()
        check_each_once(mq, sending.acknowledged)


def test_a_bad_network_loses_and_doubles_nothing(object_server: ObjectServer, path: str, children: Children) -> None:
    with lakemq.connect(path, storage_options=object_server.options, create=True), ExitStack() as stack:
        url = stack.enter_context(run_proxy(object_server.url, "--delay-ms", "15", "--share", "0.01", "--seed", "7"))
        options = object_server.at(url).options
        for _ in range(2):
            children.serve(path, options)
        mq = stack.enter_context(lakemq.connect(path, storage_options=options))
        mq.topics.create(TOPIC)
        sending = Sending(mq)
        sending.start()
        for _ in range(4):
            sending.wait_for_more(10)
        sending.end()
        check_each_once(mq, sending.acknowledged)
    with lakemq.connect(path, storage_options=object_server.options) as mq:
        check_each_once(mq, sending.acknowledged)


# -- clients with lines over TCP ------------------------------------------------------------------------------


LISTENING = {"plain": "line.listen: 127.0.0.1:0\n", "TLS": "line.listen: 0.0.0.0:0\nline.advertise: 127.0.0.1\n"}


@pytest.mark.parametrize("listen", nightly_but([LISTENING["TLS"]], LISTENING.values()), ids=LISTENING)
def test_a_killed_leader_loses_and_doubles_nothing_of_clients_with_lines(
    object_server: ObjectServer, path: str, children: Children, listen: str
) -> None:
    with lakemq.connect(path, storage_options=object_server.options, create=True) as mq:
        first = children.serve(path, object_server.options, CONFIG + listen)
        files = mq.namespace.files
        wait_until(lambda: list_lines(files), "a leader that listens", WITHIN_S)
        mq.topics.create(TOPIC)
        children.serve(path, object_server.options, CONFIG + listen)
        sending = Sending(mq)
        sending.start()
        sending.wait_for_more(20)
        assert files.folders("replies") == [], "all answers came on the line"
        first.send_signal(signal.SIGKILL)
        sending.wait_for_more(20)
        sending.end()
        check_each_once(mq, sending.acknowledged)
        assert [epoch for epoch, _ in read_terms(mq.namespace.store)] == [1, 2]
        names = files.list("line")
        assert len(names) == 1, "the new leader has removed the object of the killed one"
        wait_until(lambda: sends_on_line(mq), "a line to the new leader", WITHIN_S)


def sends_on_line(mq: lakemq.Connection) -> bool:
    """Send a message, and return whether it went on a line."""
    with mq.producer() as producer:
        producer.send(TOPIC, value="again").result(60)
    return has_line(mq)
