"""The service of docs/asyncio.md, with two workers: one is killed under load."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from unit.pages import read_blocks
from unit.served import served, until, values

from lakemq.testing import wait_until_idle

pytestmark = pytest.mark.extended

CLIENTS = 8


@contextmanager
def run_service(folder: Path, namespace: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    (folder / "service.py").write_text(read_blocks("asyncio.md", "python")[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "service:app", "--workers", "2", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], cwd=folder, env={**os.environ, "SHOP": namespace})
    try:
        yield process, f"http://127.0.0.1:{port}/orders"
    finally:
        process.kill()
        process.wait()


class Load:
    """Clients that place orders, each one after the other."""

    def __init__(self, url: str) -> None:
        self.accepted: list[str] = []
        self._url, self._stop = url, threading.Event()
        self._threads = [threading.Thread(target=self._place_orders, args=(client,)) for client in range(CLIENTS)]

    def _place_orders(self, client: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                if httpx.post(self._url, content=f"{client}-{number}", timeout=30).status_code == 201:
                    self.accepted.append(f"{client}-{number}")
            except httpx.HTTPError:  # the worker was killed: the client does not know
                continue

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_service_whose_shipping_has_failed_ships_again(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("orders", 4)
        mq.groups.create("ship", {"group.protocol": "queue", "max.redelivery.count": -1})
        with run_service(tmp_path, mq.namespace.path):
            until(lambda: len(mq.groups.members("ship")) == 2)
            failed = {member.member_id for member in mq.groups.members("ship")}
            with mq.producer() as producer:
                for number in range(40):  # `shipped` is missing
                    producer.send("orders", f"order {number}", key=f"customer-{number}")
            until(lambda: failed.isdisjoint(member.member_id for member in mq.groups.members("ship")))
            mq.topics.create("shipped", 1)
            wait_until_idle(mq, "ship", 60)
        assert set(values(mq, "shipped")) == set(values(mq, "orders"))


def test_a_service_loses_no_order_when_one_of_two_workers_is_killed(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("orders", 4)
        mq.topics.create("shipped", 1)
        mq.groups.create("ship", {"group.protocol": "queue"})
        with run_service(tmp_path, mq.namespace.path) as (process, url):
            until(lambda: len(mq.groups.members("ship")) == 2)
            with Load(url) as load:
                until(lambda: len(load.accepted) > 20)
                victim, count = mq.groups.members("ship")[0], len(load.accepted)
                os.kill(int(victim.member_id.split("-")[-2]), signal.SIGKILL)
                until(lambda: len(load.accepted) > count + 40)
            wait_until_idle(mq, "ship", 60)
            assert victim.member_id not in [member.member_id for member in mq.groups.members("ship")]
            process.terminate()
            assert process.wait(60) == 0
        assert mq.groups.members("ship") == []
        orders = values(mq, "orders")
        assert set(load.accepted) <= set(orders)
        assert len(orders) == len(set(orders))
        assert set(values(mq, "shipped")) == set(orders)
