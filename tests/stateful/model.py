"""The model: what a namespace should hold and answer, row by row, in plain Python. No numpy, no Arrow, no shortcuts.

It shares with the engine the shapes of requests and results, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import Produce, Published, Unit
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, ProducerSequences
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, TopicDone

SEQUENCES = 2**31
REFUSED = (0, -1)
"""Where a producer's refused rows count, beside its (topic_id, partition) pairs."""


class Refused(Exception):
    """A refusal, by the error's name."""


@dataclass
class ModelTopic:
    topic_id: int
    topic: str
    subscriptions: list[str]
    logs: list[list[str]]
    """Per partition its messages by offset."""
    log_starts: list[int]
    active: bool = True


@dataclass
class ModelProducer:
    epoch: int
    seen_at_ms: int
    appended: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(topic_id, partition) -> (sequence, count, offset) of the last five."""


@dataclass
class ModelClient:
    number: int
    results: list[Any]
    seen_at_ms: int


@dataclass
class Model:
    step: int = 0
    routing_step: int = 0
    topics: dict[int, ModelTopic] = field(default_factory=dict)
    producers: dict[int, ModelProducer] = field(default_factory=dict)
    next_producer_id: int = 0
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    clients: dict[str, ModelClient] = field(default_factory=dict)
    dead_letters: list[str] = field(default_factory=list)
    lost_files: set[int] = field(default_factory=set)

    def named(self, name: str) -> ModelTopic:
        for topic in self.topics.values():
            if topic.topic == name and topic.active:
                return topic
        raise Refused("UNKNOWN_TOPIC_OR_PARTITION")

    def active(self) -> list[ModelTopic]:
        return [topic for topic in self.topics.values() if topic.active]

    def decide(self, request: AnyRequest, rows: list[list[str]], now_ms: int) -> Any:
        """The result of a request; of a refusal the error's name. rows: the messages of each file, or of the letter."""
        try:
            if isinstance(request, Produce):
                return self._produce(request, rows, now_ms)
            if isinstance(request, CreateTopic):
                return self._create(request)
            if isinstance(request, AlterTopic):
                return self._alter(request)
            if isinstance(request, DeleteTopic):
                self.named(request.topic).active = False
                return Done()
            if isinstance(request, DeleteRecords):
                return self._delete_records(request)
            assert isinstance(request, InitProducer)
            self.producers[self.next_producer_id] = ModelProducer(0, now_ms)
            self.next_producer_id += 1
            return ProducerDone(self.next_producer_id - 1, 0)
        except Refused as refused:
            return str(refused)

    def _create(self, request: CreateTopic) -> TopicDone:
        for topic in self.active():
            if topic.topic == request.topic:
                raise Refused("TOPIC_ALREADY_EXISTS")
        topic_id = max(self.topics, default=0) + 1
        empty: list[list[str]] = [[] for _ in range(request.partitions)]
        self.topics[topic_id] = ModelTopic(
            topic_id, request.topic, request.subscriptions, empty, [0] * request.partitions
        )
        if any(topic.subscriptions for topic in self.active()):
            self.routing_step = self.step
        return TopicDone(topic_id, request.partitions)

    def _alter(self, request: AlterTopic) -> TopicDone:
        topic = self.named(request.topic)
        partitions = request.partitions or len(topic.logs)
        if partitions < len(topic.logs):
            raise Refused("INVALID_PARTITIONS")
        while len(topic.logs) < partitions:
            topic.logs.append([])
            topic.log_starts.append(0)
        if request.subscriptions is not None and request.subscriptions != topic.subscriptions:
            topic.subscriptions = request.subscriptions
            self.routing_step = self.step
        return TopicDone(topic.topic_id, partitions)

    def _delete_records(self, request: DeleteRecords) -> Done:
        topic = self.named(request.topic)
        for partition, before in request.before.items():
            if partition >= len(topic.logs):
                raise Refused("UNKNOWN_TOPIC_OR_PARTITION")
            if before > len(topic.logs[partition]):
                raise Refused("OFFSET_OUT_OF_RANGE")
        for partition, before in request.before.items():
            offset = len(topic.logs[partition]) if before == -1 else before
            topic.log_starts[partition] = max(topic.log_starts[partition], offset)
        return Done()

    def _produce(self, request: Produce, rows: list[list[str]], now_ms: int) -> Published:
        version = request.application
        if version and version.txn_version <= self.versions.get((version.txn_app_id, version.target), -1):
            return Published([], duplicate=True)
        messages = self._messages(request, rows)
        known = self._appended_before(request, messages)
        dead = [rows[r.file][r.first_row + i] for r in request.refused for i in range(r.record_count)]
        refused_before = bool(dead) and self._is_refused_before(request, len(dead))
        units = {unit: known.get(unit) for unit in sorted(messages)}
        if (units or dead) and all(offset is not None for offset in units.values()) and (refused_before or not dead):
            return Published(_units(request, units, messages), len(dead), duplicate=True)
        self._check_fresh(request)
        for (topic, partition), values in messages.items():
            if known.get((topic, partition)) is None:
                log = self.topics[request.topics[topic].topic_id].logs[partition]
                units[topic, partition] = len(log)
                log.extend(values)
                self._remember(request, (topic, partition), len(values), len(log) - len(values), now_ms)
        if dead and not refused_before:
            self.dead_letters += dead
            if request.producer:
                sequence = request.producer.refused_sequence
                assert sequence is not None
                self._note(request.producer, REFUSED, sequence, len(dead), 0, now_ms)
        if version:
            self.versions[version.txn_app_id, version.target] = version.txn_version
        return Published(_units(request, units, messages), len(dead))

    def _messages(self, request: Produce, rows: list[list[str]]) -> dict[tuple[int, int], list[str]]:
        """(index of topic, partition) -> what the request puts there, in order."""
        found: dict[tuple[int, int], list[str]] = {}
        r = request.ranges
        for topic, partition, file, first, count in zip(
            r.topic_index, r.partition, r.file, r.first_row, r.record_count, strict=True
        ):
            for row in range(first, first + count):
                found.setdefault((topic, partition), []).append(rows[file][row])
        return found

    def _sequence(self, request: Produce, unit: tuple[int, int]) -> int:
        named = request.producer
        assert named
        units = list(zip(named.topic_index, named.partition, strict=True))
        return named.base_sequence[units.index(unit)]

    def _appended_before(
        self, request: Produce, messages: dict[tuple[int, int], list[str]]
    ) -> dict[tuple[int, int], int]:
        named = request.producer
        if named is None:
            return {}
        producer = self.producers.get(named.producer_id)
        if producer is None:
            raise Refused("UNKNOWN_PRODUCER_ID")
        if named.producer_epoch < producer.epoch:
            raise Refused("INVALID_PRODUCER_EPOCH")
        known = {}
        for unit in sorted(messages):
            key = (request.topics[unit[0]].topic_id, unit[1])
            found = self._found(named, key, self._sequence(request, unit), len(messages[unit]))
            if found is not None:
                known[unit] = found
        return known

    def _is_refused_before(self, request: Produce, count: int) -> bool:
        named = request.producer
        if named is None:
            return False
        assert named.refused_sequence is not None
        return self._found(named, REFUSED, named.refused_sequence, count) is not None

    def _found(self, named: ProducerSequences, key: tuple[int, int], sequence: int, count: int) -> int | None:
        """The offset of what was appended before under this sequence; None: it is the next."""
        producer = self.producers[named.producer_id]
        last = producer.appended.get(key, []) if named.producer_epoch == producer.epoch else []
        for s, n, offset in last:
            if (s, n) == (sequence, count):
                return offset
        if sequence != ((last[-1][0] + last[-1][1]) % SEQUENCES if last else 0):
            raise Refused("OUT_OF_ORDER_SEQUENCE_NUMBER")
        return None

    def _remember(self, request: Produce, unit: tuple[int, int], count: int, offset: int, now_ms: int) -> None:
        if request.producer is not None:
            key = (request.topics[unit[0]].topic_id, unit[1])
            self._note(request.producer, key, self._sequence(request, unit), count, offset, now_ms)

    def _note(
        self, named: ProducerSequences, key: tuple[int, int], sequence: int, count: int, offset: int, now_ms: int
    ) -> None:
        producer = self.producers[named.producer_id]
        if named.producer_epoch > producer.epoch:
            producer.epoch, producer.appended = named.producer_epoch, {}
        producer.seen_at_ms = now_ms
        last = producer.appended.setdefault(key, [])
        last.append((sequence, count, offset))
        del last[:-5]

    def _check_fresh(self, request: Produce) -> None:
        if self.routing_step > request.metadata_step:
            raise Refused("STALE_TOPIC_METADATA")
        for ref in request.topics:
            topic = self.topics[ref.topic_id]
            if not topic.active or len(topic.logs) != ref.partition_count:
                raise Refused("STALE_TOPIC_METADATA")
        if any(file.file_id in self.lost_files for file in request.files):
            raise Refused("FILE_MISSING")


def _units(
    request: Produce, offsets: dict[tuple[int, int], int | None], messages: dict[tuple[int, int], list[str]]
) -> list[Unit]:
    return [
        Unit(request.topics[topic].topic, partition, offset or 0, len(messages[topic, partition]))
        for (topic, partition), offset in offsets.items()
    ]
