"""Play the histories of compaction.yaml on a real Kafka, and write into it what a consumer sees.

    pip install confluent-kafka
    PYTHONPATH=tests python tests/golden/record_kafka.py

Maven fetches Kafka's jars once into the user's cache folder. One broker runs, with KRaft, in a temporary folder.
Record on a quiet machine: in the histories with min.cleanable.dirty.ratio Kafka may else clean after each line.
"""

import itertools
import re
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from golden.compaction_words import Content, is_fill, make_fill, parse_message, show_message
from kafka_broker import run_broker

CASES = Path(__file__).with_name("compaction.yaml")
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
_QUIET_S = 3
"""Compaction has nothing to do if a topic has not changed for so long. The cleaner looks ten times a second."""
_SETTINGS = {
    "log.cleaner.threads": "2",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
}


class Player:
    """Plays a history on a topic of its own."""

    def __init__(self, address: str, number: int, config: dict[str, Any]) -> None:
        self._address, self._topic, self._filled = address, f"t{number}", 0
        self._admin = AdminClient({"bootstrap.servers": address})
        settings = CONFIG | {key: str(value) for key, value in config.items()}
        self._admin.create_topics([NewTopic(self._topic, 1, 1, config=settings)])[self._topic].result(30)
        self._plain = Producer({"bootstrap.servers": address, "linger.ms": 20, "acks": "all"})
        self._transaction: Any = None

    def play(self, line: dict[str, Any]) -> str | None:
        """Return what a line shows, or None."""
        word, given = next(iter(line.items()))
        result: str | None = getattr(self, f"play_{word}")(given)
        time.sleep(0.05)  # the next batch is more than segment.ms younger
        return result

    def play_send(self, messages: list[str]) -> None:
        assert not self._send(self._plain, map(parse_message, messages))

    def play_fill(self, count: int) -> None:
        assert not self._send(self._plain, make_fill(self._filled, count))
        self._filled += count

    def play_refused(self, messages: list[str]) -> None:
        assert self._send(self._plain, map(parse_message, messages)) == {KafkaError.INVALID_RECORD}

    def play_tx(self, messages: list[str]) -> None:
        if self._transaction is None:
            self._transaction = Producer({"bootstrap.servers": self._address, "transactional.id": self._topic})
            self._transaction.init_transactions(30)
            self._transaction.begin_transaction()
        assert not self._send(self._transaction, map(parse_message, messages))

    def play_commit(self, _: None) -> None:
        self._transaction.commit_transaction(30)
        time.sleep(1)  # the broker answers before it writes the marker

    def play_abort(self, _: None) -> None:
        self._transaction.abort_transaction(30)
        time.sleep(1)

    def play_alter(self, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self._topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def play_delete_records(self, end: int) -> None:
        place = TopicPartition(self._topic, 0, end)
        self._admin.delete_records([place])[place].result(30)

    def play_wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def play_shows(self, _: Any) -> str:
        shown, since_s = self._read("read_committed"), time.monotonic()
        while time.monotonic() < since_s + _QUIET_S:
            time.sleep(0.3)
            if (now := self._read("read_committed")) != shown:
                shown, since_s = now, time.monotonic()
        return shown

    def play_uncommitted(self, _: Any) -> str:
        return self._read("read_uncommitted")

    def _send(self, producer: Any, messages: Iterable[Content]) -> set[int]:
        """Send messages as one batch. Return the codes of errors."""
        codes = set[int]()

        def note_error(error: Any, _: Any) -> None:
            if error is not None:
                codes.add(error.code())

        for key, value in messages:
            producer.produce(self._topic, value, key, 0, note_error)
        assert producer.flush(30) == 0
        return codes

    def _read(self, isolation: str) -> str:
        settings = {
            "bootstrap.servers": self._address,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        shown: list[str] = []
        while (message := consumer.poll(30)) is not None:
            if error := message.error():
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                break
            if not is_fill(message.key()):
                shown.append(show_message(message.offset(), message.key(), message.value()))
        consumer.close()
        return f"[{', '.join(shown)}]"


def record(address: str, number: int, case: dict[str, Any]) -> list[str]:
    """Return what the lines `shows` and `uncommitted` of a case show."""
    player = Player(address, number, case.get("config", {}))
    shown = [player.play(line) for line in case["history"]]
    return [text for text in shown if text is not None]


def main() -> None:
    text = CASES.read_text()
    cases = yaml.safe_load(text)
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-kafka-") as folder,
        run_broker(Path(folder), _SETTINGS) as broker,
        ThreadPoolExecutor(len(cases)) as pool,
    ):
        recorded = pool.map(record, itertools.repeat(f"127.0.0.1:{broker.port}"), itertools.count(), cases)
        outcomes = iter([outcome for of_case in recorded for outcome in of_case])
    line = re.compile(r"^(    - (?:shows|uncommitted): )\[.*\]$", re.MULTILINE)
    CASES.write_text(line.sub(lambda found: found[1] + next(outcomes), text))


if __name__ == "__main__":
    main()
