"""Processes die, or stop and go on, in the middle of transactions. Each transaction is fetched as a whole, or never."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest
from faults.checks import check_projections
from faults.child import ROWS
from faults.messages import value_of
from faults.processes import PATIENCE_S, QUICK, TOPIC, Processes, assert_killed, is_stopped, settings_that_reach, until
from targets import extended_but, nightly_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.log_reader import WHOLE, Reader
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.clock import SystemClock
from lakemq.errors import RequestTimedOut

Answer = TypeVar("Answer")

STEP_POINTS = {
    "sequencer.elected": 1,
    "sequencer.letters_taken": 1,
    "sequencer.rows_written": 1,
    "sequencer.step_put": 2,
    "sequencer.step_landed": 2,
    "sequencer.answered": 1,
    "sequencer.letters_discarded": 1,
    "projector.rows_written": 1,
    "projector.messages_registered": 1,
    "projector.table_appended": 1,
    "projector.tables_appended": 1,
    "projector.watermark_written": 1,
}
"""Point -> its arrival in the step of a sequencer that finds one letter, or in its projection. A
sequencer's first step says that it leads.
"""
IN_CI = [("sequencer.step_landed", 300), ("sequencer.rows_written", 20_000), ("projector.table_appended", 20_000)]
"""The other points and timeouts are for the night."""
SECOND_TRANSACTION = {"messages": 5, "offsets": 6, "commit": 7}
"""Letter of a producer's second transaction -> its number."""
BEFORE_THE_COMMIT = ("sequencer.elected", "sequencer.letters_taken", "sequencer.rows_written")


def rows_of(name: str, number: int) -> list[str]:
    """Return the messages of a transaction."""
    return [value_of(name, number * ROWS + i) for i in range(ROWS)]


def fetch_values(mq: Connection) -> list[str]:
    return [value.decode() for value in mq.fetch(TOPIC).to_arrow()["value"].to_pylist()]


def offset_of(mq: Connection, group: str) -> int | None:
    """Return the committed offset of partition 0, by the steps."""
    state = Reader(mq.namespace.store, SystemClock(), WHOLE).refresh()
    committed = state.offsets.get(group, {}).get((state.topic_ids[TOPIC], 0))
    return committed.offset if committed else None


def check_all(path: str, transactions: dict[str, list[int]]) -> None:
    """I1, I3, I4, I12: exactly these transactions of each transactional id are there, whole and once.

    Their offsets are the group's. SQL shows the messages of a fetch. The projections are the replay. No letter waits.
    """
    with lakemq.connect(path) as mq:
        mq.step_until_idle(wait_ms=20_000)
        values = fetch_values(mq)
        expected = [value for name, numbers in transactions.items() for n in numbers for value in rows_of(name, n)]
        assert sorted(values) == sorted(expected)
        assert {name: offset_of(mq, name) for name in transactions} == {
            name: numbers[-1] + 1 if numbers else None for name, numbers in transactions.items()
        }
        _, rows = run_query(mq.namespace, f"SELECT value FROM log_committed WHERE topic = '{TOPIC}'")
        assert Counter(value.decode() for (value,) in rows) == Counter(values)
        assert mq.transactions.all(("Ongoing",)) == []
        assert mq.namespace.mailbox.list_waiting(10) == []
        check_projections(mq)


