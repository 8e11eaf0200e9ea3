"""A small application, written from the pages alone, does its work exactly once, although all its processes are
killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import PATIENCE_S, until

import lakemq

pytestmark = pytest.mark.nightly

SHOP = Path(__file__).with_name("shop.py")
BATCHES = 6


class Application:
    """The processes of the application, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.path, self._folder = str(folder / "data"), folder
        self._environment = {**os.environ, "SHOP_PATH": self.path}
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, str(SHOP), *words], "-".join(words))

    def serve(self) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, "-m", "lakemq.jobs.cli", "--path", self.path, "serve"], "serve")

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{log}.out").open("ab") as out, (self._folder / f"{log}.err").open("ab") as errors:
            process = subprocess.Popen(command, env=self._environment, stdout=out, stderr=errors)
        self.processes.append(process)
        return process

    def log(self, name: str) -> list[dict[str, str]]:
        """Return the JSON lines of a log; the last one of a killed process may be cut."""
        lines = (self._folder / f"{name}.out").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def read(self, topic: str) -> Counter[str]:
        """Return how often each value is in a topic."""
        with lakemq.connect(self.path) as mq:
            return Counter(message.value.decode() for message in mq.fetch(topic))

    def run(self, *words: str) -> None:
        process = self.start(*words)
        assert process.wait(PATIENCE_S) == 0, (self._folder / f"{'-'.join(words)}.err").read_text()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Application]:
    application = Application(tmp_path)
    yield application
    for process in application.processes:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.timeout(1_800)
def test_everything_is_done_once_though_everything_is_killed(shop: Application) -> None:
    shop.run("setup")
    # a producer without a sequencer waits, and does not report success
    till = shop.start("sell", "a", str(BATCHES))
    time.sleep(2)
    assert till.poll() is None
    assert shop.read("orders").total() == 0

    server = shop.serve()
    workers = [shop.start("ship", name) for name in "12"]
    until(lambda: shop.read("orders").total() >= 20, "two batches of till a")
    till.kill()
    tills = [shop.start("sell", name, str(BATCHES)) for name in "ab"]
    until(lambda: shop.read("shipments").total() >= 20, "shipments")
    workers[0].kill()
    workers += [shop.start("ship", name) for name in "3456"]  # more than there are partitions
    billing = shop.start("bill")
    until(lambda: shop.read("invoices").total() > 0 or billing.poll() is not None, "invoices")
    billing.kill()
    server.kill()
    time.sleep(2)  # no sequencer serves now
    server = shop.serve()
    assert [till.wait(PATIENCE_S) for till in tills] == [0, 0]

    orders = {f"{till}-{batch}-{n}" for till in "ab" for batch in range(BATCHES) for n in range(10)}
    assert shop.read("orders") == Counter(orders)
    # run again as a scheduler does, until a run reports no lag
    until(lambda: bill_the_rest(shop), "a billing run without lag")
    assert shop.read("invoices") == Counter(orders)
    until(lambda: shop.read("shipments").total() >= len(orders), "all shipments")
    assert shop.read("shipments") == Counter(orders)
    cancelled = {
        entry["order"]
        for name in "ab"
        for entry in shop.log(f"sell-{name}-{BATCHES}")
        if entry["outcome"] == "cancelled"
    }
    until(lambda: shop.read("reminders").total() >= len(orders - cancelled), "the reminders that are left")
    # a killed till may have cancelled a reminder without a note of it
    reminded = shop.read("reminders")
    assert max(reminded.values()) == 1
    assert not cancelled & reminded.keys()
    assert len(orders - cancelled - reminded.keys()) <= 4

    server.terminate()
    assert server.wait(PATIENCE_S) == 0


def bill_the_rest(shop: Application) -> bool:
    shop.run("bill")
    return int(shop.log("bill")[-1]["lag"]) == 0
