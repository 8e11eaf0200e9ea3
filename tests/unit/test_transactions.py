"""Transactions as clients see them, on a served namespace: those of a producer, and who fences whom."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from unit.served import new_topic, read_committed_offset, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume import position_reader
from lakemq.engine.client.producer.producer import TransactionalProducer
from lakemq.errors import (
    IllegalState,
    InvalidTxnState,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnstableOffsetCommit,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def producer(mq: Connection, topic: str) -> Iterator[TransactionalProducer]:
    """The first producer of a new transactional id. Records without a flush travel with the commit."""
    with mq.producer(f"id-{topic}", linger_ms=60_000) as transactional_producer:
        yield transactional_producer


def make_large_rows(count: int, mark: str) -> pa.Table:
    """Return rows that are too large to ride in a request."""
    return pa.table({"value": [f"{mark}{i:05d}" * 20 for i in range(count)]})


# -- visibility -----------------------------------------------------------------------------------------


def test_records_and_tables_keep_their_order(mq: Connection, topic: str):
    with mq.producer(f"{topic}-id", linger_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send(topic, "a")
        producer.send_arrow(topic, pa.table({"value": ["b", "c"]}))
        producer.send(topic, "d")
        producer.commit_transaction()
    assert values(mq, topic) == ["a", "b", "c", "d"]


def test_tail_waits_for_an_open_transaction(mq: Connection, topic: str, producer: TransactionalProducer):
    committed, uncommitted = (
        mq.tail(topic, start=0, isolation=isolation, poll_ms=1) for isolation in ("read_committed", "read_uncommitted")
    )
    mq.publish(topic, pa.table({"value": ["n0"]}))
    producer.begin_transaction()
    producer.send(topic, "a1")
    producer.flush()
    mq.publish(topic, pa.table({"value": ["n2"]}))
    assert next(committed)["offset"].to_pylist() == [0]
    assert next(uncommitted)["offset"].to_pylist() == [0, 1, 2]
    producer.commit_transaction()
    assert next(committed)["value"].to_pylist() == [b"a1", b"n2"]


# -- refusals -------------------------------------------------------------------------------------------


def test_calls_in_the_wrong_order_are_refused(mq: Connection, topic: str, producer: TransactionalProducer):
    for call in (
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(topic, "a"),
        lambda: producer.send_arrow(topic, make_large_rows(1, "a")),
        lambda: producer.send_offsets_to_transaction({(topic, 0): 0}, "g"),
    ):
        with pytest.raises(IllegalState):
            call()
    producer.begin_transaction()
    with pytest.raises(IllegalState):
        producer.begin_transaction()
    producer.send(topic, "a")
    producer.commit_transaction()
    with pytest.raises(IllegalState):
        producer.commit_transaction()
    assert values(mq, topic) == ["a"]


def _too_large(producer: TransactionalProducer, topic: str) -> None:
    producer.send(topic, b"x" * 2_000_000)


def _unknown_topic(producer: TransactionalProducer, topic: str) -> None:
    producer.send("nobody-knows-it", "x")


@pytest.mark.parametrize(("refused", "linger_ms"), [(_too_large, 0), (_unknown_topic, 60_000)])
def test_transaction_with_a_refused_record_can_only_be_aborted(
    mq: Connection, topic: str, refused: Callable[[TransactionalProducer, str], None], linger_ms: int
):
    with mq.producer(f"{topic}-id", linger_ms=linger_ms) as producer:
        producer.begin_transaction()
        producer.send(topic, "good")
        producer.flush()
        refused(producer, topic)
        for _ in range(2):
            with pytest.raises(TransactionAbortable):
                producer.commit_transaction()
            with pytest.raises(TransactionAbortable):
                producer.send(topic, "more")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, "new")
        producer.commit_transaction()
    assert values(mq, topic) == ["new"]


def test_commit_of_a_fenced_producer_raises_producer_fenced_after_a_refused_batch(mq: Connection, topic: str):
    """TransactionAbortable would tell the user to abort and go on."""
    for attempt in range(5):  # whether the batch is refused before the commit is a matter of time
        zombie = mq.producer(f"{topic}-{attempt}", linger_ms=0)
        zombie.begin_transaction()
        with mq.producer(f"{topic}-{attempt}"):
            zombie.send(topic, "first")
            zombie.send(topic, "second")
            with pytest.raises(ProducerFenced):
                zombie.commit_transaction()
            with pytest.raises(ProducerFenced):
                zombie.abort_transaction()
        zombie.close()
    assert values(mq, topic) == []


# -- topics that change meanwhile -----------------------------------------------------------------------


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_transaction_commits_while_its_topic_gets_partitions(mq: Connection, topic: str, linger_ms: int):
    """The first commit is refused for this topic. It accepts the other topic's part, unless that was sent before."""
    other = new_topic(mq)
    with mq.producer(f"{topic}-id", linger_ms=linger_ms) as producer:
        for number in range(3):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({(other, 0): number}, f"group-{topic}")
            producer.send(topic, f"a{number}")
            producer.send(other, f"b{number}")
            if number:
                mq.topics.alter(topic, partitions=1 + 2 * number)
            producer.commit_transaction()
    assert sorted(values(mq, topic)) == ["a0", "a1", "a2"]
    assert values(mq, other) == ["b0", "b1", "b2"]
    assert read_committed_offset(mq, f"group-{topic}", other) == 2


