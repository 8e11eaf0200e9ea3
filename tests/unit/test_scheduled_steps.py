"""Sequencing on a schedule with `step --until-idle`: short runs, and events that take longer than a run to notice."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol_harness import letter_bytes

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef

pytestmark = pytest.mark.slow

GAP_MS = TIMEOUT_MS = 200
CONFIG = {"engine.tick.ms": 1, "engine.idle.ms": 10, "request.gap.ms": GAP_MS}


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        yield mq


def leave_open(mq: Connection, name: str, timeout_ms: int) -> None:
    started = mq.requester.ask(InitProducer(name, timeout_ms))
    assert isinstance(started, ProducerDone)
    mq.requester.ask(
        CommitOffsets(
            name, [OffsetCommit("t", 0, 0)], TransactionRef(name, started.producer_id, started.producer_epoch)
        )
    )


def test_a_run_ends_a_transaction_that_is_overdue_and_waits_for_no_other(mq: Connection) -> None:
    with mq.serving():
        mq.topics.create("t")
        leave_open(mq, "young", 60_000)
        leave_open(mq, "overdue", TIMEOUT_MS)
    time.sleep(2 * TIMEOUT_MS / 1000)
    begun_s = time.monotonic()
    mq.step_until_idle()
    assert time.monotonic() - begun_s > TIMEOUT_MS / 1000, "its owner must have had the chance to be heard"
    assert {name: mq.transactions.describe(name).state for name in ("overdue", "young")} == {
        "overdue": "CompleteAbort",
        "young": "Ongoing",
    }
    assert time.monotonic() - begun_s < 30


def test_a_run_refuses_what_comes_after_a_gap(mq: Connection) -> None:
    mq.namespace.mailbox.put("gone", 2, letter_bytes(Letter("gone", 2, [InitProducer()], 0)), 0)
    mq.step_until_idle()
    assert mq.namespace.mailbox.list_waiting(9) == []


def test_a_run_in_which_the_missing_letter_comes_decides_both(mq: Connection) -> None:
    for number in (2, 1):
        mq.namespace.mailbox.put("c", number, letter_bytes(Letter("c", number, [InitProducer()], 0)), 0)
    assert mq.step_until_idle() == 2
