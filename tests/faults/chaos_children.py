"""The processes of the chaos run. Each works until it gets the sign to end, and takes notes.

Notes are lines of JSON that all incarnations append. Notes on which checks depend are synced before the process goes
on.
"""

import itertools
import json
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import ConsumerBatch
from lakemq.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
    RebalanceInProgress,
    RequestTimedOut,
    TransactionAbortable,
    UnknownMemberId,
    UnstableOffsetCommit,
)

INPUT, OUTPUT, GROUP, CLASSIC = "in", "out", "g", "classic"
PARTITIONS = 4
KEYS = 20
TRANSACTIONAL_ID, TIMEOUT_MS = "pipeline", 10_000
ABORTS = 0.25
"""Share of the transactions that are aborted on purpose."""
FENCED = 9
"""Exit code of a pipeline that has lost its transactional id to another one."""


T = TypeVar("T")


class Notes:
    """A file of notes. A note survives the death of the process and, if durable, a loss of power."""

    def __init__(self, path: Path, durable: bool = True) -> None:
        self._file, self._durable = path.open("ab", buffering=0), durable

    def add(self, *fields: Any) -> None:
        self._file.write(json.dumps(fields).encode() + b"\n")  # one call: a kill cuts no line in two
        if self._durable:
            os.fsync(self._file.fileno())


def read_notes(path: Path) -> list[list[Any]]:
    """Return the notes of all incarnations."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def goes_on(folder: Path, name: str) -> Callable[[], bool]:
    """Return a function that tells whether the process may go on: until the file `name`.end appears."""
    return lambda: not (folder / f"{name}.end").exists()


# -- producers ------------------------------------------------------------------------------------------


def produce(path: str, config: dict[str, Any], folder: str, name: str, incarnation: int, seed: int) -> None:
    """Send keyed records, numbered per key, and note acknowledgements: [values, {partition: [first, last]}].

    A value is `name.incarnation/key/number`. Records that were not acknowledged are not sent again.
    """
    chance, notes = random.Random(f"{seed}/{name}/{incarnation}"), Notes(Path(folder, f"{name}.notes"))
    numbers, may_go_on = [0] * KEYS, goes_on(Path(folder), name)
    with lakemq.connect(path, config=config) as mq, mq.producer(linger_ms=chance.choice([0, 5])) as producer:
        print("ready", flush=True)
        while may_go_on():
            values = []
            for _ in range(chance.randint(1, 20)):
                key = chance.randrange(KEYS)
                values.append(f"{name}.{incarnation}/{key:02d}/{numbers[key]:06d}")
                numbers[key] += 1
                producer.send(INPUT, values[-1], key=f"key-{key}")
            try:
                offsets = producer.flush().offsets()
            except RequestTimedOut as error:  # the outcome is unknown
                notes.add("unknown", error.name)
                continue
            notes.add("acknowledged", values, {partition: ends for (_, partition), ends in offsets.items()})
            time.sleep(chance.uniform(0, 0.03))


# -- the pipeline ---------------------------------------------------------------------------------------


def pipe(path: str, config: dict[str, Any], folder: str, name: str, incarnation: int, seed: int) -> None:
    """Copy messages in transactions with the offsets of the group, until the sign to end, and then to the end of the
    log.

    A value is `attempt|partition|offset|value`. Notes of an attempt: `begins` with the number of its rows, then
    `aborts` (before it asks for that), `committed` or `failed`.
    """
    chance, notes = random.Random(f"{seed}/{name}/{incarnation}"), Notes(Path(folder, f"{name}.notes"))
    may_go_on = goes_on(Path(folder), name)
    with lakemq.connect(path, config=config) as mq:
        print("ready", flush=True)
        try:
            # take the id first, so that older requests cannot move the group any more; then look where the group is
            copying = _Scoped(mq) if incarnation % 2 else _Produced(mq)
            consumer = mq.consumer(GROUP, assign=[INPUT])
            for number in itertools.count():
                is_last, count = not may_go_on(), chance.randint(1, 400)
                batch = _repeat_until_answer(lambda: consumer.poll(max_records=count, timeout_ms=300))  # noqa: B023
                if not batch:
                    if is_last:
                        return
                    continue
                attempt, aborts = f"{incarnation}.{number}", chance.random() < ABORTS
                notes.add("begins", attempt, batch.record_count)
                try:
                    copying.copy(batch, attempt, (lambda: notes.add("aborts", attempt)) if aborts else None)  # noqa: B023
                    notes.add("committed", attempt)
                except (Aborted, TransactionAbortable, RequestTimedOut) as error:
                    notes.add("failed", attempt, type(error).__name__)
                    copying.recover()
                    consumer = mq.consumer(GROUP, assign=[INPUT])
        except (ProducerFenced, InvalidProducerEpoch) as error:
            notes.add("fenced", incarnation, error.name)
            os._exit(FENCED)  # the owner of the id decides about the open transaction


def _repeat_until_answer(ask: Callable[[], T]) -> T:
    while True:
        with suppress(RequestTimedOut, UnstableOffsetCommit):
            return ask()


class Aborted(Exception):
    """An abort on purpose."""


def _copies(batch: ConsumerBatch, attempt: str) -> pa.Table:
    read = batch.to_arrow()
    rows = zip(*(read[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    values = [f"{attempt}|{partition}|{offset}|{value.decode()}" for partition, offset, value in rows]
    return pa.table({"key": read["key"], "value": values})


class _Scoped:
    """Copy with `mq.transaction`."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self.recover()

    def copy(self, batch: ConsumerBatch, attempt: str, abort: Callable[[], None] | None) -> None:
        with self._transaction as transaction:
            transaction.publish(OUTPUT, _copies(batch, attempt))
            transaction.send_offsets(batch)
            if abort:
                abort()
                raise Aborted

    def recover(self) -> None:
        """Do nothing if leaving the block has aborted the transaction. Taking the id again ends it if the outcome
        is unknown.
        """
        take = partial(self._mq.transaction, TRANSACTIONAL_ID, transaction_timeout_ms=TIMEOUT_MS)
        self._transaction = _repeat_until_answer(take)


