"""A rolling upgrade: processes of this version and of an earlier one serve and use one namespace, in turn."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from faults.commands import LAKEMQ, Process, where

import lakemq
from lakemq.testing import wait_until

pytestmark = pytest.mark.extended

PREVIOUS = "54c6198f"
"""The earlier version. Set a later one where the stored format changes, and say so in `docs/operations.md`."""
ROOT = Path(__file__).parents[2]
PATIENCE_S = 100
COUNT = 30
"""Messages that each client sends and consumes before the next process is replaced."""

CREATE = """
import sys
import lakemq

lakemq.connect(sys.argv[1], create=True).close()
print(lakemq.__file__)
"""

CLIENT = """
import json, sys, threading
import lakemq

path, name = sys.argv[1:]
options = {"auto_offset_reset": "earliest", "session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
count = 0
with lakemq.connect(path) as mq, mq.producer() as producer:
    with mq.consumer("queue", topics=["t"], protocol="queue", **options) as queue:
        with mq.consumer("group", topics=["t"], **options) as group:
            while not ends.is_set():
                sent = producer.send("t", f"{name} {count}", key=f"{count}").result(100)
                count += 1
                messages = list(queue.poll(timeout_ms=100))
                queue.ack(messages)
                queue.flush()
                group.poll(timeout_ms=100)
                group.commit()
                print(json.dumps([count, [message.value.decode() for message in messages]]), flush=True)
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier version."""
    folder = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def test_versions_take_over_from_each_other_and_serve_each_others_clients(
    previous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "mq"
    (tmp_path / "lakemq.yaml").write_text(
        json.dumps({"lease.ms": 1000, "project.interval.ms": 50, "final.interval.ms": 200})
    )

    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # else the folder that the tests run in comes first, with this version

    def run(tree: Path, *command: str) -> Process:
        monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
        where_is_it = [sys.executable, "-c", "import lakemq; print(lakemq.__file__)"]
        assert subprocess.check_output(where_is_it, text=True).startswith(str(tree / "src"))
        process = Process(*command)
        request.addfinalizer(process.kill)
        return process

    def serve(tree: Path) -> Process:
        return run(tree, *LAKEMQ, *where(path), "serve")

    def start_client(tree: Path, name: str) -> Process:
        return run(tree, sys.executable, "-c", CLIENT, str(path), name)

    started = subprocess.run(
        [sys.executable, "-c", CREATE, str(path)],
        env={**os.environ, "PYTHONPATH": str(previous / "src")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert started.stdout.strip() == str(previous / "src/lakemq/__init__.py")
    leader = serve(previous)
    leader.wait_for_line("leads with epoch 1")
    with lakemq.connect(str(path)) as mq:
        mq.topics.create("t", 4)
    clients = {"old": start_client(previous, "old"), "new": start_client(ROOT, "new")}

    def let_clients_work() -> None:
        """Wait until both have sent COUNT messages more, and have handled what was sent before."""
        begun = {name: len(client.out) for name, client in clients.items()}

        def have_gone_on() -> bool:
            errors = [line for client in clients.values() for line in client.err]
            assert not any("Traceback" in line for line in errors), errors
            return all(len(client.out) >= begun[name] + COUNT for name, client in clients.items())

        wait_until(have_gone_on, "messages of both clients", PATIENCE_S)

    let_clients_work()
    for tree, end in ((ROOT, signal.SIGTERM), (previous, signal.SIGKILL), (ROOT, signal.SIGKILL)):
        standby = serve(tree)
        standby.wait_for_line("stands by|standby|leads")
        leader.signal(end)
        leader.wait_for_exit()
        standby.wait_for_line("leads with epoch")
        leader = standby
        let_clients_work()
    with lakemq.connect(str(path)) as mq:
        members = {member.member_id for member in mq.groups.members("group")}
        time.sleep(12)  # two sessions
        assert {member.member_id for member in mq.groups.members("group")} == members
    for client in clients.values():
        client.stdin.close()
        assert client.wait_for_exit() == 0, client.err
    with lakemq.connect(str(path)) as mq:
        handled = Counter(value for client in clients.values() for line in client.out for value in json.loads(line)[1])
        with mq.consumer("queue", topics=["t"], protocol="queue") as consumer:
            for _ in range(100):
                rest = list(consumer.poll(timeout_ms=500))
                handled.update((message.value or b"").decode() for message in rest)
                consumer.ack(rest)
                consumer.flush()
                if not rest and not any(row.lag for row in mq.groups.lag("queue")):
                    break
        sent = [f"{name} {n}" for name, client in clients.items() for n in range(json.loads(client.out[-1])[0])]
        assert sorted((message.value or b"").decode() for message in mq.fetch("t")) == sorted(sent)
        assert handled.keys() == set(sent)
        assert isinstance(mq.sql("SELECT count(*) AS n FROM log_committed", wait_ms=60_000), pa.Table)
