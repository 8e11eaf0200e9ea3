"""The Python producer on a served namespace: the arguments of `send`, and the results in futures and callbacks."""

import gc
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from unit.served import new_name, new_topic, read_committed_offset, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.delivery import RecordFuture, RecordMetadata
from lakemq.engine.client.publish import arrow
from lakemq.errors import (
    IllegalState,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    InvalidTopic,
    LakeMQError,
    MessageTooLarge,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    RequestTimedOut,
    TransactionAbortable,
    TransactionAborted,
    UnknownTopicOrPartition,
)

SECRET = "4929-7226-1500-0064"


def read_records(mq: Connection, topic: str) -> dict[tuple[int, int], str]:
    """Return the value of each (partition, offset)."""
    rows = mq.fetch(topic).to_arrow()
    columns = (rows[name].to_pylist() for name in ("partition", "offset", "value"))
    return {(partition, offset): value.decode() for partition, offset, value in zip(*columns, strict=True)}


# -- futures and callbacks ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("value_bytes", [0, 200], ids=["in the letter", "in files of several slices"])
def test_future_has_partition_and_offset_of_its_record(
    mq: Connection, value_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    """The records are keyed, keyless or have a partition, and another producer sends as well."""
    monkeypatch.setattr(arrow, "SLICE_ROWS", 50)
    topic, chance = new_topic(mq, partitions=4), random.Random(7)
    with mq.producer(linger_ms=1) as other, mq.producer(linger_ms=1) as producer:
        sent = {}
        for i in range(400):
            target = ({}, {"key": f"k{i % 17}"}, {"partition": np.int64(i % 4)})[i % 3]
            value = f"{i}".ljust(chance.randrange(value_bytes + 1))
            sent[value] = producer.send(topic, value, timestamp_ms=1000 + i, **target)
            if i % 20 == 0:
                other.send(topic, f"other {i}")
        producer.flush()
        other.flush()
    records = read_records(mq, topic)
    assert len(records) == 420
    for i, (value, future) in enumerate(sent.items()):
        metadata = future.result()
        assert (metadata.topic, metadata.timestamp_ms) == (topic, 1000 + i)
        assert records[metadata.partition, metadata.offset] == value
        if i % 3 == 2:
            assert metadata.partition == i % 4


def test_futures_and_callbacks_get_the_outcome_of_their_record(mq: Connection, topic: str):
    outcomes: list[tuple[LakeMQError | None, RecordMetadata | None]] = []
    finished: list[RecordFuture] = []
    with mq.producer(linger_ms=60_000) as producer:
        futures = [
            producer.send(topic, f"{i}", partition=partition, on_delivery=lambda *outcome: outcomes.append(outcome))
            for i, partition in enumerate((0, 7, 0))
        ]
        futures[1].add_done_callback(finished.append)
        assert not any(future.done() for future in futures)
        flushed = producer.flush()
        futures[2].add_done_callback(finished.append)
    assert (flushed.rejected_count, flushed.offsets()) == (1, {(topic, 0): (0, 1)})
    assert finished == futures[1:]
    assert values(mq, topic) == ["0", "2"]
    assert [future.result().offset for future in (futures[0], futures[2])] == [0, 1]
    with pytest.raises(UnknownTopicOrPartition):
        futures[1].result()
    assert [type(error) for error, _ in outcomes] == [type(None), UnknownTopicOrPartition, type(None)]
    assert [metadata and metadata.offset for _, metadata in outcomes] == [0, None, 1]


def test_callback_may_send_and_not_wait_and_its_error_stops_nothing(mq: Connection, topic: str):
    refused: list[BaseException] = []

    def call(error: LakeMQError | None, metadata: RecordMetadata | None) -> None:
        later = producer.send(topic, "from a callback")
        for wait in (producer.flush, producer.close, later.result):
            try:
                wait()
            except IllegalState as error:
                refused.append(error)
        raise ZeroDivisionError

    with mq.producer(linger_ms=0) as producer:
        producer.send(topic, "first", on_delivery=call)
        producer.flush()
        producer.flush()
        assert len(refused) == 3
        producer.send(topic, "last")
    assert values(mq, topic) == ["first", "from a callback", "last"]


def test_waiting_for_a_future_ends_at_its_timeout(mq: Connection, topic: str):
    with mq.producer(linger_ms=60_000) as producer:
        future = producer.send(topic, "a")
        with pytest.raises(RequestTimedOut):
            future.result(0.01)
        for bad in (-1, "1", float("nan"), 1e30):
            with pytest.raises(InvalidRequest):
                future.result(bad)
            with pytest.raises(InvalidRequest):
                future.exception(bad)
    assert (future.exception(), future.result().offset) == (None, 0)


def test_future_of_a_destination_has_the_first_topic_by_name(mq: Connection):
    names = sorted(new_topic(mq) for _ in range(3))
    for name in names:
        mq.topics.alter(name, subscriptions=[f"{names[0]}/>"])
    mq.publish(names[1], pa.table({"value": ["before"]}))
    with mq.producer() as producer:
        future = producer.send(f"{names[0]}/x", "a")
        assert len(producer.flush().offsets()) == 3
    assert (future.result().topic, future.result().offset) == (names[0], 0)


def test_futures_of_a_transaction_get_its_outcome(mq: Connection, topic: str):
    with mq.producer(new_name("id"), linger_ms=60_000) as producer:
        producer.begin_transaction()
        flushed = producer.send(topic, "flushed")
        producer.flush()
        assert flushed.result().offset == 0
        travelled = [producer.send(topic, f"{i}", key="k") for i in range(3)]
        producer.commit_transaction()
        assert [future.result().offset for future in travelled] == [1, 2, 3]
        producer.begin_transaction()
        aborted = producer.send(topic, "never")
        producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            aborted.result()
        producer.begin_transaction()
        closed = producer.send(topic, "never")
    assert isinstance(closed.exception(), TransactionAborted)
    assert values(mq, topic) == ["flushed", "0", "1", "2"]


# -- arguments ------------------------------------------------------------------------------------------

BAD: list[tuple[type[LakeMQError], dict[str, Any]]] = [
    (InvalidTopic, {"topic": b"t"}),
    (InvalidTopic, {"topic": "not a name"}),
    (InvalidRecord, {"value": 5}),
    (InvalidRecord, {"value": f"{SECRET}\ud800"}),
    (InvalidRecord, {"key": f"\udfff{SECRET}"}),
    (InvalidRecord, {"partition": 1.7}),
    (InvalidRecord, {"partition": -1}),
    (InvalidTimestamp, {"timestamp_ms": -1}),
    (InvalidTimestamp, {"timestamp_ms": 10**5000}),
    (InvalidRecord, {"headers": SECRET}),
    (InvalidRecord, {"headers": [("k", [SECRET])]}),
    (InvalidRecord, {"headers": [("k", SECRET + "\ud800")]}),
    (InvalidRecord, {"headers": [("k\ud800", b"v")]}),
    (InvalidRecord, {"on_delivery": "print"}),
]


@pytest.mark.parametrize("transactional", [False, True])
def test_bad_argument_is_refused_in_the_call(mq: Connection, topic: str, transactional: bool):
    wrong: list[Any] = []
    with mq.producer(new_name("id") if transactional else None, linger_ms=60_000) as producer:
        if transactional:
            producer.begin_transaction()
        producer.send(topic, "before")
        for error, bad in BAD:
            outcome = catch(lambda bad=bad: producer.send(**{"topic": topic, "value": "x", **bad}))
            if type(outcome) is not error or SECRET in str(outcome):
                wrong.append((bad, outcome))
        producer.send(topic, "after")
        producer.commit_transaction() if transactional else producer.flush()
    assert not wrong
    assert values(mq, topic) == ["before", "after"]


def catch(call: Callable[[], Any]) -> Any:
    """Return the result of the call, or the error of ours that it raises."""
    try:
        return call()
    except LakeMQError as error:
        return error


def test_buffer_that_changes_after_send_is_not_sent_changed(mq: Connection, topic: str):
    key, value, header = bytearray(b"key"), bytearray(b"value"), bytearray(b"header")
    with mq.producer(linger_ms=60_000) as producer:
        producer.send(topic, value, memoryview(key), [("h", header)])
        key[:], value[:], header[:] = b"???", b"?????", b"??????"
    (row,) = mq.fetch(topic).to_arrow().to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"key", b"value", [{"key": "h", "value": b"header"}])


