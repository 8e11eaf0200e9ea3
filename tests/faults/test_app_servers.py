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


ORDERS = [f"order {number}" for number in range(20)]
CELERY = ["celery", "--app", "tasks", "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO"]


def queue_orders(mq: Connection, folder: Path, program: str) -> dict[str, str]:
    """Write the program, give a broker in files a task for each order, and return the environment of both."""
    options = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
    (folder / "tasks.py").write_text(f"{program}\napp.conf.broker_transport_options = {options!r}\n")
    (folder / "queue").mkdir()
    env = {"SHOP": mq.namespace.path, "BROKER": "filesystem://"}
    send = f"import tasks\nfor order in {ORDERS}: tasks.place_order.delay(order)"
    subprocess.run([sys.executable, "-c", send], cwd=folder, env={**os.environ, **env}, check=True)
    assert len([*(folder / "queue").iterdir()]) == len(ORDERS)
    return env


def test_tasks_of_celery_store_each_order_and_its_processes_send_the_rest_when_they_stop(
    mq: Connection, orders: None, tmp_path: Path
) -> None:
    (program,) = read_blocks("processes.md", "python celery")
    program = program.replace("connect().producer()", "connect().producer(linger_ms=60_000)")
    env = queue_orders(mq, tmp_path, program)
    with run_server(tmp_path, *CELERY, **env):
        until(lambda: (tmp_path / "log.txt").read_text().count("succeeded in") == 20)
        assert values(mq, "orders") == []
    assert sorted(values(mq, "orders")) == sorted(ORDERS)


# Order 3 kills its process before its message is sent for sure, and order 4 after that. Order 5 waits for the test.
DYING = """
import signal, time
from pathlib import Path

def reach(moment, order):
    place = Path(f"{order} {moment}")
    if place.name not in ("order 3 sent", "order 4 flushed", "order 5 flushed") or place.exists():
        return
    place.touch()
    if order != "order 5":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(6_000):
        if Path("may end").exists():
            break
        time.sleep(0.01)

"""


def test_no_order_is_lost_when_processes_of_celery_are_killed_and_it_is_stopped_while_tasks_run(
    mq: Connection, orders: None, tmp_path: Path
) -> None:
    program, late = (read_blocks("processes.md", f"{language} celery")[0] for language in ("python", "py"))
    begin, end = program.index("@app.task"), program.index("@worker_process_shutdown")
    send = '    producer().send("orders", order)\n'
    assert late.endswith(f"{send}    producer().flush()\n")
    late = late.replace(send, f"{send}    reach('sent', order)\n") + "    reach('flushed', order)\n\n\n"
    env = queue_orders(mq, tmp_path, f"{program[:begin]}{DYING}{late}{program[end:]}")
    with run_server(tmp_path, *CELERY, **env) as worker:
        until(lambda: (tmp_path / "order 5 flushed").exists())
        worker.send_signal(signal.SIGTERM)
        until(lambda: "Warm shutdown" in (tmp_path / "log.txt").read_text())
        (tmp_path / "may end").touch()
        assert worker.wait(END_S) == 0
    with run_server(tmp_path, *CELERY, **env):
        until(lambda: len([*tmp_path.glob("order *")]) == 3 and set(values(mq, "orders")) == set(ORDERS))
