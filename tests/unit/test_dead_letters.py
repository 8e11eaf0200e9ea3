"""Dead letters: messages that a queue group gives up appear in another topic, with the reason, without a new copy."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.consuming import take_messages
from unit.served import new_name, new_topic, until, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.dead_letters import COLUMNS, DeadLetterCount, Redriven
from lakemq.engine.client.predicate import Predicate
from lakemq.engine.maintenance.dying_messages import DyingMessages, find_dying
from lakemq.engine.namespace.data_file import new_file_id
from lakemq.engine.protocol.values.dead_letters import DyingFound, SettleDeadLetters
from lakemq.errors import InvalidRequest, UnknownTopicId, UnknownTopicOrPartition

SERVED_WITH = {"project.interval.ms": 50}

pytestmark = pytest.mark.slow

CAUSE = ["topic", "partition", "group", "reason", "error", "delivery-count", "offset"]


def member(mq: Connection, topic: str, group: str, **config: Any) -> QueueConsumer:
    settings = {"group.protocol": "queue", **{key.replace("_", "."): value for key, value in config.items()}}
    mq.groups.create(group, settings)
    return mq.consumer(group, topics=[topic], auto_offset_reset="earliest")


def wait_until_done(mq: Connection, consumer: QueueConsumer) -> None:
    """Wait until the group has no lag, whether or not this member still belongs to it."""
    until(lambda: mq.groups.describe(consumer.group).lag == 0)


def reject_messages(mq: Connection, topic: str, count: int, group: str | None = None, error: str = "bad") -> None:
    """Let a group reject so many messages, and wait until they are dead letters."""
    with member(mq, topic, group or new_name("g")) as consumer:
        consumer.reject(take_messages(consumer, count), error=error)
        consumer.flush()
        wait_until_done(mq, consumer)


def read_causes(mq: Connection, topic: str) -> list[dict[str, str]]:
    """Return the cause of each message of a dead-letter topic."""
    return [
        {key.removeprefix("dead-letter."): (value or b"").decode() for key, value in message.headers[-len(CAUSE) :]}
        for message in mq.fetch(topic)
    ]


# -- as users see it ----------------------------------------------------------------------------------------


def test_rejected_message_becomes_a_dead_letter_with_its_cause(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    with mq.producer() as producer:
        for n in range(4):
            producer.send(topic, f"m{n}", key="k", headers=[("trace", b"1"), ("trace", None)])
    with member(mq, topic, group) as consumer:
        messages = take_messages(consumer, 4)
        with pytest.raises(InvalidRequest, match="error"):
            consumer.reject([], error=5)  # type: ignore[arg-type]
        consumer.reject(messages[1:3], error="no such \udcff customer")
        consumer.ack([messages[0], messages[3]])
        consumer.flush()
        wait_until_done(mq, consumer)
    dead = list(mq.fetch(f"{topic}.dlq"))
    partition = messages[0].partition
    assert [(m.partition, m.offset, m.key, m.value) for m in dead] == [
        (partition, i, b"k", f"m{i + 1}".encode()) for i in (0, 1)
    ]
    assert [m.timestamp for m in dead] == [m.timestamp for m in messages[1:3]]
    assert [m.headers[:2] for m in dead] == [(("trace", b"1"), ("trace", None))] * 2
    expected = {"topic": topic, "partition": str(partition), "group": group, "reason": "rejected"}
    expected |= {"error": "no such \\udcff customer", "delivery-count": "1"}
    assert read_causes(mq, f"{topic}.dlq") == [{**expected, "offset": str(offset)} for offset in (1, 2)]
    assert [key for key, _ in dead[0].headers[2:]] == [f"dead-letter.{name}" for name in CAUSE]
    # nothing was said about its neighbours, and no row was written again
    assert {m.headers for m in mq.fetch(topic)} == {(("trace", b"1"), ("trace", None))}


@pytest.mark.extended
def test_dying_messages_are_deleted_with_their_records(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    dead = reject_all(mq, topic, ["a", "b", "c"])
    with member(mq, dead, group) as consumer:
        consumer.reject(take_messages(consumer, 3))
        consumer.flush()
        assert consumer.lag() == {(dead, 0): 3}
        for before, expected_lag in ((2, 1), (3, 0)):
            mq.topics.delete_records(dead, {0: before})
            until(
                lambda expected_lag=expected_lag: bool(
                    not consumer.poll() and consumer.lag() == {(dead, 0): expected_lag}
                )
            )
    assert mq.groups.describe(group).lag == 0


# -- redriving ----------------------------------------------------------------------------------------------


def reject_all(mq: Connection, topic: str, texts: list[str], group: str | None = None) -> str:
    """Publish messages, reject all of them, and return their dead-letter topic."""
    mq.publish(topic, pa.table({"value": texts}))
    reject_messages(mq, topic, len(texts), group)
    return f"{topic}.dlq"


def test_redrive_sends_each_dead_letter_back_once(mq: Connection) -> None:
    topic = new_topic(mq)
    dead = reject_all(mq, topic, [f"m{n}" for n in range(9)])
    assert mq.dead_letters.redrive(dead, "value < 'm3'", dry_run=True) == Redriven(3)
    assert mq.dead_letters.redrive(dead, "value < 'm3'") == Redriven(3)
    assert mq.dead_letters.redrive(dead, "value < 'm5' AND reason = 'rejected'") == Redriven(2)
    assert mq.dead_letters.redrive(dead) == Redriven(4)
    assert mq.dead_letters.redrive(dead) == Redriven(0)
    assert values(mq, topic)[9:] == [f"m{n}" for n in range(9)]
    redriven = list(mq.fetch(topic, start=9))
    assert all(not message.headers for message in redriven)
    assert values(mq, dead) == [f"m{n}" for n in range(9)]
    with member(mq, topic, new_name("g")) as consumer:
        assert [m.value.decode() for m in take_messages(consumer, 18)][9:] == [f"m{n}" for n in range(9)]


@pytest.mark.extended
def test_dead_letter_keeps_its_timestamp_until_it_returns_to_a_log_append_time_topic(mq: Connection) -> None:
    stamps = {"message.timestamp.type": "LogAppendTime"}
    dead, plain, stamped = new_name("dead"), new_name("t"), new_name("t")
    mq.topics.create(dead, 1, config=stamps)
    mq.topics.create(plain, 1, config={"dead.letter.topic": dead})
    mq.topics.create(stamped, 1, config={"dead.letter.topic": dead, **stamps})
    for topic in (plain, stamped):
        mq.publish(topic, pa.table({"value": [topic], "timestamp": [datetime(2020, 1, 1, tzinfo=UTC)]}))
        reject_messages(mq, topic, 1)
    first = {topic: next(iter(mq.fetch(topic))).timestamp for topic in (plain, stamped)}
    assert {m.value.decode(): m.timestamp for m in mq.fetch(dead)} == first
    assert mq.dead_letters.redrive(dead).messages == 2
    assert [m.timestamp for m in mq.fetch(plain)] == [first[plain]] * 2
    earlier, later = (m.timestamp for m in mq.fetch(stamped))
    assert earlier == first[stamped] < later


@pytest.mark.extended
def test_redriven_and_purged_dead_letters_are_not_listed(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    mq.topics.create(f"{topic}.dlq", 1)
    mq.publish(f"{topic}.dlq", pa.table({"value": ["x", "y"]}), ttl_ms=0)  # those of others expire, and shift no cause
    dead = reject_all(mq, topic, ["a", "b", "c", "d"], group)
    of_all = DeadLetterCount(dead, group, "rejected", topic, 4)
    assert mq.dead_letters.counts(dead) == [of_all]
    assert of_all in mq.dead_letters.counts()
    assert mq.dead_letters.purge(dead, "source_offset = 1", dry_run=True) == 1
    assert mq.dead_letters.purge(dead, "source_offset = 1") == 1
    assert mq.dead_letters.redrive(dead, "value IN ('b', 'c')") == Redriven(1)
    remaining = mq.dead_letters.all(dead)
    assert remaining.column("value").to_pylist() == [b"a", b"d"]
    assert mq.dead_letters.all(dead, limit=1).column("value").to_pylist() == [b"a"]
    assert remaining.schema.equals(COLUMNS)
    assert mq.dead_letters.counts(dead) == [of_all._replace(messages=2)]
    assert mq.dead_letters.purge(dead) == 2
    assert mq.dead_letters.counts(dead) == []
    assert values(mq, topic)[4:] == ["c"]


@pytest.mark.extended
def test_redrive_keeps_its_rate(mq: Connection) -> None:
    topic = new_topic(mq)
    dead = reject_all(mq, topic, [f"{n}" for n in range(25)])
    begun_s = time.monotonic()
    assert mq.dead_letters.redrive(dead, rate_per_s=10).messages == 25
    assert time.monotonic() - begun_s > 2


@pytest.mark.extended
def test_redrive_ends_when_its_topic_is_created_again(mq: Connection) -> None:
    topic = new_topic(mq)
    dead = reject_all(mq, topic, ["a", "b", "c"])
    with ThreadPoolExecutor(1) as thread:
        redrive = thread.submit(mq.dead_letters.redrive, dead, rate_per_s=1)
        until(lambda: len(values(mq, topic)) > 3)
        mq.topics.delete(dead)
        mq.topics.create(dead, 1)
        mq.publish(dead, pa.table({"value": ["d", "e", "f"]}))
        with pytest.raises(UnknownTopicId):
            redrive.result()


@pytest.mark.extended
def test_bad_conditions_of_dead_letters_are_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    dead = reject_all(mq, topic, ["a"])
    for where in ("no_such_column = 1", "valu", "1; DROP TABLE x", "value = (SELECT 1 FROM 'x.csv')", "'", ""):
        with pytest.raises(InvalidRequest):
            mq.dead_letters.redrive(dead, where)
    with pytest.raises(InvalidRequest, match='reserved word "offset"'):
        mq.dead_letters.redrive(dead, "offset < 2")
    for where in (5, b"x", ["value"]):
        with pytest.raises(InvalidRequest, match="where"):
            mq.dead_letters.all(dead, where)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartition):
        mq.dead_letters.redrive("no-such-topic")
    with pytest.raises(UnknownTopicOrPartition, match="no message has died yet"):
        mq.dead_letters.redrive(f"{new_topic(mq)}.dlq")
    with pytest.raises(UnknownTopicOrPartition):
        mq.dead_letters.counts("no-such-topic")
    with pytest.raises(InvalidRequest, match="rate_per_s"):
        mq.dead_letters.redrive(dead, rate_per_s=0)
    assert mq.dead_letters.redrive(dead, dry_run=True).messages == 1


def test_predicate_that_reads_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (tmp_path / "x.csv", tmp_path / ".tmp/x.csv"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("secret")
        for function in ("read_text", "read_csv", "glob"):
            with pytest.raises(InvalidRequest, match="file system operations are disabled"):
                Predicate(f"EXISTS (SELECT * FROM {function}('{file}'))", pa.schema([("a", pa.int64())]))


# -- finding dying messages ---------------------------------------------------------------------------------


@pytest.mark.extended
def test_search_finds_no_message_in_markers_and_aborted_or_open_transactions(mq: Connection) -> None:
    topic = new_topic(mq)
    topic_id = mq.topics.describe(topic).topic_id
    for commit in (True, False):
        with mq.producer(transactional_id=new_name("tx")) as producer:
            producer.begin_transaction()
            producer.send(topic, "x")
            producer.send(topic, "y")
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    mq.publish(topic, pa.table({"value": ["plain"]}))
    open_producer = mq.producer(transactional_id=new_name("tx"))
    open_producer.begin_transaction()
    open_producer.send(topic, "open").result()
    found_by_isolation: dict[bool, DyingFound] = {}

    def look() -> bool:
        for committed in (False, True):
            dying = DyingMessages("g", topic_id, 0, ((0, 4), (5, 3)), committed)
            ((found_by_isolation[committed], _),) = find_dying(mq.namespace.store, new_file_id, [dying])
        return bool(found_by_isolation[False].rows) and found_by_isolation[False].rows[-1].first == 7

    until(look)
    open_producer.abort_transaction()
    open_producer.close()
    # 0, 1 committed, 2 marker, 3, 4 aborted, 5 marker, 6 plain, 7 open
    assert _offsets(found_by_isolation[True]) == ([0, 1, 6], [2, 3, 5])
    assert _offsets(found_by_isolation[False]) == ([0, 1, 3, 6, 7], [2, 5])


@pytest.mark.extended
def test_search_ends_after_so_many_segments_and_says_where(mq: Connection) -> None:
    """A step that decides about the findings stays short, however many there are."""
    topic = new_topic(mq)
    for n in range(3):
        mq.publish(topic, pa.table({"value": [f"{n}", f"{n}"]}))
    topic_id = mq.topics.describe(topic).topic_id
    every_second = DyingMessages("g", topic_id, 0, tuple((offset, 1) for offset in range(0, 6, 2)), True)
    all_of_it = DyingMessages("h", topic_id, 0, ((0, 6),), True)

    def find_offsets(*dying: DyingMessages, most: int) -> list[tuple[list[int], int]]:
        return [
            (_offsets(dying_found)[0], end)
            for dying_found, end in find_dying(mq.namespace.store, new_file_id, dying, most)
        ]

    until(lambda: find_offsets(all_of_it, most=9) == [([0, 1, 2, 3, 4, 5], 6)])
    assert find_offsets(all_of_it, most=2) == [([0, 1, 2, 3], 4)]
    assert find_offsets(all_of_it.cut_before(4), most=2) == [([4, 5], 6)]
    assert find_offsets(all_of_it.cut_before(3), most=2) == [([3, 4, 5], 6)]
    assert find_offsets(every_second, all_of_it, most=2) == [([0, 2], 3)]
    assert find_offsets(every_second, all_of_it, most=3) == [([0, 2, 4], 5)]
    assert find_offsets(every_second, all_of_it, most=4) == [([0, 2, 4], 5), ([0, 1], 2)]


def _offsets(dying_found: DyingFound) -> tuple[list[int], list[int]]:
    rows = [offset for row in dying_found.rows for offset in range(row.first, row.first + row.length)]
    return rows, [offset for first, count in dying_found.empty for offset in range(first, first + count)]


def test_predicate_reads_bytes_as_text_where_it_needs_text() -> None:
    rows = pa.table({"value": [b"late: 1", b"\xff", None, b'{"n": 5}'], "key": [b"a", b"b", b"\xff", None]})
    for condition, expected in (
        ("value LIKE 'late%'", [b"late: 1"]),
        ("value NOT LIKE 'late%'", [b'{"n": 5}']),
        ("regexp_matches(value, '[0-9]$')", [b"late: 1"]),
        ("upper(key) = 'B'", [b"\xff"]),
        ("value = '\\xFF'::BLOB", [b"\xff"]),
        ("octet_length(value) = 1", [b"\xff"]),
    ):
        selected = Predicate(condition, rows.schema).select_rows(rows)
        assert selected.column("value").to_pylist() == expected, condition


def test_a_predicate_has_limits_of_length_and_time() -> None:
    numbers = pa.table({"n": range(1000)})
    conditions = " OR ".join(f"n = {n}" for n in range(20_000))
    with pytest.raises(InvalidRequest, match="The predicate is too long"):
        Predicate(conditions, numbers.schema)
    endless = "n < (SELECT count(*) FROM range(1000000) a(i), range(10000000) b(i) WHERE a.i * b.i > 77 + n)"
    bounded = Predicate(endless, numbers.schema, timeout_s=0.2)
    with pytest.raises(InvalidRequest, match=r"stopped after 0\.2 s"):
        bounded.select_rows(numbers)
    assert Predicate("n < 2", numbers.schema, timeout_s=60).select_rows(numbers).num_rows == 2


def test_redrive_waits_only_for_its_own_messages(mq: Connection) -> None:
    """Another message cannot go back: its topic was deleted when the redrive had already been requested."""
    dead, deleted_topic, topic = new_name("dead"), new_name("t"), new_name("t")
    mq.topics.create(dead, 1)
    for name in (deleted_topic, topic):
        mq.topics.create(name, 1, config={"dead.letter.topic": dead})
        mq.publish(name, pa.table({"value": [name]}))
        reject_messages(mq, name, 1)
    mq.topics.delete(deleted_topic)
    topic_id = mq.topics.describe(dead).topic_id
    mq.requester.ask(SettleDeadLetters(dead, topic_id, {0: [(0, 1)]}))
    assert mq.dead_letters.redrive(dead) == Redriven(1)
    assert values(mq, topic) == [topic, topic]