def test_transaction_commits_without_a_topic_that_was_deleted(mq: Connection, topic: str):
    """Its messages are gone, and records that were not sent yet have no destination."""
    other = new_topic(mq)
    with mq.producer(f"{topic}-id", linger_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send(topic, "a")
        producer.send(other, "b")
        producer.flush()
        mq.topics.delete(topic)
        producer.commit_transaction()
        assert values(mq, other) == ["b"]
        mq.topics.create(topic)
        producer.begin_transaction()
        producer.send(topic, "new")
        producer.commit_transaction()
        assert values(mq, topic) == ["new"]
        producer.begin_transaction()
        producer.send(topic, "unsent")
        producer.send(other, "with it")
        mq.topics.delete(topic)
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
        producer.abort_transaction()
    assert values(mq, other) == ["b"]


def test_two_destinations_of_a_topic_share_a_transaction(mq: Connection, topic: str):
    mq.topics.alter(topic, subscriptions=[f"{topic}/>"])
    with mq.producer(f"{topic}-id", linger_ms=60_000) as producer:
        producer.begin_transaction()
        for i in range(3):
            producer.send(topic, f"direct{i}")
            producer.send(f"{topic}/x", f"routed{i}")
        producer.commit_transaction()
    assert sorted(values(mq, topic)) == [f"{how}{i}" for how in ("direct", "routed") for i in range(3)]


# -- answers that are lost ------------------------------------------------------------------------------


@dataclass
class LostAnswers:
    """armed: the next letter gets no answer. decided: the letter is decided, and not withdrawn in time."""

    decided: bool
    armed: bool = False


@pytest.fixture(params=[False, True], ids=["not decided", "decided"])
def losing(
    request: pytest.FixtureRequest, mq: Connection, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> LostAnswers:
    """A producer without patience: a missing answer is at once RequestTimedOut."""
    ask, losing = mq.requester.submit_all, LostAnswers(request.param)

    def submit_all(requests):
        if not losing.armed:
            return ask(requests)
        losing.armed = False
        if losing.decided:
            [future.exception() for future in ask(requests)]
        return lose_answer(requests)

    monkeypatch.setattr(mq.requester, "submit_all", submit_all)
    monkeypatch.setattr(producer._transactions, "_answer_timeout_ms", -1)
    return losing


def lose_answer(requests: Sequence[Any]) -> list[Future]:
    lost: list[Future] = [Future() for _ in requests]
    for future in lost:
        future.set_exception(RequestTimedOut())
    return lost


def test_unanswered_commit_is_repeated_as_it_was(mq: Connection, producer: TransactionalProducer, losing: LostAnswers):
    """The commit is the same: keyless records go to the same partitions as before."""
    topic, other = new_topic(mq, partitions=3), new_topic(mq)
    producer.begin_transaction()
    for i in range(4):
        producer.send(topic, str(i))
    producer.send_offsets_to_transaction({(other, 0): 0}, f"group-{topic}")
    losing.armed = True
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction()
    with pytest.raises(IllegalState):
        producer.send(topic, "too late")
    assert len(values(mq, topic)) == (4 if losing.decided else 0)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic, "4")
    producer.commit_transaction()
    assert sorted(values(mq, topic)) == ["0", "1", "2", "3", "4"]
    assert read_committed_offset(mq, f"group-{topic}", other) == 0


def test_abort_after_an_unanswered_commit_is_refused_if_it_was_decided(
    mq: Connection, topic: str, producer: TransactionalProducer, losing: LostAnswers
):
    producer.begin_transaction()
    producer.send(topic, "a")
    losing.armed = True
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction()
    if losing.decided:
        with pytest.raises(InvalidTxnState):
            producer.abort_transaction()
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, "b")
    producer.commit_transaction()
    assert values(mq, topic) == (["a", "b"] if losing.decided else ["b"])


# -- offsets --------------------------------------------------------------------------------------------


def test_sent_offsets_are_pending_at_once(
    mq: Connection, topic: str, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
):
    mq.publish(topic, pa.table({"value": ["a", "b", "c"]}))
    group, name = f"group-{topic}", f"id-{topic}"
    with mq.consumer(group, assign=[topic]) as consumer:
        batch = consumer.poll()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(batch.offsets, group)
        (info,) = mq.transactions.all(("Ongoing",))
        assert (info.transactional_id, list(info.groups)) == (name, [group])
        assert [row.pending for row in mq.groups.lag(group)] == [name]
        with pytest.raises(UnstableOffsetCommit):
            mq.groups.reset_offsets(group, topic, to="earliest")
        monkeypatch.setattr(position_reader, "HELD_BACK_MS", 0)
        with mq.consumer(group, assign=[topic]) as other:
            for call in (other.committed, other.poll):
                with pytest.raises(UnstableOffsetCommit):
                    call()
            producer.commit_transaction()
            assert not other.poll(), "the first consumer has done all"


def test_send_offsets_tells_a_fenced_producer(mq: Connection, topic: str, producer: TransactionalProducer):
    mq.publish(topic, pa.table({"value": ["a"]}))
    producer.begin_transaction()
    with mq.producer(f"id-{topic}"), pytest.raises(ProducerFenced):
        producer.send_offsets_to_transaction({(topic, 0): 1}, f"group-{topic}")