def test_text_of_a_header_is_encoded_as_utf_8(mq: Connection, topic: str):
    with mq.producer() as producer:
        producer.send(topic, "v", headers={"name": "Zoë", "none": None, "raw": b"\xff"})
    (message,) = mq.fetch(topic)
    assert message.headers == (("name", "Zoë".encode()), ("none", None), ("raw", b"\xff"))


def test_rejected_records_are_logged_once_per_topic_and_error(
    mq: Connection, topic: str, caplog: pytest.LogCaptureFixture
):
    other = new_topic(mq)
    with mq.producer(linger_ms=60_000) as producer:
        for partition in (7, 8):
            producer.send(topic, "x", partition=partition)
        assert producer.flush().rejected_count == 2
        for name, value, partition in ((topic, "x", 9), (topic, "x" * 2_000_000, 0), (other, "x", 9)):
            producer.send(name, value, partition=partition)
    lines = [record.getMessage() for record in caplog.records if record.name == "lakemq.producer"]
    assert lines[0].startswith(f"2 rows are rejected: UNKNOWN_TOPIC_OR_PARTITION (2 for {topic}): ")
    assert lines[1].startswith(f"1 row is rejected: MESSAGE_TOO_LARGE (1 for {topic}): ")
    assert lines[2].startswith(f"1 row is rejected: UNKNOWN_TOPIC_OR_PARTITION (1 for {other}): ")
    assert len(lines) == 3
    caplog.clear()
    with mq.producer(on_error="fail") as producer:
        failed = producer.send(topic, "x", partition=7)
        assert isinstance(failed.exception(), UnknownTopicOrPartition)
    assert caplog.messages == []


