"""A process of a test: a fork of `forks.py`, or `python -m faults.child ROLE <JSON>`. `play` has the roles.

It lives until it is stopped or killed, or has done its work. The line `ready` on stdout says that it is at work. Each
role imports only the modules that it needs, because most of a child's cost is its start.
"""

import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from defects import raise_for_defects
from faults.messages import value_of

import lakemq
from lakemq.engine.namespace.extras import hide_pandas

with hide_pandas():  # no role uses frames, and pandas is half of a child's imports
    from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace import crash
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.errors import LakeMQError

raise_for_defects()

ROWS = 4
"""Messages of a transaction."""


def connect(path: str, config: dict[str, Any], stop_at: str | None = None) -> Connection:
    """Connect. stop_at: where the process stops itself, once (SIGSTOP). LAKEMQ_CRASH_AT says where it dies.

    `point` or `point:n`, the n-th arrival there; `point:name`, the first arrival at which the namespace has that file.
    """
    reached = _build_stop(stop_at, Path(path)) if stop_at else None
    return Connection(open_namespace(path, load_config(overrides=config)), crash_point=reached)


def _build_stop(place: str, folder: Path) -> crash.CrashPoint:
    point, _, condition = place.partition(":")
    assert point in crash.POINTS, point
    arrivals, has_stopped = itertools.count(1), False

    def is_time() -> bool:
        return (
            next(arrivals) == int(condition or 1)
            if condition.isdigit() or not condition
            else (folder / condition).exists()
        )

    def reached(name: str) -> None:
        nonlocal has_stopped
        if name == point and not has_stopped and is_time():
            has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    return reached


