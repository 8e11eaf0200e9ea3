"""The programs of `examples/` as processes that a test waits for and kills."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from faults.processes import PATIENCE_S, until

import lakemq

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = "lease.ms: 1000\nrebalance.delay.ms: 200\n"


class Program:
    """A running program, and the lines that it has printed."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        self._log = log
        environment = {**os.environ, "LAKEMQ_CONF": str(folder / "lakemq.yaml")}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        return self._log.read_text()

    def wait_for(self, word: str) -> None:
        """Wait until the program has printed the word. Fails if it ends first."""
        until(lambda: word in self.text() or self._process.poll() is not None, f"{word!r} in {self.text()}")
        assert word in self.text(), self.text()

    def kill(self) -> None:
        """Kill the program with SIGKILL. Fails if it has ended before."""
        assert self._process.poll() is None, f"it has ended already: {self.text()}"
        self.stop()
        assert self._process.returncode == -signal.SIGKILL

    def stop(self) -> None:
        """Make sure that the program does not run any more."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def wait_for_success(self) -> None:
        """Wait until the program has ended, without an error."""
        assert self._process.wait(PATIENCE_S) == 0, self.text()


class Shop:
    """A namespace with the topic `orders`, and the programs that were started on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "shop")
        self._programs: list[Program] = []
        (folder / "lakemq.yaml").write_text(CONFIG)
        with lakemq.connect(self.path, create=True) as mq, mq.serving():
            mq.topics.create("orders", partitions=4)

    def order(self, count: int, prefix: str = "order", **fields: object) -> list[str]:
        """Publish orders, and return their ids."""
        orders = [
            {
                "id": f"{prefix}-{number}",
                "customer": f"customer-{number % 5}",
                "amount": number,
                "product": "tea",
                **fields,
            }
            for number in range(count)
        ]
        with lakemq.connect(self.path) as mq, mq.serving(), mq.producer() as producer:
            for order in orders:
                producer.send("orders", json.dumps(order), key=str(order["customer"]))
        return [str(order["id"]) for order in orders]

    def serve(self) -> Program:
        return self._start(["-m", "lakemq.jobs.cli", "--path", self.path, "serve"], "serve")

    def start(self, example: str, *arguments: str) -> Program:
        """Start one of the examples on this namespace."""
        return self._start([str(EXAMPLES / f"{example}.py"), self.path, *arguments], example)

    def _start(self, command: Sequence[str], name: str) -> Program:
        program = Program(command, self.folder, self.folder / f"{name}-{len(self._programs)}.log")
        self._programs.append(program)
        return program

    def read(self, topic: str) -> Counter[str]:
        """Return how often each value is in a topic."""
        with lakemq.connect(self.path) as mq:
            return Counter(message.value.decode() for message in mq.fetch(topic))

    def stop(self) -> None:
        for program in self._programs:
            program.stop()