class _Produced:
    """Copy with a transactional producer, whose calls are Kafka's."""

    def __init__(self, mq: Connection) -> None:
        self._producer = _repeat_until_answer(lambda: mq.producer(TRANSACTIONAL_ID, transaction_timeout_ms=TIMEOUT_MS))

    def copy(self, batch: ConsumerBatch, attempt: str, abort: Callable[[], None] | None) -> None:
        producer, copies = self._producer, _copies(batch, attempt)
        producer.begin_transaction()
        for key, value in zip(copies["key"].to_pylist(), copies["value"].to_pylist(), strict=True):
            producer.send(OUTPUT, value, key=key)
        producer.send_offsets_to_transaction(batch.offsets, batch.group)
        if abort:
            producer.flush()
            abort()
            raise Aborted
        producer.commit_transaction()

    def recover(self) -> None:
        try:
            _repeat_until_answer(self._producer.abort_transaction)
        except InvalidTxnState:  # the unanswered commit has committed it
            _repeat_until_answer(self._producer.commit_transaction)


# -- members of a classic group --------------------------------------------------------------------------


def share(path: str, config: dict[str, Any], folder: str, name: str, incarnation: int, seed: int) -> None:
    """Read messages as a static member, until the sign to end, and then until the group has read everything.

    Notes: `read` with [partition, offset, value] of each message; then `committed` with {partition: [first, end]}, or
    `refused` or `unknown`.
    """
    chance, notes = random.Random(f"{seed}/{name}/{incarnation}"), Notes(Path(folder, f"{name}.notes"))
    may_go_on = goes_on(Path(folder), name)
    options: dict[str, Any] = {
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 500,
        "max_poll_interval_ms": 10_000,
        "auto_offset_reset": "earliest",
        # a killed member gets its share back under its id; else a kill would stop the group for a session
        "instance_id": name,
    }
    with lakemq.connect(path, config=config) as mq:
        print("ready", flush=True)
        with _repeat_until_answer(
            lambda: mq.consumer(CLASSIC, topics=[INPUT], protocol="classic", **options)
        ) as consumer:
            while may_go_on() or not _has_read_all(mq):
                count = chance.randint(1, 200)
                batch = _repeat_until_answer(lambda: consumer.poll(max_records=count, timeout_ms=100))  # noqa: B023
                if not batch:
                    continue
                notes.add("read", [(m.partition, m.offset, (m.value or b"").decode()) for m in batch])
                try:
                    consumer.commit(batch)
                except (FencedMemberEpoch, IllegalGeneration, RebalanceInProgress, UnknownMemberId) as error:
                    notes.add("refused", error.name)
                except RequestTimedOut:
                    notes.add("unknown")
                else:
                    ends = {partition: end for (_, partition), end in batch.offsets.items()}
                    notes.add("committed", {p: [first, ends[p]] for (_, p), first in batch.starts.items()})


