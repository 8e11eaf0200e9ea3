"""`lakemq worker`: processes that are killed or stopped while they handle messages."""

import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.commands import Process
from faults.processes import until
from targets import extended_but
from unit.pages import read_blocks

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


@pytest.mark.parametrize("number", extended_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM]))
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


@pytest.mark.extended
def test_two_workers_in_the_threads_of_a_process_stop_together_when_it_is_terminated(
    path: Path, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of the page, whose namespace is another one here."""
    folder = path.parent
    (folder / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(folder)
    start("serve").wait_for_line("serves")
    program = read_blocks("workers.md", "python")[2]
    program = program.replace("data/shop", str(path)).replace("import ship", "import handle as ship")
    with lakemq.connect(str(path)) as mq:
        mq.topics.create("orders", partitions=4)
        with mq.producer() as producer:
            for n in range(COUNT):
                producer.send("orders", f"order-{n}")
        process = Process(sys.executable, "-c", "import logging; logging.basicConfig(level=20)\n" + program)
        try:
            process.wait_for_line("order-", "out")
            until(lambda: len(read_handled(folder)) >= 10, "messages of both")
            process.signal(signal.SIGTERM)
            assert process.wait_for_exit() == 0, process.err
            for group in "ship", "journal":
                process.wait_for_line(f"The worker of group {group} has stopped")
            handled = Counter(value for _, value in read_handled(folder))
            until(lambda: mq.groups.members("ship") == [], "the end of the members")
        finally:
            process.kill()
        assert set(handled.values()) == {1}
        assert sum(row.lag for row in mq.groups.lag("ship")) == COUNT - len(handled)
