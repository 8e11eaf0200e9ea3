"""Each command has examples in its help, and they work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner
from unit.served import served

from lakemq.engine.client.connection import Connection
from lakemq.errors import LakeMQError
from lakemq.jobs.cli import app, move_global_options_first
from lakemq.jobs.commands.shared.examples import EXAMPLES

pytestmark = pytest.mark.slow

RUN_ELSEWHERE = {"serve", "console", "step", "audit", "spark-sql", "bench produce", "bench consume", "init"}
"""Commands that do not end by themselves, need Spark, an object store or the lease, or take long."""

GLOBAL_OPTIONS = {"--path", "--conf", "--storage-option", "--output"}
ENDLESS_OPTIONS = {"--follow", "--watch"}


def list_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(list_commands(typer.main.get_command(app)))


def test_help_of_each_command_shows_its_examples() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    missing = []
    for words, lines in EXAMPLES.items():
        shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
        missing += [line for line in lines if line not in shown.stdout]
    assert missing == []


def test_examples_are_read_as_their_commands() -> None:
    for words, line in ((words, line) for words, lines in EXAMPLES.items() for line in lines):
        name, *arguments = shlex.split(line)
        assert name == "lakemq"
        rest = move_global_options_first(arguments)
        while rest[0] in GLOBAL_OPTIONS:
            rest = rest[2:]
        own = words.split()
        assert rest[: len(own)] == own, line
        COMMANDS[words].make_context(words, rest[len(own) :])


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace with everything that the examples name."""
    with served(tmp_path_factory.mktemp("examples")) as mq:
        for topic, partitions in (("flights", 8), ("weather", 1), ("reminders", 1), ("old-flights", 1)):
            mq.topics.create(topic, partitions)
        mq.topics.create("flights.dead", 1)
        mq.publish("flights", pa.table({"value": [b"x"] * 20, "key": [b"N%d" % i for i in range(20)]}))
        with mq.producer() as producer:
            for _ in range(10):
                producer.send("flights", b"x", partition=0)
        for group in ("alerts", "old-alerts"):
            with mq.consumer(group, topics=["flights"]) as consumer:
                consumer.commit(consumer.poll(20, timeout_ms=10_000))
        with mq.consumer(
            "loaders", topics=["flights"], instance_id="worker-3", max_poll_interval_ms=1_800_000
        ) as member:
            member.commit(member.poll(20, timeout_ms=10_000))
            yield mq  # the member goes on sending heartbeats, so that the doctor finds nothing, however long this takes


@pytest.fixture(scope="module")
def namespace(mq: Connection) -> Iterator[str]:
    """Its path, with an open transaction of `loader-1` and a message that waits."""
    mq.delayed.schedule("reminders", "later", key="N12345", delay_ms=10**9)
    with mq.producer("loader-1", transaction_timeout_ms=900_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("weather", b"open").result(30)
        yield mq.namespace.path
        with suppress(LakeMQError):  # an example has aborted it
            producer.abort_transaction()


@pytest.mark.extended
def test_examples_work(mq: Connection, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.csv").write_text("tailnum,origin\nN1,JFK\n")
    failures = []
    for line in (line for words, lines in EXAMPLES.items() if words not in RUN_ELSEWHERE for line in lines):
        arguments = shlex.split(line)[1:]
        if not ENDLESS_OPTIONS & {*arguments}:
            if "RECEIPT" in arguments:
                receipt = mq.delayed.schedule("reminders", "moved", delay_ms=10**9)
                arguments[arguments.index("RECEIPT")] = receipt
            done = CliRunner().invoke(app, ["--path", namespace, *arguments], input=b"key:value\n")
            failures += [(line, done.output, done.exception)] if done.exit_code != 0 else []
    assert failures == []
