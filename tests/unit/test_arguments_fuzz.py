"""Every public call with wrong types and values: it works, or an error of ours refuses it and nothing has changed.

Set HYPOTHESIS_PROFILE=long for a longer run.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.served import served, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.position_consumer import AssignedConsumer
from lakemq.engine.client.delayed import DelayedMessages
from lakemq.engine.client.groups.groups import Groups
from lakemq.engine.client.schedules import Schedules
from lakemq.engine.client.topics import Topics
from lakemq.engine.client.transactions.operations import Transactions
from lakemq.errors import LakeMQError

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TOPIC, OTHER, WITH_SCHEMA, GROUP = "t", "u", "v", "g"
EXAMPLES = {"long": 20_000}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 200)


class Odd:
    """An object without a readable representation."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


TEXTS = [None, "", "4", TOPIC, "earliest", "\ud800", "a\0b", "x" * 300, b"t", np.str_(TOPIC)]
NUMBERS = [0, 1, -1, 2**31, 2**63, -(2**70), 2**20_000, 1.0, float("nan"), True, np.int64(1)]
TIMES = [pd.NaT, datetime(1970, 1, 1), datetime.max, datetime.min.replace(tzinfo=UTC), date(2024, 1, 1)]
LISTS = [[0], ["t"], [None], [("t", 0)], (0, 1), {1, 2}, np.array([0, 1]), pa.array(["v"])]
MAPPINGS = [{0: 1}, {"0": 1}, {None: None}, {7: 0}, {("t", 0): 1}, {("t", 0): 2**70}, {"t": 0}, {"\ud800": 1}]
COLUMNS: list[dict[str, Any]] = [{"value": ["v"]}, {"value": [1]}, {"key": ["k"]}, {"value": pa.nulls(2)}]
FRAMES: list[dict[Any, Any]] = [{"value": ["v", None]}, {"value": ["v", 1]}, {("a", "b"): [1]}]
VALUES = [*TEXTS, *NUMBERS, *TIMES, *LISTS, *MAPPINGS, {"retention.ms": "x"}, object(), Odd(), len]
ODD: list[Callable[[], Any]] = [
    *(lambda value=value: copy(value) for value in VALUES),
    *(lambda columns=columns: pa.table(columns) for columns in COLUMNS),
    *(lambda columns=columns: pd.DataFrame(columns) for columns in FRAMES),
    lambda: (n for n in range(2)),
    lambda: pa.table([pa.array(["v"]), pa.array(["w"])], names=["value", "value"]),
]

PUBLIC = {
    "": Connection,
    "topics.": Topics,
    "groups.": Groups,
    "transactions.": Transactions,
    "delayed.": DelayedMessages,
    "schedules.": Schedules,
    "consumer.": AssignedConsumer,
}
TESTED_ELSEWHERE = {"producer", "transaction", "run_worker"}
"""`test_producer.py`, `test_transaction_scope.py` and `test_worker.py` test arguments of writers and workers."""


def list_parameters(call: str) -> list[str]:
    prefix, _, method = call.rpartition(".")
    function = getattr(PUBLIC[f"{prefix}." if prefix else ""], method)
    named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return named[1:]


def rows() -> pa.Table:
    return pa.table({"value": ["v"], "key": ["k"], "n": [1]})