@pytest.mark.parametrize("on_error", ["reject", "fail"])
def test_record_that_its_topic_refuses_is_refused_alone(mq: Connection, topic: str, on_error: str):
    with mq.producer(linger_ms=60_000, on_error=on_error) as producer:
        producer.send(topic, "before")
        outside = producer.send(topic, "x", partition=1)
        large = producer.send(topic, "x" * 2_000_000)
        after = producer.send(topic, "after")
        unknown = producer.send("nobody-knows-it", "x")
        other = producer.send(new_topic(mq), "of another topic")
        with pytest.raises(UnknownTopicOrPartition):
            producer.flush()
        assert producer.flush().rejected_count == (2 if on_error == "reject" else 0)
    assert values(mq, topic) == ["before", "after"]
    assert (after.result().offset, other.result().offset) == (1, 0)
    errors = (UnknownTopicOrPartition, MessageTooLarge, UnknownTopicOrPartition)
    assert tuple(type(future.exception()) for future in (outside, large, unknown)) == errors


def test_columns_of_type_null_are_sent_as_null_values(mq: Connection, topic: str):
    with mq.producer() as producer:
        producer.send_arrow(topic, pa.table({"value": pa.nulls(5)}))
        producer.send_arrow(topic, pa.table({"value": pa.array([], pa.string())}))
        assert producer.flush().offsets() == {(topic, 0): (0, 4)}
    assert mq.fetch(topic).to_arrow()["value"].to_pylist() == [None] * 5


BAD_TABLES: list[Any] = [
    "text",
    None,
    pa.table({"key": ["a"]}),
    pa.table({"value": [1]}),
    pa.table({"value": ["a"], "partition": [1.5]}),
    pa.table({"value": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}),
    pa.table({"value": ["a"], "headers": [[{"key": f"{SECRET}".encode() + b"\xff", "value": b"v"}]]}),
]


def test_bad_table_is_refused_in_the_call(mq: Connection, topic: str):
    with mq.producer(linger_ms=60_000) as producer:
        producer.send(topic, "before")
        outcomes = [catch(lambda table=table: producer.send_arrow(topic, table)) for table in BAD_TABLES]
    assert [type(outcome) for outcome in outcomes] == [InvalidRecord] * len(BAD_TABLES)
    assert SECRET not in str(outcomes)
    assert values(mq, topic) == ["before"]


# -- options --------------------------------------------------------------------------------------------


BAD_OPTIONS: list[dict[str, Any]] = [
    {"linger_ms": "x"},
    {"linger_ms": -1},
    {"buffer_memory": 0},
    {"delivery_timeout_ms": -5},
    {"on_error": "typo"},
    {"idempotent": True, "enable_idempotence": False},
    {"acks": 1},
    {"retries": 0},
    {"max_in_flight_requests_per_connection": 6},
    {"lingerms": 5},
]


def test_bad_option_is_refused_and_named(mq: Connection):
    thread_count = threading.active_count()
    for options in BAD_OPTIONS:
        with pytest.raises(InvalidConfig, match=next(iter(options))):
            mq.producer(**options)
        with pytest.raises(InvalidConfig):
            mq.producer(new_name("id"), **options)
    assert threading.active_count() <= thread_count


def test_options_may_be_spelled_as_in_kafka(mq: Connection, topic: str):
    with mq.producer(**{"linger.ms": 60_000, "enable.idempotence": True, "max-block-ms": 5}) as producer:
        assert (producer._options.linger_ms, producer._options.max_block_ms) == (60_000, 5)
    with mq.consumer(new_name("g"), topics=[topic], **{"session.timeout.ms": 7_000, "heartbeatIntervalMs": 10}):
        pass
    for options, answer in [
        ({"linger.ms": 5, "linger_ms": 5}, "given twice"),
        ({"bootstrap.servers": "localhost"}, "no wire protocol"),
        ({"transactional.id": "x"}, "name it in mq.producer"),
        ({"value_serializer": str}, "encode them before you send"),
    ]:
        with pytest.raises(InvalidConfig, match=answer):
            mq.producer(**options)
    for options, answer in [
        ({"group_id": "g"}, "name the group"),
        ({"enable.auto.commit": False}, r"consumer\.commit\(\)"),
        ({"max_poll_records": 10}, "max_records"),
        ({"isolation.level": "read_committed"}, "give isolation"),
    ]:
        with pytest.raises(InvalidConfig, match=answer):
            mq.consumer(new_name("g"), topics=[topic], **options)


