"""`lakemq consume`: each message of a group is printed by one command, once."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from targets import extended_but
from typer.testing import Result
from unit.served import Lakemq, new_name, new_topic, send, until

import lakemq
from lakemq.engine.client.connection import Connection

pytestmark = pytest.mark.slow


def printed(result: Result) -> list[Any]:
    return [json.loads(line)["value"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("protocol", extended_but(["queue"], ["queue", "cooperative"]))
def test_printed_messages_are_committed(mq: Connection, lake: Lakemq, protocol: str) -> None:
    topic, group = new_topic(mq), new_name("g")
    send(mq, topic, "a", "b", "c")
    how = ("consume", topic, "--group", group, "--protocol", protocol, "--output", "json")
    assert printed(lake(*how, "--limit", "2")) == ["a", "b"]
    assert printed(lake(*how, "--timeout-ms", "300")) == ["c"]
    assert printed(lake(*how, "--timeout-ms", "0")) == []
    assert mq.groups.describe(group).lag == 0


def test_consume_joins_an_existing_group_by_its_protocol(mq: Connection, lake: Lakemq) -> None:
    topic, group = new_topic(mq), new_name("g")
    mq.groups.create(group, {"group.protocol": "cooperative"})
    send(mq, topic, "a")
    lake("consume", topic, "--group", group, "--limit", "1")
    assert mq.groups.describe(group).protocol == "cooperative"
    stderr = lake("consume", topic, "--group", group, "--protocol", "queue", code=1).stderr
    assert "INCONSISTENT_GROUP_PROTOCOL" in stderr


@pytest.mark.extended
@pytest.mark.parametrize("protocol", extended_but(["queue"], ["queue", "cooperative"]))
def test_until_end_stops_when_the_group_has_read_all(mq: Connection, lake: Lakemq, protocol: str) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    send(mq, topic, *[f"{n}" for n in range(5)])
    how = ("consume", topic, "--group", group, "--protocol", protocol, "--output", "json", "--until-end")
    first = printed(lake(*how, "--limit", "3"))
    assert len(first) == 3
    assert sorted(first + printed(lake(*how))) == ["0", "1", "2", "3", "4"]
    assert printed(lake(*how)) == []


def test_consume_warns_of_partitions_that_others_own(mq: Connection, lake: Lakemq) -> None:
    topic, group = new_topic(mq, 1), new_name("g")
    with mq.consumer(group, topics=[topic], protocol="cooperative", auto_offset_reset="earliest") as holder:
        until(lambda: bool(holder.poll() or holder.assignment()))
        send(mq, topic, "a", "b")
        stderr = lake("consume", topic, "--group", group, "--timeout-ms", "100").stderr
        assert "2 unread offsets in 1 partitions that this member does not own" in stderr


def test_consume_of_a_missing_topic_or_with_wrong_options_is_refused(mq: Connection, lake: Lakemq) -> None:
    assert "UNKNOWN_TOPIC_OR_PARTITION" in lake("consume", "nobody-knows-it", "--group", "g", code=1).stderr
    topic = new_topic(mq)
    for wrong in (["--from", "noon"], ["--protocol", "chaotic"]):
        assert "INVALID" in lake("consume", topic, "--group", "g", *wrong, code=1).stderr


@pytest.mark.extended
def test_interrupt_ends_consume_and_its_membership(leaderless: str) -> None:
    """The command serves by itself if no sequencer leads."""
    command = [
        sys.executable,
        "-m",
        "lakemq.jobs.cli",
        "--path",
        leaderless,
        "consume",
        "t",
        "--group",
        "g",
        "--follow",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert [line.split()[-1] for line in lines] == ["value", "there"]
        with lakemq.connect(leaderless) as mq:
            until(lambda: mq.groups.describe("g").lag == 0)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            until(lambda: mq.groups.members("g") == [])
