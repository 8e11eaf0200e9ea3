"""`lakemq worker`: processes that are killed or stopped while they handle messages."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.commands import Process
from faults.processes import until

import lakemq

HANDLER = """
import os, time

def handle(message):
    with open("handled.txt", "a") as file:
        file.write(f"{os.getpid()} {message.value.decode()}\\n")
    time.sleep(0.02)
"""
COUNT = 200


def read_handled(folder: Path) -> list[list[str]]:
    path = folder / "handled.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_message_is_lost_when_one_of_two_workers_is_killed_or_stopped(
    path: Path, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    folder = path.parent
    (folder / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(folder)
    start("serve").wait_for_line("serves")
    with lakemq.connect(str(path)) as mq:
        mq.topics.create("orders", partitions=4)
        command = ("worker", "shop:handle", "--group", "ship", "--topics", "orders", "--concurrency", "4")
        workers = [start(*command), start(*command)]
        for worker in workers:
            worker.wait_for_line("has started")
        until(lambda: len(mq.groups.members("ship")) == 2, "two members")
        with mq.producer() as producer:
            for n in range(COUNT):
                producer.send("orders", f"order-{n}", key=f"customer-{n % 20}")
        until(lambda: len(read_handled(folder)) >= COUNT // 4, "a quarter of the messages")
        workers[0].signal(number)
        until(lambda: sum(row.lag for row in mq.groups.lag("ship")) == 0, "the acknowledgement of all messages")
        handled = Counter(value for _, value in read_handled(folder))
        assert set(handled) == {f"order-{n}" for n in range(COUNT)}
        if number == signal.SIGTERM:
            assert set(handled.values()) == {1}
            workers[0].wait_for_line("has stopped")
        else:  # what it had in hand, and acknowledgements on their way
            assert sum(handled.values()) - COUNT <= 40
        workers[1].signal(signal.SIGTERM)
        workers[1].wait_for_line("has stopped")
        assert not mq.dead_letters.counts()