def test_kafka_options_are_accepted_at_values_that_keep_the_guarantee(mq: Connection, topic: str):
    accepted = {"retries": 1, "max_in_flight_requests_per_connection": 5, "enable_idempotence": True}
    for acks in ("all", -1, "-1"):
        with mq.producer(acks=acks, **accepted) as producer:
            producer.send(topic, "a")
    with mq.producer(enable_idempotence=False) as producer:
        producer.send(topic, "a")
    assert len(values(mq, topic)) == 4


def test_transactional_id_needs_idempotence_and_on_error_fail(mq: Connection):
    for option in ({"idempotent": False}, {"enable_idempotence": False}, {"on_error": "reject"}):
        with pytest.raises(InvalidConfig):
            mq.producer(new_name("id"), **option)
    mq.producer(new_name("id"), enable_idempotence=True, on_error="fail").close()


# -- transactions ---------------------------------------------------------------------------------------


def test_producer_without_a_transactional_id_has_no_transactions(mq: Connection):
    calls = (
        "init_transactions",
        "begin_transaction",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    )
    with mq.producer() as producer, mq.producer(new_name("id")) as transactional:
        for call in calls:
            assert callable(getattr(transactional, call))
            assert not hasattr(producer, call)
            with pytest.raises(AttributeError, match=r"no transactional id.*Expected mq\.producer\(transactional_id\)"):
                getattr(producer, call)
        with pytest.raises(AttributeError, match="object has no attribute 'sned'"):
            producer.sned("t", "a")


def test_init_transactions_changes_no_open_transaction(mq: Connection, topic: str):
    with mq.producer(new_name("id")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "a")
        producer.init_transactions()
        producer.commit_transaction()
    assert values(mq, topic) == ["a"]
    with pytest.raises(IllegalState):
        producer.init_transactions()


def test_offsets_beyond_the_log_are_refused_in_the_call(mq: Connection, topic: str):
    group = new_name("group")
    mq.publish(topic, pa.table({"value": ["read", "not read"]}))
    cases: list[tuple[dict[tuple[str, int], int], str | None, type[LakeMQError]]] = [
        ({("missing", 0): 0}, None, UnknownTopicOrPartition),
        ({(topic, 7): 0}, None, UnknownTopicOrPartition),
        ({(topic, 0): 9}, None, OffsetOutOfRange),
        ({(topic, 0): -1}, None, OffsetOutOfRange),
        ({(topic, 0): 1}, "m" * 5000, OffsetMetadataTooLarge),
    ]
    with mq.producer(new_name("id")) as producer:
        for offsets, metadata, error in cases:
            producer.begin_transaction()
            producer.send(topic, "a")
            with pytest.raises(error):
                producer.send_offsets_to_transaction(offsets, group, metadata)
            with pytest.raises(TransactionAbortable, match=error.name):
                producer.commit_transaction()
            producer.abort_transaction()
    assert read_committed_offset(mq, group, topic) is None
    assert values(mq, topic) == ["read", "not read"]
    with pytest.raises(OffsetOutOfRange), mq.transaction(new_name("id")) as txn:
        txn.send_offsets({(topic, 0): 9}, group)


# -- memory, and for how long ---------------------------------------------------------------------------


@pytest.mark.slow
def test_producer_without_a_flush_keeps_no_batches(mq: Connection, topic: str):
    with mq.producer(linger_ms=0) as producer:
        for i in range(30):
            producer.send(topic, f"{i}").result()
        gc.collect()
        batches = [referrer for referrer in gc.get_referrers(producer._monitor) if type(referrer).__name__ == "Batch"]
        assert len(batches) <= 1
        flushed = producer.flush()
    assert flushed.spans == {(topic, 0): (0, 29, 30)}


def test_closed_producer_refuses_every_call(mq: Connection, topic: str):
    producer = mq.producer(new_name("id"))
    producer.close()
    for call in (lambda: producer.send(topic, "a"), producer.flush, producer.begin_transaction):
        with pytest.raises(IllegalState, match="closed"):
            call()


def test_forked_child_is_refused_by_its_parents_producer(mq: Connection, topic: str):
    with mq.producer(new_name("id")) as transactional, mq.producer(linger_ms=60_000) as producer:
        future = producer.send(topic, "a")
        calls = [
            lambda: producer.send(topic, "b"),
            lambda: producer.send_arrow(topic, pa.table({"value": ["b"]})),
            producer.flush,
            producer.close,
            future.result,
            transactional.begin_transaction,
            transactional.commit_transaction,
            transactional.abort_transaction,
            transactional.close,
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()
                except IllegalState:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    assert values(mq, topic) == ["a"]
