"""Every public call with wrong types and values: it works, or an error of ours refuses it and nothing has changed.

Set HYPOTHESIS_PROFILE=long for a longer run.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.served import served, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.delayed.delayed import DelayedMessages
from lakemq.engine.client.groups.groups import Groups
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


ODD: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "",
    lambda: "4",
    lambda: TOPIC,
    lambda: "earliest",
    lambda: "\ud800",
    lambda: "a\0b",
    lambda: "x" * 300,
    lambda: b"t",
    lambda: 0,
    lambda: 1,
    lambda: -1,
    lambda: 2**31,
    lambda: 2**63,
    lambda: -(2**70),
    lambda: 2**20_000,
    lambda: 1.0,
    lambda: float("nan"),
    lambda: True,
    lambda: np.int64(1),
    lambda: np.str_(TOPIC),
    lambda: np.array([0, 1]),
    lambda: pd.NaT,
    lambda: datetime(1970, 1, 1),
    lambda: datetime.max,
    lambda: datetime.min.replace(tzinfo=timezone.utc),
    lambda: date(2024, 1, 1),
    list,
    lambda: [0],
    lambda: ["t"],
    lambda: [None],
    lambda: [("t", 0)],
    lambda: (0, 1),
    dict,
    lambda: {0: 1},
    lambda: {"0": 1},
    lambda: {None: None},
    lambda: {7: 0},
    lambda: {("t", 0): 1},
    lambda: {("t", 0): 2**70},
    lambda: {"t": 0},
    lambda: {"retention.ms": "x"},
    lambda: {"\ud800": 1},
    lambda: {1, 2},
    lambda: (n for n in range(2)),
    lambda: object(),
    lambda: Odd(),
    lambda: len,
    lambda: pa.table({"value": ["v"]}),
    lambda: pa.table({"value": [1]}),
    lambda: pa.table({"key": ["k"]}),
    lambda: pa.table([pa.array(["v"]), pa.array(["w"])], names=["value", "value"]),
    lambda: pa.table({"value": pa.nulls(2)}),
    lambda: pa.array(["v"]),
    lambda: pd.DataFrame({"value": ["v", None]}),
    lambda: pd.DataFrame({"value": ["v", 1]}),
    lambda: pd.DataFrame({("a", "b"): [1]}),
]


@dataclass(frozen=True)
class Call:
    """A public call: its name, the right arguments, and a function that makes the call with other ones."""

    name: str
    right: dict[str, Callable[[], Any]]
    make: Callable[..., Any]


def rows() -> pa.Table:
    return pa.table({"value": ["v"], "key": ["k"], "n": [1]})


def calls(mq: Connection) -> list[Call]:
    def right(**values: Any) -> dict[str, Callable[[], Any]]:
        return {name: value if callable(value) else lambda value=value: value for name, value in values.items()}

    def tail(**arguments: Any) -> None:
        mq.tail(**arguments)

    def poll(**arguments: Any) -> None:
        with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
            longest = arguments["timeout_ms"]
            consumer.poll(**{**arguments, "timeout_ms": min(longest, 1) if isinstance(longest, int) else longest})

    def until_end(**arguments: Any) -> None:
        with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
            for _ in consumer.until_end(**arguments):
                pass

    def on_consumer(method: str) -> Callable[..., None]:
        def call(**arguments: Any) -> None:
            with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
                getattr(consumer, method)(**arguments)

        return call

    def pause(**arguments: Any) -> None:
        with mq.consumer(GROUP, assign=[TOPIC]) as consumer:
            consumer.pause(**arguments)
            consumer.resume(**arguments)

    def consumer(**arguments: Any) -> None:
        with mq.consumer(**arguments) as consumer_made:
            consumer_made.lag()

    def member(**arguments: Any) -> None:
        mq.consumer("members", **arguments).close()

    def queue(**arguments: Any) -> None:
        with mq.consumer("queued", **arguments) as consumer_made:
            consumer_made.poll()

    def stream(**arguments: Any) -> None:
        mq.stream(**arguments)

    def wait(wait_ms: Any) -> None:
        mq.step_until_idle(min(wait_ms, 1) if isinstance(wait_ms, int) else wait_ms)

    def fetch(**arguments: Any) -> None:
        mq.fetch(**arguments).to_arrow()

    return [
        Call("topics.describe", right(topic=TOPIC), mq.topics.describe),
        Call(
            "topics.create",
            right(topic=TOPIC, partitions=2, config=dict, subscriptions=list, exist_ok=True),
            mq.topics.create,
        ),
        Call(
            "topics.alter",
            right(topic=TOPIC, config=dict, partitions=2, subscriptions=list, force=False),
            mq.topics.alter,
        ),
        Call("topics.schema", right(topic=WITH_SCHEMA, version=1), mq.topics.schema),
        Call("topics.delete", right(topic="nobody"), mq.topics.delete),
        Call("topics.delete_records", right(topic=TOPIC, before=lambda: {0: 0}), mq.topics.delete_records),
        Call(
            "publish",
            right(
                topic=TOPIC,
                data=lambda: rows,
                key="key",
                value="value",
                headers=None,
                timestamp=None,
                partition=None,
                order_by="n",
                on_error="fail",
                txn_app_id=None,
                txn_version=None,
                deliver_at=None,
                delay_ms=None,
                ttl_ms=None,
            ),
            lambda data, **arguments: mq.publish(data=data() if data is rows else data, **arguments),
        ),
        Call(
            "publish of an application",
            right(topic=TOPIC, data=rows, txn_app_id="app", txn_version=1),
            mq.publish,
        ),
        Call(
            "fetch",
            right(
                topic=TOPIC,
                isolation="read_committed",
                start="earliest",
                end="latest",
                partitions=lambda: [0],
                include_expired=False,
                parse=False,
            ),
            fetch,
        ),
        Call("tail", right(topic=TOPIC, start="latest", isolation="read_committed", poll_ms=20), tail),
        Call("beginning_offsets", right(topic=TOPIC), mq.beginning_offsets),
        Call("end_offsets", right(topic=TOPIC, isolation="read_committed"), mq.end_offsets),
        Call("offsets_for_times", right(topic=TOPIC, times=lambda: {0: 0}), mq.offsets_for_times),
        Call(
            "consumer",
            right(
                group=GROUP,
                topics=list,
                assign=lambda: [TOPIC],
                protocol=None,
                auto_offset_reset="earliest",
                isolation="read_committed",
                default_timeout_ms=100,
                consumer_timeout_ms=100,
            ),
            consumer,
        ),
        Call(
            "a member",
            right(
                topics=lambda: [TOPIC],
                protocol="cooperative",
                assignor="range",
                client_id="client",
                auto_offset_reset="latest",
                heartbeat_interval_ms=1000,
                instance_id=None,
                isolation="read_committed",
                listener=None,
                max_poll_interval_ms=5000,
                pattern=None,
                session_timeout_ms=6000,
            ),
            member,
        ),
        Call(
            "a member of a queue",
            right(
                topics=lambda: [TOPIC],
                protocol="queue",
                ack_mode="explicit",
                auto_offset_reset="latest",
                heartbeat_interval_ms=1000,
                isolation="read_committed",
                max_poll_interval_ms=5000,
                session_timeout_ms=6000,
            ),
            queue,
        ),
        Call("stream", right(group=GROUP, topics=lambda: [TOPIC]), stream),
        Call("consumer.pause", right(partitions=lambda: [(TOPIC, 0)]), pause),
        Call("consumer.resume", right(partitions=lambda: [(TOPIC, 0)]), pause),
        Call("consumer.poll", right(max_records=1, timeout_ms=0, poll_ms=1), poll),
        Call("consumer.until_end", right(max_records=1, timeout_ms=0, stopped=None), until_end),
        Call("consumer.seek", right(topic=TOPIC, partition=0, offset=0), on_consumer("seek")),
        Call("consumer.position", right(topic=TOPIC, partition=0), on_consumer("position")),
        Call("consumer.commit", right(what=lambda: {(TOPIC, 0): 0}, metadata=None), on_consumer("commit")),
        Call("groups.all", right(states=tuple), mq.groups.all),
        Call("groups.describe", right(group=GROUP), mq.groups.describe),
        Call("groups.lag", right(group=GROUP), mq.groups.lag),
        Call("groups.stalls", right(group="members"), mq.groups.stalls),
        Call("groups.members", right(group="members"), mq.groups.members),
        Call("groups.assignments", right(group="members"), mq.groups.assignments),
        Call("groups.create", right(group="made", config=dict), mq.groups.create),
        Call("groups.alter", right(group="members", config=lambda: {"group.assignor": None}), mq.groups.alter),
        Call(
            "groups.remove_members",
            right(group="members", members=tuple, instances=tuple),
            mq.groups.remove_members,
        ),
        Call("groups.delete", right(group="nobody"), mq.groups.delete),
        Call("groups.delete_offsets", right(group=GROUP, topics=lambda: [OTHER, (OTHER, 0)]), mq.groups.delete_offsets),
        Call(
            "groups.reset_offsets",
            right(group=GROUP, topics=lambda: [TOPIC], to="earliest", shift_by=None, dry_run=False),
            mq.groups.reset_offsets,
        ),
        Call("transactions.all", right(states=tuple), mq.transactions.all),
        Call("transactions.describe", right(transactional_id="x"), mq.transactions.describe),
        Call("transactions.find_hanging", right(max_open_ms=0), mq.transactions.find_hanging),
        Call("transactions.describe_producers", right(topic=TOPIC, partition=0), mq.transactions.describe_producers),
        Call("transactions.abort", right(transactional_id="x"), mq.transactions.abort),
        Call(
            "delayed.schedule",
            right(topic=TOPIC, value="v", key="k", headers=None, deliver_at=None, delay_ms=10**10, ttl_ms=None),
            mq.delayed.schedule,
        ),
        Call("delayed.cancel", right(receipt=f"lmq1:{mq.namespace.namespace_id}:1.2.3.4"), mq.delayed.cancel),
        Call("delayed.cancel_all", right(receipts=list), mq.delayed.cancel_all),
        Call(
            "delayed.cancel_where",
            right(topic=TOPIC, key="nobody", predicate="partition = 7", dry_run=False),
            mq.delayed.cancel_where,
        ),
        Call(
            "delayed.reschedule",
            right(receipt=f"lmq1:{mq.namespace.namespace_id}:1.2.3.4", deliver_at=None, delay_ms=10**10),
            mq.delayed.reschedule,
        ),
        Call("delayed.all", right(topic=None), mq.delayed.all),
        Call("step_until_idle", right(wait_ms=0), wait),
        Call("sql", right(text="SELECT 1", as_of=None, wait_ms=None), mq.sql),
    ]


PUBLIC = {
    "": Connection,
    "topics.": Topics,
    "groups.": Groups,
    "transactions.": Transactions,
    "delayed.": DelayedMessages,
    "consumer.": Consumer,
}
TESTED_ELSEWHERE = {"producer", "transaction"}
"""Calls that open a writer. `test_producer.py` and `test_transaction_scope.py` test the arguments of its methods."""


def test_each_public_call_is_drawn_with_all_its_arguments(mq: Connection) -> None:
    drawn = {call.name: set(call.right) for call in calls(mq)}
    drawn["consumer"] |= drawn["a member"] | drawn["a member of a queue"]
    for prefix, cls in PUBLIC.items():
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            declared = [p for p in inspect.signature(method).parameters.values() if p.kind is not p.VAR_KEYWORD][1:]
            if not name.startswith("_") and declared and prefix + name not in TESTED_ELSEWHERE:
                assert {p.name for p in declared} <= drawn.get(prefix + name, set()), prefix + name


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


REFUSED_CALLS = {
    "topics.delete",
    "groups.delete",
    "transactions.describe",
    "transactions.abort",
    "step_until_idle",
}
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
