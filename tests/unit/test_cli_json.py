"""`--output json` prints one JSON object a line on stdout, and nothing else, whatever the command."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner
from unit.served import until

import lakemq
from lakemq.jobs.cli import app

# `spark-sql` prints what Spark prints; `serve` and `console` print nothing; tests/spark/test_mirror.py runs the mirror.
ELSEWHERE = {"console", "spark-sql", "serve", "worker", "mirror", "backup", "restore", "fsck"}

# No command builds on another one: each may run alone, in any process.
COMMANDS = {
    "init": [],
    "step": ["--wait-ms", "0"],
    "catalog": [],
    "doctor": ["--no-spark"],
    "status": [],
    "report": ["-o", "/dev/null"],
    "offsets": ["orders"],
    "bench produce": ["benched", "--messages", "5"],
    "bench consume": ["orders", "--messages", "1"],
    "topics create": ["made", "--partitions", "2"],
    "topics list": [],
    "topics describe": ["orders"],
    "topics alter": ["orders", "--config", "retention.ms=1000000000"],
    "topics delete-records": ["orders", "--before", "0=1", "--yes"],
    "topics delete": ["doomed", "--yes"],
    "publish": ["--topic", "orders", "--format", "lines"],
    "fetch": ["orders"],
    "tail": ["orders"],
    "consume": ["orders", "--group", "g", "--limit", "1"],
    "sql": ["SELECT count(*) FROM log"],
    "describe-producers": ["orders", "0"],
    "transactions list": [],
    "transactions describe": ["txn"],
    "transactions find-hanging": [],
    "transactions abort": ["txn-open"],
    "delayed list": [],
    "delayed describe": ["orders"],
    "delayed cancel": ["--topic", "orders", "--dry-run"],
    "delayed purge": ["orders", "--dry-run"],
    "delayed reschedule": ["RECEIPT", "--delay-ms", "1000000"],
    "delayed release": [],
    "schedules list": [],
    "schedules create": ["made", "orders", "--cron", "0 8 * * *"],
    "schedules pause": ["daily"],
    "schedules resume": ["paused"],
    "schedules delete": ["forgotten", "--yes"],
    "dead-letters list": [],
    "dead-letters show": ["orders.dlq"],
    "dead-letters redrive": ["orders.dlq", "--dry-run"],
    "dead-letters purge": ["orders.dlq", "--dry-run"],
    "groups list": [],
    "groups describe": ["done"],
    "groups members": ["done"],
    "groups assignments": ["done"],
    "groups create": ["new"],
    "groups alter": ["offsets", "--config", "max.redelivery.count=3"],
    "groups remove-members": ["done", "--instance", "away"],
    "groups handoffs": ["done"],
    "groups lag": ["done"],
    "groups reset-offsets": ["offsets", "--all-topics", "--to-earliest", "--export"],
    "groups delete-offsets": ["offsets", "--topic", "orders", "--yes"],
    "groups delete": ["forgotten", "--yes"],
}


def commands(group: Any, words: str = "") -> Iterator[str]:
    """Yield the words of every command of the tree."""
    for name, command in group.commands.items():
        full = f"{words} {name}".strip()
        yield from commands(command, full) if hasattr(command, "commands") else (full,)


def test_every_command_has_a_case_of_json_output() -> None:
    assert {*commands(typer.main.get_command(app))} - ELSEWHERE == {*COMMANDS}


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace in which each command has something to show; nobody serves it."""
    path = tmp_path_factory.mktemp("json") / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("benched")
        for topic in ("orders", "doomed"):
            mq.topics.create(topic)
            mq.publish(topic, pa.table({"key": ["a"] * 5, "value": [b"1", b"\xff", b"3", b"4", b"5"]}))
        with mq.consumer("done", topics=["orders"], protocol="queue", auto_offset_reset="earliest") as consumer:
            first, *_, last = consumer.poll(timeout_ms=30_000)
            consumer.reject(first, error="broken")
            consumer.ack(last)
            consumer.flush()
        until(lambda: any(topic.topic == "orders.dlq" for topic in mq.topics.list()))
        with mq.consumer("offsets", assign=["orders"]) as consumer:
            consumer.commit({("orders", 0): 3})
        mq.groups.create("forgotten")
        away = mq.consumer("done", topics=["orders"], protocol="queue", instance_id="away")
        away.poll(timeout_ms=10_000)
        away.close()
        mq.delayed.schedule("orders", "later", delay_ms=10**9)
        for name in ("daily", "paused", "forgotten"):
            mq.schedules.create(name, "orders", cron="0 8 * * *")
        mq.schedules.pause("paused")
        with mq.transaction("txn") as txn:
            txn.publish("orders", pa.table({"value": ["6"]}))
        subprocess.run([sys.executable, "-c", LEAVE_OPEN, str(path)], timeout=120, check=True)
    return path


LEAVE_OPEN = """
import os, sys, lakemq
producer = lakemq.connect(sys.argv[1]).producer(transactional_id="txn-open")
producer.init_transactions()
producer.begin_transaction()
producer.send("orders", "7").result(60)
os._exit(0)
"""
"""A process that dies with an open transaction, which `transactions abort` then ends."""


@pytest.mark.extended
@pytest.mark.slow
def test_commands_print_an_object_per_line_and_nothing_else(namespace: Path) -> None:
    failures = []
    for command, options in COMMANDS.items():
        words = [schedule_message(namespace) if word == "RECEIPT" else word for word in options]
        arguments = ["--path", str(namespace), *command.split(), *words, "--output", "json"]
        done = CliRunner().invoke(app, arguments, input=b"text\n")
        is_right = all(OBJECT.fullmatch(line) and json.loads(line) for line in done.stdout.splitlines())
        is_there = bool(done.stdout) or command in MAY_BE_EMPTY
        if done.exit_code not in (0, 1) or not (is_right and is_there):  # 1: the doctor has findings
            failures.append((command, done.exit_code, done.output))
    assert failures == []


OBJECT = re.compile(r"\{.*\}")
MAY_BE_EMPTY = {
    "groups handoffs",
    "groups members",
    "groups assignments",
    "transactions find-hanging",
    "describe-producers",
}


def schedule_message(path: Path) -> str:
    """Schedule a message and return its receipt."""
    with lakemq.connect(str(path)) as mq, mq.serving():
        return mq.delayed.schedule("orders", "again", delay_ms=10**9)