def calls(mq: Connection) -> list[tuple[str, dict[str, Any]]]:
    """Return public calls with right arguments."""
    receipt = f"lmq1:{mq.namespace.namespace_id}:1.2.3.4"
    far: dict[str, Any] = {"delay_ms": 10**10}
    mine: dict[str, Any] = {"isolation": "read_committed", "auto_offset_reset": "latest", "heartbeat_interval_ms": 1000}
    mine |= {"topics": [TOPIC], "max_poll_interval_ms": 5000, "session_timeout_ms": 6000}
    reading: dict[str, Any] = {
        "isolation": "read_committed",
        "topics": [],
        "assign": [TOPIC],
        "auto_offset_reset": "earliest",
    }
    changed: dict[str, Any] = {"partitions": 2, "config": {}, "subscriptions": []}
    written: dict[str, Any] = {"data": rows(), "key": "key", "value": "value", "order_by": "n", "on_error": "fail"}
    return [
        ("topics.describe", {"topic": TOPIC}),
        ("topics.create", {"topic": TOPIC, "exist_ok": True, **changed}),
        ("topics.alter", {"topic": TOPIC, **changed}),
        ("topics.schema", {"topic": WITH_SCHEMA, "version": 1}),
        ("topics.delete", {"topic": "nobody"}),
        ("topics.delete_records", {"topic": TOPIC, "before": {0: 0}}),
        ("publish", {"topic": TOPIC, **written}),
        ("publish", {"topic": TOPIC, "data": rows(), "txn_app_id": "app", "txn_version": 1}),
        ("fetch", {"topic": TOPIC, "partitions": [0]}),
        ("tail", {"topic": TOPIC}),
        ("beginning_offsets", {"topic": TOPIC}),
        ("end_offsets", {"topic": TOPIC}),
        ("offsets_for_times", {"topic": TOPIC, "times": {0: 0}}),
        ("consumer", {"group": GROUP, **reading}),
        (
            "consumer",
            {"group": "members", "protocol": "cooperative", "assignor": "range", "client_id": "client", **mine},
        ),
        ("consumer", {"group": "queued", "protocol": "queue", "ack_mode": "explicit", **mine}),
        ("stream", {"group": GROUP, "topics": [TOPIC]}),
        ("consumer.pause", {"partitions": [(TOPIC, 0)]}),
        ("consumer.resume", {"partitions": [(TOPIC, 0)]}),
        ("consumer.poll", {"max_records": 1, "timeout_ms": 0, "poll_ms": 1}),
        ("consumer.until_end", {"max_records": 1, "timeout_ms": 0}),
        ("consumer.seek", {"topic": TOPIC, "partition": 0, "offset": 0}),
        ("consumer.position", {"topic": TOPIC, "partition": 0}),
        ("consumer.commit", {"what": {(TOPIC, 0): 0}}),
        ("groups.all", {}),
        *((f"groups.{what}", {"group": GROUP}) for what in ("describe", "lag")),
        *((f"groups.{what}", {"group": "members"}) for what in ("stalls", "members", "assignments", "remove_members")),
        ("groups.create", {"group": "made", "config": {}}),
        ("groups.alter", {"group": "members", "config": {"group.assignor": None}}),
        ("groups.delete", {"group": "nobody"}),
        ("groups.delete_offsets", {"group": GROUP, "topics": [OTHER, (OTHER, 0)]}),
        ("groups.reset_offsets", {"group": GROUP, "topics": [TOPIC], "to": "earliest"}),
        ("transactions.all", {}),
        ("transactions.describe", {"transactional_id": "x"}),
        ("transactions.find_hanging", {"max_open_ms": 0}),
        ("transactions.describe_producers", {"topic": TOPIC, "partition": 0}),
        ("transactions.abort", {"transactional_id": "x"}),
        ("delayed.schedule", {"topic": TOPIC, "value": "v", "key": "k", **far}),
        ("delayed.cancel", {"receipt": receipt}),
        ("delayed.cancel_all", {"receipts": []}),
        ("delayed.cancel_where", {"topic": TOPIC, "key": "nobody", "predicate": "partition = 7"}),
        ("delayed.reschedule", {"receipt": receipt, **far}),
        ("delayed.all", {}),
        ("schedules.create", {"name": "s", "topic": TOPIC, "cron": "0 0 29 2 *", "value": "v"}),
        *((f"schedules.{what}", {"name": "s"}) for what in ("describe", "pause", "resume", "delete")),
        ("step_until_idle", {"wait_ms": 0}),
        ("sql", {"text": "SELECT 1"}),
    ]


def make_call(mq: Connection, name: str, arguments: dict[str, Any]) -> None:
    """Make the call, and use its result. A wait is short, however long it may be."""
    for wait in {"timeout_ms", "wait_ms"} & arguments.keys():
        arguments[wait] = min(arguments[wait], 1) if isinstance(arguments[wait], int) else arguments[wait]
    with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
        method = getattr(consumer, name[9:]) if name.startswith("consumer.") else attrgetter(name)(mq)
        result = method(**arguments)
        if name == "consumer":
            with result:
                result.poll()
        elif name == "consumer.until_end":
            list(result)
        elif name == "fetch":
            result.to_arrow()


def test_each_public_call_is_drawn(mq: Connection) -> None:
    drawn = {name for name, _ in calls(mq)}
    for prefix, cls in PUBLIC.items():
        for name, _ in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and list_parameters(prefix + name):
                assert prefix + name in drawn | TESTED_ELSEWHERE


def make_topics(mq: Connection) -> None:
    """Create the topics again that a call has deleted as it was asked to."""
    existing = {topic.topic for topic in mq.topics.list()}
    for topic in {TOPIC, OTHER} - existing:
        mq.topics.create(topic, partitions=2)
        mq.publish(topic, rows())
    if WITH_SCHEMA not in existing:
        mq.topics.create(WITH_SCHEMA, config={"schema": "id BIGINT"})


def has_nothing_due_soon(mq: Connection) -> bool:
    """Return whether no accepted message is about to enter the log."""
    return all(waiting.first_due_ms > time.time() * 1000 + 5_000 for waiting in mq.delayed.all())


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("fuzz")) as connection:
        make_topics(connection)
        yield connection


def check(mq: Connection, name: str, arguments: dict[str, Any]) -> None:
    make_topics(mq)
    before = mq.topics.list()
    try:
        make_call(mq, name, arguments)
    except LakeMQError as error:
        str(error).encode()
        assert mq.topics.list() == before, name
    else:
        if "deliver_at" in arguments:
            until(lambda: has_nothing_due_soon(mq))


REFUSED_CALLS = {"topics.delete", "groups.delete", "transactions.describe", "transactions.abort", "step_until_idle"}
"""Calls that are refused even with right arguments: the object does not exist, or another sequencer leads."""


def test_calls_work_with_right_arguments(mq: Connection) -> None:
    make_topics(mq)
    for name, arguments in calls(mq):
        if name in REFUSED_CALLS:
            with pytest.raises(LakeMQError):
                make_call(mq, name, arguments)
        else:
            make_call(mq, name, arguments)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_arguments_are_refused_or_work(mq: Connection, data: st.DataObject) -> None:
    name, right = data.draw(st.sampled_from(calls(mq)), label="call")
    parameters = st.sampled_from(sorted({*list_parameters(name), *right}))
    names = data.draw(st.sets(parameters, min_size=1, max_size=2), label="arguments")
    odd_numbers = {
        name: data.draw(st.integers(0, len(ODD) - 1), label=f"number of the odd {name}") for name in sorted(names)
    }
    check(mq, name, right | {parameter: ODD[number]() for parameter, number in odd_numbers.items()})