class TransactionWatcher(threading.Thread):
    """Reads committed messages again and again. Transactions come as a whole, and messages stay (I3, I4)."""

    def __init__(self, path: str) -> None:
        super().__init__(name="reader")
        self._path, self._ended = path, threading.Event()
        self.reads, self.error = 0, None

    def run(self) -> None:
        try:
            with lakemq.connect(self._path) as mq:
                before: set[str] = set()
                while not self._ended.is_set():
                    values = fetch_values(mq)
                    current = set(values)
                    assert len(current) == len(values)
                    assert before <= current
                    whole = Counter((v.partition("/")[0], int(v.partition("/")[2]) // ROWS) for v in current)
                    assert set(whole.values()) <= {ROWS}, whole
                    before, self.reads = current, self.reads + 1
                    self._ended.wait(0.02)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join(30)
        assert self.error is None, self.error
        assert self.reads


@contextmanager
def watching(path: str) -> Iterator[None]:
    reader = TransactionWatcher(path)
    reader.start()
    try:
        yield
    finally:
        reader.end()


# -- the producer's process -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter", "successor"),
    [
        ("offsets", True),
        pytest.param("messages", True, marks=pytest.mark.extended),
        pytest.param("commit", True, marks=pytest.mark.extended),
        pytest.param("offsets", False, marks=pytest.mark.extended),
        pytest.param("commit", False, marks=pytest.mark.nightly),
    ],
)
def test_transaction_of_killed_producer_is_aborted_or_committed_whole(family: Processes, letter: str, successor: bool):
    """If the producer had sent messages or offsets, they are aborted. If it had sent the commit, they are committed.

    A letter that was on the line when the producer died may be lost with it. Then it was never sent.
    """
    timeout_ms = 60_000 if successor else 200
    with lakemq.connect(family.path, config=QUICK) as mq, watching(family.path):
        mq.serving()
        point = f"publish.letter_put:{SECOND_TRANSACTION[letter]}"
        patient = {"request.timeout.ms": 100_000}  # a letter that is sent again would count, too
        assert_killed(family.transact("p", 3, timeout_ms, crash_at=point, settings=patient))
        assert family.outcomes("p") == [(0, "committed")]
        # letters of two clients have no order: a look that began in between may find only the later one
        until(lambda: not mq.namespace.mailbox.list_waiting(1), "end of the letter")
        if successor:
            with mq.producer("p") as following:
                assert mq.transactions.describe("p").state == "Empty"
                following.begin_transaction()
        until(lambda: len(mq.transactions.all(("Ongoing",))) == 0, "end of what was open")
        ends = mq.end_offsets(TOPIC)
        assert ends == mq.end_offsets(TOPIC, "read_uncommitted")
        was_sent = letter != "messages" or ends != {0: 3, 1: 3}
        assert not was_sent or ends == {0: 6, 1: 6}, "two markers in each partition"
        committed = [0, 1] if letter == "commit" and len(fetch_values(mq)) > ROWS else [0]
        assert len(fetch_values(mq)) == ROWS * len(committed)
    check_all(family.path, {"p": committed})


@pytest.mark.extended
@pytest.mark.parametrize("letter", nightly_but(["messages"], ["messages", "commit"]))
def test_zombie_is_fenced_after_its_successor_has_committed(family: Processes, letter: str):
    """The zombie is told that it is fenced, or that it has committed if that was decided before its successor came."""
    with lakemq.connect(family.path, config=QUICK) as mq, watching(family.path):
        mq.serving()
        zombie = family.transact("p", 2, stop_at=f"publish.letter_put:{2 if letter == 'messages' else 4}")
        until(lambda: is_stopped(zombie.pid), "stop")
        until(lambda: not mq.namespace.files.list("mailbox"), "decision")
        assert mq.end_offsets(TOPIC, "read_uncommitted")[0] >= 2
        assert family.transact("q", 1).wait(PATIENCE_S) == 0
        assert family.outcomes("q") == [(0, "committed")]
        with mq.producer("p", linger_ms=0) as following:
            following.begin_transaction()
            for i, value in enumerate(rows_of("p", 3)):
                following.send(TOPIC, value, partition=i % 2)
            following.send_offsets_to_transaction({(TOPIC, 0): 4}, "p")
            following.commit_transaction()
            os.kill(zombie.pid, signal.SIGCONT)
            assert zombie.wait(PATIENCE_S) == 0
        first = "PRODUCER_FENCED" if letter == "messages" else "committed"
        outcomes = family.outcomes("p")
        assert outcomes[0] == (0, first)
        assert outcomes[1][1] in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    committed = [3] if letter == "messages" else [0, 3]
    check_all(family.path, {"p": committed, "q": [0]})


def repeat_until_answer(ask: Callable[[], Answer]) -> Answer:
    """Repeat the request until there is an answer. A busy machine may take longer than the shortest
    request.timeout.ms.
    """
    while True:
        with suppress(RequestTimedOut):
            return ask()


# -- the sequencer's process ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "timeout_ms"),
    extended_but(
        IN_CI[:1],
        nightly_but(
            IN_CI,
            [
                *((point, 20_000) for point in STEP_POINTS),
                *((f"sequencer.{name}", 300) for name in ("letters_taken", "step_landed", "answered")),
            ],
        ),
    ),
)
def test_commit_counts_once_though_its_sequencer_is_killed(family: Processes, point: str, timeout_ms: int):
    """The client waits, or repeats its request. It hears of the commit, and its messages are there once.

    Some of its messages were sent before, some travel with the commit.
    """
    with lakemq.connect(family.path, config={**QUICK, "request.timeout.ms": timeout_ms}) as mq:
        before = mq.serving()
        producer = repeat_until_answer(lambda: mq.producer("p", linger_ms=60_000))
        producer.begin_transaction()
        for i, value in enumerate(rows_of("p", 0)):
            producer.send(TOPIC, value, partition=i % 2)
            if i == 1:
                producer.flush()
        producer.send_offsets_to_transaction({(TOPIC, 0): 1}, "p")
        before.close()
        with watching(family.path), ThreadPoolExecutor(1) as pool:
            committing = pool.submit(repeat_until_answer, producer.commit_transaction)
            until(lambda: bool(mq.namespace.files.list("mailbox")), "letter")
            assert_killed(family.serve(crash_at=f"{point}:{STEP_POINTS[point]}", **settings_that_reach(point)))
            if timeout_ms > 1000:  # otherwise its letter may have been withdrawn just then
                landed = point not in BEFORE_THE_COMMIT
                assert bool(fetch_values(mq)) == landed
            mq.serving()
            committing.result(30)
            assert fetch_values(mq) == [rows_of("p", 0)[i] for i in (0, 2, 1, 3)]
            producer.begin_transaction()
            for i, value in enumerate(rows_of("p", 1)):
                producer.send(TOPIC, value, partition=i % 2)
            producer.send_offsets_to_transaction({(TOPIC, 0): 2}, "p")
            repeat_until_answer(producer.commit_transaction)
    check_all(family.path, {"p": [0, 1]})