def serve(
    path: str, config: dict[str, Any], stop_at: str | None = None, packs: bool = False, recurs_ms: int | None = None
) -> None:
    """Run a sequencer, as `lakemq serve` does.

    packs: delays that are due within a second are packed too, in tiny blocks. recurs_ms: every cron expression occurs
    at the multiples of this. Messages are read from final files within `merge.grace.ms`, and not ten seconds later. A
    reader that takes longer to load begins again.
    """
    from itertools import count

    from lakemq.engine.maintenance import housekeeping
    from lakemq.engine.protocol.rules import schedules
    from lakemq.jobs.process.streams import log_to_stderr
    from lakemq.jobs.serve import serve_until_signal

    if packs:
        _pack_tiny_blocks()
    housekeeping.LOAD_MS = min(housekeeping.LOAD_MS, config.get("merge.grace.ms", housekeeping.LOAD_MS))
    if recurs_ms is not None:
        schedules._iterate_occurrences = lambda cron, zone, after_ms: count(
            (after_ms // recurs_ms + 1) * recurs_ms, recurs_ms
        )
    with connect(path, config, stop_at) as mq, log_to_stderr(logging.INFO):
        print("ready", flush=True)
        serve_until_signal(mq)


def _pack_tiny_blocks() -> None:
    from lakemq.engine.protocol.rows import delays
    from lakemq.engine.protocol.values import packed
    from lakemq.engine.sequencer import delay_queue, term

    packed.BLOCK_RANGES = packed.BLOCK_RANGES = 4
    packed.MAX_SMALL_BLOCKS = 2
    delays.RESTORED_RANGES, delays.NEAR_MS = 3, 200
    delay_queue._MAX_QUEUED_PER_STEP, delay_queue._MAX_BLOCKS_PER_STEP, delay_queue._MAX_QUEUE = 2, 1, 5
    term.DelayQueue = partial(delay_queue.DelayQueue, near_ms=200, packed_at_once=2)  # type: ignore[assignment, misc]


def publish(
    path: str, config: dict[str, Any], topic: str, publisher: str, count: int, acknowledged: str, by: str
) -> None:
    """Publish `count` messages one by one, and note each acknowledgement in a file. Go on after the last note.

    by: `producer` (idempotent; notes have partition and offset) or `application` (txn_app_id; notes have no offset).
    """
    notes = Path(acknowledged)
    first = len(notes.read_text().splitlines()) if notes.exists() else 0
    with connect(path, config) as mq, notes.open("a") as file:
        print("ready", flush=True)
        send = _by_producer(mq, topic) if by == "producer" else _by_application(mq, topic, publisher)
        for number in range(first, count):
            value = value_of(publisher, number)
            place = send(value, number)
            file.write(json.dumps([value, *place]) + "\n")
            file.flush()


def _by_producer(mq: Connection, topic: str) -> Any:
    producer = mq.producer(linger_ms=0)

    def send(value: str, number: int) -> tuple[int, int | None]:
        producer.send(topic, value, key=value)
        (((_, partition), (offset, last)),) = producer.flush().offsets().items()
        assert offset == last
        return partition, offset

    return send


def _by_application(mq: Connection, topic: str, publisher: str) -> Any:
    import pyarrow as pa

    def send(value: str, number: int) -> tuple[int, int | None]:
        table = pa.table({"value": [value], "partition": [number % 2]})
        published = mq.publish(topic, table, txn_app_id=publisher, txn_version=number)
        assert published.duplicate or len(published.units) == 1
        return number % 2, None

    return send


def transact(
    path: str,
    config: dict[str, Any],
    topic: str,
    transactional_id: str,
    count: int,
    timeout_ms: int,
    outcomes_file: str,
    stop_at: str | None = None,
) -> None:
    """Commit `count` transactions of ROWS messages in two partitions, and note the outcome of each in a file.

    A transaction is three letters: its messages, the offset of a group, and the commit. The first letter is for the
    transactional id.
    """
    notes = Path(outcomes_file)
    with connect(path, config, stop_at) as mq, notes.open("a") as file:
        print("ready", flush=True)
        producer = mq.producer(transactional_id, transaction_timeout_ms=timeout_ms, linger_ms=60_000)
        for number in range(count):
            try:
                producer.begin_transaction()
                for i in range(ROWS):
                    producer.send(topic, value_of(transactional_id, number * ROWS + i), partition=i % 2)
                producer.flush()
                producer.send_offsets_to_transaction({(topic, 0): number + 1}, transactional_id)
                producer.commit_transaction()
                outcome = "committed"
            except LakeMQError as error:
                outcome = error.name
            file.write(json.dumps([number, outcome]) + "\n")
            file.flush()


def consume(path: str, config: dict[str, Any], topic: str, group: str, notes: str, session_ms: int) -> None:
    """Read as a member of a group until SIGTERM. Note the messages, [partition, offset, value], and commit them."""
    from lakemq.errors import FencedMemberEpoch, UnknownMemberId

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    options = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": 500, "auto_offset_reset": "earliest"}
    with connect(path, config) as mq, Path(notes).open("a", buffering=1) as file:

        def note(word: str, places: list[Any]) -> None:
            file.write(json.dumps([word, places]) + "\n")

        with mq.consumer(group, topics=[topic], protocol="cooperative", **options) as consumer:
            print("ready", flush=True)
            while not stopped:
                batch = consumer.poll(max_records=7, timeout_ms=20)
                if not batch:
                    continue
                note("read", [[m.partition, m.offset, m.value.decode()] for m in batch])
                with suppress(FencedMemberEpoch, UnknownMemberId):
                    consumer.commit(batch)


def drain(path: str, config: dict[str, Any], topic: str, group: str, notes: str, session_ms: int) -> None:
    """Consume as a member of a queue until SIGTERM. Note the messages, acknowledge each, and note that.

    A line is `given`, [partition, offset, value, delivery count], or `done`, [partition, offset].
    """
    from lakemq.errors import FencedMemberEpoch, UnknownMemberId

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    options = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": 500, "auto_offset_reset": "earliest"}
    with connect(path, config) as mq, Path(notes).open("a", buffering=1) as file:

        def note(word: str, places: list[Any]) -> None:
            file.write(json.dumps([word, places]) + "\n")

        with mq.consumer(group, topics=[topic], protocol="queue", **options) as consumer:
            print("ready", flush=True)
            while not stopped:
                messages = list(consumer.poll(max_records=7, timeout_ms=20))
                if not messages:
                    continue
                note("given", [[m.partition, m.offset, m.value.decode(), m.delivery_count] for m in messages])
                with suppress(FencedMemberEpoch, UnknownMemberId):
                    for message in messages:
                        consumer.ack(message)
                    consumer.flush()
                    note("done", [[m.partition, m.offset] for m in messages])


def fill(path: str, config: dict[str, Any], topic: str, publisher: str, rounds: int, count: int, notes: str) -> None:
    """Make a namespace and publish to it, with one sequencer after the other. Note acknowledgements.

    Between two sequencers the logs of all tables get old, so that the next one removes entries.
    """
    from faults.ageing import age_log, log_entries, newest_version
    from faults.power import tell

    from lakemq.tables.specs.registry import TABLES

    numbers, clients = itertools.count(), Path(path, "clients")
    lakemq.connect(path, create=True).close()
    print("ready", flush=True)
    for round_number in range(rounds):
        with connect(path, config) as mq:
            mq.serving()
            mq.topics.create(topic, partitions=2, exist_ok=True)
            send = _by_producer(mq, topic)
            for number in itertools.islice(numbers, count):
                value = value_of(publisher, number)
                tell(notes, [value, *send(value, number)])
            if round_number:
                _create_topics_until(mq, lambda: log_entries(clients)[0].stem != f"{0:020d}")
            else:  # a checkpoint that is not the newest version, so that it can grow old
                _create_topics_until(mq, lambda: newest_version(clients) > 2 * config["checkpoint.interval"])
        for spec in TABLES:
            age_log(Path(path, spec.name))  # no sequencer runs now


def _create_topics_until(mq: Connection, condition: Callable[[], bool]) -> None:
    """Create topics until the condition holds: housekeeping looks after tables with new commits."""
    from faults.processes import until

    numbers = itertools.count()

    def create_topic_and_look() -> bool:
        mq.topics.create(f"another-{next(numbers)}", exist_ok=True)
        return condition()

    until(create_topic_and_look, "removal of a log entry")


def play(role: str, arguments: dict[str, Any]) -> None:
    roles = {"serve": serve, "publish": publish, "transact": transact, "consume": consume, "drain": drain, "fill": fill}
    if role not in roles:
        from faults import chaos_children

        roles = chaos_children.ROLES
    roles[role](**arguments)


if __name__ == "__main__":
    play(sys.argv[1], json.loads(sys.argv[2]))
