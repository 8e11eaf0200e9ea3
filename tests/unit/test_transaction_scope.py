"""`with mq.transaction(...)`, and what operators can do with transactions."""

from contextlib import suppress

import pyarrow as pa
import pytest
from unit.served import CONFIG, everything, new_topic, read_committed_offset, values
from unit.test_transactions import lose_answer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.errors import (
    IllegalState,
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionTimeout,
    LakeMQError,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.slow


def rows(*texts: str) -> pa.Table:
    return pa.table({"value": texts})


def test_leaving_the_block_commits_rows_and_offsets(mq: Connection, topic: str):
    other = new_topic(mq)
    with mq.transaction(f"{topic}-id") as transaction:
        published = transaction.publish(topic, rows("a", "b"))
        transaction.publish(other, rows(*(f"{i:05d}" * 20 for i in range(300))))
        transaction.send_offsets({(topic, 0): 2}, f"group-{topic}")
        assert (values(mq, topic), values(mq, other), everything(mq, topic)) == ([], [], ["a", "b"])
    assert [unit.base_offset for unit in published.units] == [0]
    assert (values(mq, topic), len(values(mq, other))) == (["a", "b"], 300)
    assert read_committed_offset(mq, f"group-{topic}", topic) == 2


def test_columns_are_named_as_in_a_publish(mq: Connection, topic: str):
    table = pa.table({"k": ["x", "y"], "text": ["2", "1"]})
    with mq.transaction(f"{topic}-id") as transaction:
        transaction.publish(topic, table, key="k", value="text", order_by="text")
    assert values(mq, topic) == ["1", "2"]
    with pytest.raises(InvalidRequest, match="on_error"), mq.transaction(f"{topic}-id") as transaction:
        transaction.publish(topic, table, on_error="reject")


def test_exception_in_the_block_aborts(mq: Connection, topic: str):
    def fail() -> None:
        with mq.transaction(f"{topic}-id") as transaction:
            transaction.publish(topic, rows("a"))
            transaction.send_offsets({(topic, 0): 0}, f"group-{topic}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with mq.transaction(f"{topic}-id") as transaction:
        transaction.publish(topic, rows("b"))
    assert values(mq, topic) == ["b"]
    assert read_committed_offset(mq, f"group-{topic}", topic) is None


@pytest.mark.parametrize(
    ("target", "bad", "error"),
    [("", "x" * 2_000_000, MessageTooLarge), ("nobody-knows-it", "a", UnknownTopicOrPartition)],
)
def test_bad_row_refuses_the_publish_and_the_transaction(
    mq: Connection, topic: str, target: str, bad: str, error: type[LakeMQError]
):
    def publish(caught: tuple[type[LakeMQError], ...] = ()) -> None:
        with mq.transaction(f"{topic}-id") as transaction:
            transaction.publish(topic, rows("good"))
            with suppress(*caught):
                transaction.publish(target or topic, rows("good", bad))

    with pytest.raises(error):
        publish()
    with pytest.raises(TransactionAbortable, match=error.name):
        publish(caught=(error,))
    assert (values(mq, topic), everything(mq, topic)) == ([], ["good", "good"])


def test_second_block_of_an_id_is_refused_while_the_first_is_open(mq: Connection, topic: str):
    with mq.transaction(f"{topic}-id") as outer, mq.transaction(f"{topic}-other") as other:
        with pytest.raises(IllegalState), mq.transaction(f"{topic}-id"):
            pass
        outer.publish(topic, rows("a"))
        other.publish(topic, rows("b"))
    assert values(mq, topic) == ["a", "b"]
    with pytest.raises(IllegalState):
        outer.publish(topic, rows("too late"))


def test_micro_batch_is_published_once(mq: Connection, topic: str):
    def batch(connection: Connection, batch_id: int, fails: bool = False) -> bool:
        with connection.transaction(f"{topic}-id", batch_id=batch_id) as transaction:
            transaction.publish(topic, rows(str(batch_id)))
            transaction.send_offsets({(topic, 0): 0}, f"group-{topic}")
            if fails:
                raise ZeroDivisionError
        return transaction.replayed

    with pytest.raises(ZeroDivisionError):
        batch(mq, 0, fails=True)
    assert [batch(mq, n) for n in (0, 0, 1, 0, 1)] == [False, True, False, True, True]
    assert values(mq, topic) == ["0", "1"]
    with lakemq.connect(mq.namespace.path, config=CONFIG) as connection:
        assert [batch(connection, n) for n in (1, 2)] == [True, False]
        with pytest.raises(InvalidProducerEpoch):
            batch(mq, 3)
        with pytest.raises(ProducerFenced):
            batch(mq, 3)
    assert values(mq, topic) == ["0", "1", "2"]


@pytest.mark.parametrize("decided", [False, True])
def test_unanswered_commit_of_a_block_is_published_once_by_its_repeat(
    mq: Connection, topic: str, decided: bool, monkeypatch: pytest.MonkeyPatch
):
    """The id is initialised again. The batch is repeated, or known to be committed."""
    ask, losses = mq.requester.submit_all, ["commit", "abort"]

    def submit_all(requests):
        if not (losses and isinstance(requests[-1][0], EndTransaction)):
            return ask(requests)
        losses.pop()
        if decided and requests[-1][0].commit:
            [future.result() for future in ask(requests)]
        return lose_answer(requests)

    def batch() -> bool:
        with mq.transaction(f"{topic}-id", batch_id=7) as transaction:
            monkeypatch.setattr(transaction._manager, "_answer_timeout_ms", -1)
            transaction.publish(topic, rows("seven"))
        return transaction.replayed

    monkeypatch.setattr(mq.requester, "submit_all", submit_all)
    with pytest.raises(RequestTimedOut):
        batch()
    assert batch() is decided
    assert (losses, values(mq, topic)) == ([], ["seven"])


def test_second_timeout_of_an_id_is_refused(mq: Connection, topic: str):
    with pytest.raises(InvalidTransactionTimeout):
        mq.transaction(f"{topic}-id", transaction_timeout_ms=10**9)
    mq.transaction(f"{topic}-id", transaction_timeout_ms=5_000)
    for options in ({}, {"transaction_timeout_ms": 5_000}):
        mq.transaction(f"{topic}-id", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"transaction_timeout_ms already\. Found 60000\. Expected 5000"):
        mq.transaction(f"{topic}-id", transaction_timeout_ms=60_000)
    with pytest.raises(InvalidConfig, match=r"Found '5000'\. Expected a whole number"):
        mq.transaction(f"{topic}-id", transaction_timeout_ms="5000")  # type: ignore[arg-type]
    assert mq.transactions.describe(f"{topic}-id").timeout_ms == 5_000
