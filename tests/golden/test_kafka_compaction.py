"""Compaction leaves what Kafka leaves: play the histories of compaction.yaml, which were recorded on a real Kafka."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from finals import PATIENCE_S, let_readers_move_on
from golden.test_golden import cases, name_case

import lakemq
from lakemq import Connection
from lakemq.errors import InvalidRecord
from lakemq.testing import MovableClock, serve, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.extended]

NAMESPACE = {
    "engine.tick.ms": 10,
    "project.interval.ms": 50,
    "final.interval.ms": 50,
    "compact.min.files": 3,
    "merge.grace.ms": 9_000,
    "retention.check.interval.ms": 1_000,
}
TOPIC = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
OTHER = "other"
"""A topic which shows that compaction has had time to clean the first one."""


Content = tuple[bytes | None, bytes | None]
"""Key and value."""


def parse_message(text: str) -> Content:
    """Return the content: `k=v`, `k` without a value, `=v` without a key."""
    key, has_value, value = text.partition("=")
    return key.encode() or None, value.encode() if has_value else None


def show_message(offset: int, key: bytes | None, value: bytes | None) -> str:
    return f"{offset} {(key or b'').decode()}{'' if value is None else '=' + value.decode()}"


def make_fill(first: int, count: int) -> list[Content]:
    """Return messages with keys of their own that cannot be compressed."""
    chance = random.Random(first)
    return [(f"fill-{number}".encode(), chance.randbytes(1_000)) for number in range(first, first + count)]


def is_fill(key: bytes | None) -> bool:
    return (key or b"").startswith(b"fill-")


@pytest.fixture(scope="module")
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory, clock: MovableClock) -> Iterator[Connection]:
    with serve(tmp_path_factory.mktemp("kafka") / "mq", clock, NAMESPACE) as connection:
        connection.topics.create(OTHER, config=TOPIC)
        yield connection


class Player:
    """Plays a history on a topic of its own. Time goes a thousand times as fast as it went in Kafka."""

    def __init__(self, mq: Connection, clock: MovableClock, topic: str, config: dict[str, Any]) -> None:
        self._mq, self._clock, self._topic, self._filled = mq, clock, topic, 0
        scaled = {key: max(-1, value * 1_000) if key.endswith(".ms") else str(value) for key, value in config.items()}
        mq.topics.create(topic, config=TOPIC | scaled)
        self._transaction: Any = None

    def play(self, line: dict[str, Any]) -> None:
        word, given = next(iter(line.items()))
        getattr(self, f"play_{word}")(line.get("lakemq", given))

    def play_send(self, messages: list[str]) -> None:
        self._publish(self._topic, map(parse_message, messages))

    def play_fill(self, count: int) -> None:
        self._publish(self._topic, make_fill(self._filled, count))
        self._filled += count

    def play_refused(self, messages: list[str]) -> None:
        with pytest.raises(InvalidRecord):
            self.play_send(messages)

    def play_tx(self, messages: list[str]) -> None:
        if self._transaction is None:
            self._transaction = self._mq.producer(self._topic, transaction_timeout_ms=900_000)
            self._transaction.begin_transaction()
        for key, value in map(parse_message, messages):
            self._transaction.send(self._topic, value, key=key)
        self._transaction.flush()

    def play_commit(self, _: None) -> None:
        with self._transaction:
            self._transaction.commit_transaction()

    def play_abort(self, _: None) -> None:
        with self._transaction:
            self._transaction.abort_transaction()

    def play_alter(self, config: dict[str, str]) -> None:
        self._mq.topics.alter(self._topic, config=config)

    def play_delete_records(self, end: int) -> None:
        self._mq.topics.delete_records(self._topic, {0: end})

    def play_wait(self, ms: int) -> None:
        self._clock.advance(seconds=ms)

    def play_shows(self, expected: list[str]) -> None:
        self._publish(OTHER, [(b"k", b"1"), (b"k", b"2")])
        self._wait(lambda: len(self._read(OTHER)) == 1)
        assert len(self._read(OTHER)) == 1, "compaction has run"
        self._wait(lambda: self._read(self._topic) == expected)
        assert self._read(self._topic) == expected

    def play_uncommitted(self, expected: list[str]) -> None:
        assert self._read(self._topic, isolation="read_uncommitted") == expected

    def _wait(self, is_done: Callable[[], bool]) -> None:
        def check() -> bool:
            let_readers_move_on(self._mq, self._clock)
            return is_done()

        with suppress(TimeoutError):  # what is there instead says more
            wait_until(check, "compaction", PATIENCE_S)

    def _publish(self, topic: str, messages: Iterable[Content]) -> None:
        keys, values = zip(*messages, strict=True)
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        self._mq.publish(topic, table, on_error="fail")

    def _read(self, topic: str, **options: Any) -> list[str]:
        with lakemq.connect(self._mq.namespace.path) as newcomer:
            messages = list(newcomer.fetch(topic, **options))
        return [show_message(each.offset, each.key, each.value) for each in messages if not is_fill(each.key)]


@pytest.mark.parametrize("case", cases("compaction.yaml"), ids=name_case)
def test_compaction_leaves_what_kafka_leaves(mq: Connection, clock: MovableClock, case: dict[str, Any]) -> None:
    player = Player(mq, clock, f"t{len(mq.topics.list())}", case.get("config", {}))
    for number, line in enumerate(case["history"]):
        try:
            player.play(line)
        except AssertionError as error:
            raise AssertionError(f"line {number}: {line}\n{error}") from error
