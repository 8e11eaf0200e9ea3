"""Servers that start processes: the programs of docs/processes.md in gunicorn and Celery, and their opposites."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from fetched_programs import find_free_port
from unit.pages import read_blocks
from unit.served import served, until, values

from lakemq.engine.client.connection import Connection

pytestmark = pytest.mark.extended

END_S = 60


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("servers")) as mq:
        yield mq


@pytest.fixture
def orders(mq: Connection) -> Iterator[None]:
    mq.topics.create("orders")
    yield
    mq.topics.delete("orders")


@contextmanager
def run_server(folder: Path, *command: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server of Python, and end it with SIGTERM. Its output is in `log.txt`."""
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, env={**os.environ, **env}, stdout=log, stderr=log
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(END_S)
        finally:
            process.kill()
            process.wait()


@contextmanager
def run_gunicorn(mq: Connection, folder: Path, program: str, *options: str) -> Iterator[str]:
    """Run the program with two workers of gunicorn, and return its address when it answers."""
    (folder / "shop.py").write_text(program)
    port = find_free_port()
    command = ["gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}", *options, "shop:app"]
    url = f"http://127.0.0.1:{port}/"

    def is_up() -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    with run_server(folder, *command, SHOP=mq.namespace.path):
        until(is_up)
        yield url


@pytest.mark.parametrize("options", [(), ("--preload",), ("--threads", "4")], ids=["plain", "preload", "threads"])
def test_service_of_gunicorn_stores_each_order(
    mq: Connection, orders: None, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (program,) = read_blocks("processes.md", "python gunicorn")
    with run_gunicorn(mq, tmp_path, program, *options) as url:
        answers = [httpx.post(url, content=f"order {number}", timeout=END_S) for number in range(20)]
    assert {answer.status_code for answer in answers} == {201}, (tmp_path / "log.txt").read_text()
    assert sorted(values(mq, "orders")) == sorted(f"order {number}" for number in range(20))


def test_tasks_of_celery_store_each_order_and_its_processes_send_the_rest_when_they_stop(
    mq: Connection, orders: None, tmp_path: Path
) -> None:
    (program,) = read_blocks("processes.md", "python celery")
    program = program.replace("connect().producer()", "connect().producer(linger_ms=60_000)")
    folder = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
    (tmp_path / "tasks.py").write_text(f"{program}\napp.conf.broker_transport_options = {folder!r}\n")
    (tmp_path / "queue").mkdir()
    (tmp_path / "done").mkdir()
    env = {"SHOP": mq.namespace.path, "BROKER": "filesystem://"}
    send = "import tasks\nfor number in range(20): tasks.place_order.delay(f'order {number}')"
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env={**os.environ, **env}, check=True)
    assert len([*(tmp_path / "queue").iterdir()]) == 20
    worker = ["celery", "--app", "tasks", "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO"]
    with run_server(tmp_path, *worker, **env):
        until(lambda: (tmp_path / "log.txt").read_text().count("succeeded in") == 20)
        assert values(mq, "orders") == []
    assert sorted(values(mq, "orders")) == sorted(f"order {number}" for number in range(20))
