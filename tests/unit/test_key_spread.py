"""The spread of keys over partitions: exact counts of the newest messages, and warnings at twice the fair share."""

import json
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import Result
from unit.served import new_topic, run_lakemq

from lakemq.engine.client.connection import Connection
from lakemq.jobs.doctor.namespace import check_spread
from lakemq.jobs.key_spread import KeySpread, PartitionSpread

# -- warnings -------------------------------------------------------------------------------------------


def make_spread(*partitions: tuple[int, int, int, int]) -> KeySpread:
    """Return partitions with these numbers of messages, keys, bytes, and messages of the most frequent key."""
    spreads = tuple(
        PartitionSpread(number, messages, keys, size_bytes, b"secret" if keys else None, hot_key_messages)
        for number, (messages, keys, size_bytes, hot_key_messages) in enumerate(partitions)
    )
    count = sum(partition.messages for partition in spreads)
    return KeySpread("t", spreads, count, count)


EVEN = (1_000, 100, 10_000, 20)


@pytest.mark.parametrize(
    ("partition", "warned"),
    [
        (EVEN, []),
        ((1_000, 299, 10_000, 20), []),
        ((1_000, 300, 10_000, 20), ["50% of the keys; a fair share is 25%"]),
        ((1_000, 100, 29_999, 20), []),
        ((1_000, 100, 30_000, 20), ["50% of the bytes; a fair share is 25%"]),
        ((5_000, 100, 50_000, 1_999), ["62% of the bytes"]),
        ((5_000, 100, 50_000, 2_000), ["62% of the bytes", "One key has 25% of the messages of t, in partition 0"]),
    ],
)
def test_partition_with_twice_its_fair_share_is_warned_of(
    partition: tuple[int, int, int, int], warned: list[str]
) -> None:
    warnings = make_spread(partition, EVEN, EVEN, EVEN).warnings()
    assert len(warnings) == len(warned)
    assert all(text in warning for text, warning in zip(warned, warnings, strict=True))
    assert "secret" not in str(warnings)


@pytest.mark.parametrize(
    "partitions",
    [[(1_000, 100, 10_000, 1_000)], [(199, 100, 1_990, 199), (0, 0, 0, 0)], [(0, 0, 0, 0)] * 3],
    ids=["one partition", "few messages", "nothing"],
)
def test_no_warning_comes_for_small_or_single_partitions(partitions: list[tuple[int, int, int, int]]) -> None:
    assert make_spread(*partitions).warnings() == []


# -- counts ---------------------------------------------------------------------------------------------


def rows(partition: int, keys: list[str | None], value: str = "v") -> pa.Table:
    return pa.table(
        {"key": pa.array(keys, pa.string()), "value": [value] * len(keys), "partition": [partition] * len(keys)}
    )


# -- at the command line ----------------------------------------------------------------------------------


def describe(mq: Connection, topic: str, *options: str, output: str = "json") -> Result:
    return run_lakemq(mq.namespace.path, "--output", output, "topics", "describe", topic, *options)


@pytest.mark.extended
@pytest.mark.slow
def test_command_shows_hot_keys_only_on_request(mq: Connection) -> None:
    topic = new_topic(mq, 4)
    for partition in range(4):
        mq.publish(topic, rows(partition, [f"k{partition}-{i}" for i in range(100)]))
    mq.publish(topic, rows(2, ["ann@example.org"] * 600))
    result = describe(mq, topic, "--keys")
    output: dict[str, Any] = json.loads(result.stdout)
    spread = output["key_spread"]
    assert [partition["keys"] for partition in spread["partitions"]] == [100, 100, 101, 100]
    assert [partition["messages"] for partition in spread["partitions"]] == [100, 100, 700, 100]
    assert spread["partitions"][2]["hot_key_share"] == pytest.approx(600 / 700, abs=0.001)
    assert len(spread["warnings"]) == 2
    assert all(warning in result.stderr for warning in spread["warnings"])
    assert "One key has 60% of the messages" in result.stderr
    assert "ann@" not in result.output
    assert "ann@example.org" in describe(mq, topic, "--keys", "--show-hot-keys").stdout
    table = describe(mq, topic, "--keys", output="table")
    assert "hot_key_share" in table.stdout
    assert "ann@" not in table.stdout
    assert "key_spread" not in json.loads(describe(mq, topic).stdout)
    assert describe(mq, topic).stderr == ""


@pytest.mark.slow
def test_doctor_advises_on_a_partition_with_twice_its_share(mq: Connection) -> None:
    topic, few = new_topic(mq, 3), new_topic(mq, 3)
    for partition, count in ((0, 300), (1, 30), (2, 30)):
        mq.publish(topic, rows(partition, ["k"] * count))
    mq.publish(few, rows(0, ["k"] * 299))
    found = check_spread(mq).found
    assert f"partition 0 of {topic} has 83% of the offsets, fair is 33%" in found
    assert few not in found