def _has_read_all(mq: Connection) -> bool:
    lags = [partition.lag for partition in mq.groups.lag(CLASSIC)]
    return lags == [0] * PARTITIONS


# -- the tail -------------------------------------------------------------------------------------------


def watch(path: str, config: dict[str, Any], folder: str, name: str, incarnation: int, seed: int) -> None:
    """Tail both topics, from where the last incarnation was killed, and check that offsets never go back.

    Notes of a topic: [partition, offsets, values]. The process ends after the sign to end, when it has seen everything.
    """
    counts = {topic: sum(len(note[1]) for note in read_notes(tail_notes(folder, topic))) for topic in (INPUT, OUTPUT)}
    may_go_on = goes_on(Path(folder), name)
    with lakemq.connect(path, config=config) as mq:
        print("ready", flush=True)
        for topic in counts:
            _in_background(_follow, path, config, folder, topic, counts)
        _in_background(_look_at_bounds, path, config)
        while may_go_on() or any(mq.fetch(topic).record_count > count for topic, count in counts.items()):
            time.sleep(0.1)
    os._exit(0)  # although its threads would go on


def _in_background(act: Callable[..., None], *arguments: Any) -> None:
    def run() -> None:
        try:
            act(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()


def tail_notes(folder: str | Path, topic: str) -> Path:
    return Path(folder, f"tail-{topic}.notes")


def _follow(path: str, config: dict[str, Any], folder: str, topic: str, counts: dict[str, int]) -> None:
    """Note a line per table and partition. Messages without a note because of a kill are read again."""
    start = dict.fromkeys(range(PARTITIONS), 0)
    for partition, offsets, _ in read_notes(tail_notes(folder, topic)):
        start[partition] = offsets[-1] + 1
    notes = Notes(tail_notes(folder, topic), durable=False)
    with lakemq.connect(path, config=config) as mq:
        for table in mq.tail(topic, start=start):
            for partition in pc.unique(table["partition"]).to_pylist():
                rows = table.filter(pc.field("partition") == partition)
                notes.add(partition, rows["offset"].to_pylist(), [v.decode() for v in rows["value"].to_pylist()])
            counts[topic] += table.num_rows


def _look_at_bounds(path: str, config: dict[str, Any]) -> None:
    """I6, I7: last stable offset <= high watermark. Neither of them goes back, nor do the committed offsets of a
    group.
    """
    before: dict[tuple[str, str, int], int] = {}

    def look(figure: str, topic: str, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            last = before.get((figure, topic, partition), 0)
            assert offset >= last, f"{figure} of {topic}-{partition} went back from {last} to {offset}"
            before[figure, topic, partition] = offset

    with lakemq.connect(path, config=config) as mq:
        while True:
            for topic in (INPUT, OUTPUT):
                stable = mq.end_offsets(topic)
                ends = mq.end_offsets(topic, "read_uncommitted")
                assert all(stable[p] <= ends[p] for p in ends), f"{topic}: stable {stable} beyond {ends}"
                look("last stable offset", topic, stable)
                look("high watermark", topic, ends)
            for group in (GROUP, CLASSIC):
                with suppress(GroupIdNotFound):
                    lags = [lag for lag in mq.groups.lag(group) if lag.committed_offset is not None]
                    assert all(lag.lag >= 0 for lag in lags), lags
                    committed = {lag.partition: lag.committed_offset or 0 for lag in lags}
                    look(f"committed offset of {group}", INPUT, committed)
            time.sleep(0.2)


ROLES = {"produce": produce, "pipe": pipe, "share": share, "watch": watch}
