"""Every public call with wrong types and values: it works, or an error of ours refuses it and nothing has changed.

Set HYPOTHESIS_PROFILE=long for a longer run.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
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

Arguments = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Call:
    """A public call: its name, the right arguments, and a function that makes the call with other ones."""

    name: str
    right: Arguments
    make: Callable[..., Any]


def rows() -> pa.Table:
    return pa.table({"value": ["v"], "key": ["k"], "n": [1]})


def declare(name: str) -> list[inspect.Parameter]:
    prefix, _, method = name.rpartition(".")
    function = getattr(PUBLIC[f"{prefix}." if prefix else ""], method)
    named = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return named[1:]


def right(name: str, /, **values: Any) -> Arguments:
    """Return right arguments of a call, with the defaults of those that are not given. A function makes its value."""
    defaults = {p.name: p.default for p in declare(name) if p.default is not p.empty}
    return {
        key: value if callable(value) else lambda value=value: value for key, value in {**defaults, **values}.items()
    }


def calls(mq: Connection) -> list[Call]:
    def poll(**arguments: Any) -> None:
        with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
            longest = arguments["timeout_ms"]
            consumer.poll(**{**arguments, "timeout_ms": min(longest, 1) if isinstance(longest, int) else longest})

    def until_end(**arguments: Any) -> None:
        with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
            for _ in consumer.until_end(**arguments):
                pass

    def on_consumer(*methods: str) -> Callable[..., None]:
        def call(**arguments: Any) -> None:
            with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
                for method in methods:
                    getattr(consumer, method)(**arguments)

        return call

    def consumer(**arguments: Any) -> None:
        with mq.consumer(**arguments) as consumer_made:
            consumer_made.lag()

    def member(**arguments: Any) -> None:
        mq.consumer(**arguments).close()

    def queue(**arguments: Any) -> None:
        with mq.consumer(**arguments) as consumer_made:
            consumer_made.poll()

    def wait(wait_ms: Any) -> None:
        mq.step_until_idle(min(wait_ms, 1) if isinstance(wait_ms, int) else wait_ms)

    def fetch(**arguments: Any) -> None:
        mq.fetch(**arguments).to_arrow()

    receipt = f"lmq1:{mq.namespace.namespace_id}:1.2.3.4"
    far: dict[str, Any] = {"delay_ms": 10**10}
    mine: dict[str, Any] = {"isolation": "read_committed", "auto_offset_reset": "latest", "heartbeat_interval_ms": 1000}
    mine |= {"topics": lambda: [TOPIC], "max_poll_interval_ms": 5000, "session_timeout_ms": 6000}
    as_members = {"protocol": "cooperative", "assignor": "range", "client_id": "client", **mine}
    in_queue = {"protocol": "queue", "ack_mode": "explicit", **mine}
    reading: dict[str, Any] = {"isolation": "read_committed", "default_timeout_ms": 100, "consumer_timeout_ms": 100}
    reading |= {"topics": list, "assign": lambda: [TOPIC], "auto_offset_reset": "earliest"}
    changed: dict[str, Any] = {"partitions": 2, "config": dict, "subscriptions": list}
    written: dict[str, Any] = {"data": rows, "key": "key", "value": "value", "order_by": "n", "on_error": "fail"}
    given_up = {"key": "nobody", "predicate": "partition = 7"}

    def call(name: str, /, make: Callable[..., Any] | None = None, of: str = "", **values: Any) -> Call:
        return Call(name, right(of or name, **values), make or attrgetter(of or name)(mq))

    return [
        call("topics.describe", topic=TOPIC),
        call("topics.create", topic=TOPIC, exist_ok=True, **changed),
        call("topics.alter", topic=TOPIC, **changed),
        call("topics.schema", topic=WITH_SCHEMA, version=1),
        call("topics.delete", topic="nobody"),
        call("topics.delete_records", topic=TOPIC, before=lambda: {0: 0}),
        call("publish", topic=TOPIC, **written),
        call("publish of an application", of="publish", topic=TOPIC, data=rows, txn_app_id="app", txn_version=1),
        call("fetch", fetch, topic=TOPIC, partitions=lambda: [0]),
        call("tail", lambda **arguments: mq.tail(**arguments), topic=TOPIC),
        call("beginning_offsets", topic=TOPIC),
        call("end_offsets", topic=TOPIC),
        call("offsets_for_times", topic=TOPIC, times=lambda: {0: 0}),
        call("consumer", consumer, group=GROUP, **reading),
        call("a member", member, of="consumer", group="members", **as_members),
        call("a member of a queue", queue, of="consumer", group="queued", **in_queue),
        call("stream", lambda **arguments: mq.stream(**arguments), group=GROUP, topics=lambda: [TOPIC]),
        call("consumer.pause", on_consumer("pause", "resume"), partitions=lambda: [(TOPIC, 0)]),
        call("consumer.resume", on_consumer("pause", "resume"), partitions=lambda: [(TOPIC, 0)]),
        call("consumer.poll", poll, max_records=1, timeout_ms=0, poll_ms=1),
        call("consumer.until_end", until_end, max_records=1, timeout_ms=0),
        call("consumer.seek", on_consumer("seek"), topic=TOPIC, partition=0, offset=0),
        call("consumer.position", on_consumer("position"), topic=TOPIC, partition=0),
        call("consumer.commit", on_consumer("commit"), what=lambda: {(TOPIC, 0): 0}),
        call("groups.all"),
        *(call(f"groups.{what}", group=GROUP) for what in ("describe", "lag")),
        *(call(f"groups.{what}", group="members") for what in ("stalls", "members", "assignments", "remove_members")),
        call("groups.create", group="made", config=dict),
        call("groups.alter", group="members", config=lambda: {"group.assignor": None}),
        call("groups.delete", group="nobody"),
        call("groups.delete_offsets", group=GROUP, topics=lambda: [OTHER, (OTHER, 0)]),
        call("groups.reset_offsets", group=GROUP, topics=lambda: [TOPIC], to="earliest"),
        call("transactions.all"),
        call("transactions.describe", transactional_id="x"),
        call("transactions.find_hanging", max_open_ms=0),
        call("transactions.describe_producers", topic=TOPIC, partition=0),
        call("transactions.abort", transactional_id="x"),
        call("delayed.schedule", topic=TOPIC, value="v", key="k", **far),
        call("delayed.cancel", receipt=receipt),
        call("delayed.cancel_all", receipts=list),
        call("delayed.cancel_where", topic=TOPIC, **given_up),
        call("delayed.reschedule", receipt=receipt, **far),
        call("delayed.all"),
        call("schedules.create", name="s", topic=TOPIC, cron="0 0 29 2 *", value="v"),
        *(call(f"schedules.{what}", name="s") for what in ("describe", "pause", "resume", "delete")),
        call("step_until_idle", wait, wait_ms=0),
        call("sql", text="SELECT 1"),
    ]


def test_each_public_call_is_drawn(mq: Connection) -> None:
    drawn = {call.name for call in calls(mq)}
    for prefix, cls in PUBLIC.items():
        for name, _ in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and declare(prefix + name):
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


def check(mq: Connection, call: Call, arguments: dict[str, Any]) -> None:
    make_topics(mq)
    before = mq.topics.list()
    try:
        call.make(**arguments)
    except LakeMQError as error:
        str(error).encode()
        assert mq.topics.list() == before, call.name
    else:
        if "deliver_at" in arguments:
            until(lambda: has_nothing_due_soon(mq))


REFUSED_CALLS = {"topics.delete", "groups.delete", "transactions.describe", "transactions.abort", "step_until_idle"}
"""Calls that are refused even with right arguments: the object does not exist, or another sequencer leads."""


def test_calls_work_with_right_arguments(mq: Connection) -> None:
    make_topics(mq)
    for call in calls(mq):
        right = {name: make() for name, make in call.right.items()}
        if call.name in REFUSED_CALLS:
            with pytest.raises(LakeMQError):
                call.make(**right)
        else:
            call.make(**right)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_arguments_are_refused_or_work(mq: Connection, data: st.DataObject) -> None:
    call = data.draw(st.sampled_from(calls(mq)), label="call")
    names = data.draw(st.sets(st.sampled_from(sorted(call.right)), min_size=1, max_size=2), label="arguments")
    odd_numbers = {
        name: data.draw(st.integers(0, len(ODD) - 1), label=f"number of the odd {name}") for name in sorted(names)
    }
    right = {name: make() for name, make in call.right.items()}
    check(mq, call, right | {name: ODD[number]() for name, number in odd_numbers.items()})
