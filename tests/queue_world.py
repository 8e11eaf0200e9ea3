"""Real queue consumers over the core in memory. No store, no threads. Letters arrive when a test says so."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from clocks import ManualClock
from protocol_harness import Harness

from lakemq.engine.client.consume.membership import Membership
from lakemq.engine.client.consume.options import MemberOptions
from lakemq.engine.client.consume.parts import ConsumerParts
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.fetch.fetch_result import Message, Row
from lakemq.engine.client.fetch.fetcher import RangeFetcher
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.errors import Refusal, RequestTimedOut, error_from_refusal
from lakemq.engine.protocol.values.deliveries import Acquire
from lakemq.engine.protocol.values.state import State

_NO_WAITER = SimpleNamespace(reset=lambda: None, needs_look=lambda: True, note_arrival=lambda: None, close=lambda: None)
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class Letter:
    """Requests that travel together, and the futures of their answers."""

    requests: list[Any]
    futures: list[Future[Any]] = field(default_factory=list)


class QueueWorld:
    """A namespace in memory. While `holds_letters` is set, letters that consumers submit without waiting wait for
    `deliver`. `after_rest` is called when a poll has waited.
    """

    def __init__(self, partitions: int = 1, topic: str = "t") -> None:
        self.core, self.topic, self.clock = Harness(), topic, ManualClock()
        self.core.now_ms = self.clock.ms
        self.core.create(topic, partitions)
        self.holds_letters = False
        self.letters: list[Letter] = []
        self.followed, self._followed_count = State(), 0
        self.look_count = 0
        self.after_rest: Callable[[], None] = lambda: None
        self._member_numbers = itertools.count(1)

    def publish(self, counts: Mapping[int, int]) -> None:
        self.decide([self.core.produce(counts, self.topic)])

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.core.now_ms = self.clock.ms
        self.core.expire()
        self.core.assign()

    def consumer(self, group: str = "g", listener: Any = None, **config: Any) -> QueueConsumer:
        """Make a member of a queue group. config: its settings, with keys that have _ for a dot."""
        settings = {"group.protocol": "queue", **{key.replace("_", "."): value for key, value in config.items()}}
        options = MemberOptions([self.topic], auto_offset_reset="earliest", config=settings)
        heart = SimpleNamespace(add=lambda *_: SimpleNamespace(stop=lambda: None, polls=0))
        membership = Membership(
            self,  # type: ignore[arg-type]
            heart,  # type: ignore[arg-type]
            self._look,
            lambda: f"C{next(self._member_numbers)}",
            group,
            "read_committed",
            options,
        )
        parts = ConsumerParts(
            group,
            self,  # type: ignore[arg-type]
            RangeFetcher(_FetchResult, "read_committed"),  # type: ignore[arg-type]
            self.clock,
            _NO_WAITER,  # type: ignore[arg-type]
            lambda _: (),
        )
        consumer = QueueConsumer(parts, membership, listener)
        consumer._reader.rest = self._rest  # type: ignore[method-assign]
        return consumer

    def _rest(self, poll_ms: int, most_ms: int) -> None:
        """Let the clock move. Polls never wait in real time."""
        self.clock.sleep(max(min(poll_ms, most_ms), 1))
        self.after_rest()

    def _look(self, look: Any, newest: bool = True) -> Any:
        self.look_count += 1
        self.core.now_ms = max(self.core.now_ms, self.clock.ms)
        machine.follow(self.followed, self.core.steps[self._followed_count :])
        self._followed_count = len(self.core.steps)
        return look(self.followed)

    # -- letters ------------------------------------------------------------------------------------------

    def decide(self, requests: Sequence[Any]) -> list[Any]:
        """Decide one letter and return its results, with refusals as errors."""
        self.core.now_ms = max(self.core.now_ms, self.clock.ms)
        results = self.core.ask(*requests)
        self.core.assign()
        return [error_from_refusal(result) if isinstance(result, Refusal) else result for result in results]

    def ask(self, request: Any) -> Any:
        (result,) = self.decide([request])
        if isinstance(result, Exception):
            raise result
        return result

    def submit(self, request: Any) -> Future[Any]:
        return self.submit_all([(request, None)])[0]

    def submit_all(self, requests: Sequence[tuple[Any, Any]]) -> list[Future[Any]]:
        letter = Letter([request for request, _ in requests], [Future() for _ in requests])
        self.letters.append(letter)
        if not self.holds_letters:
            self.deliver()
        return letter.futures

    def deliver(self, count: int | None = None, is_answered: bool = True) -> None:
        """Decide the oldest letters. is_answered: if not, their clients only learn that there was no answer."""
        for letter in self.letters[:count]:
            for future, result in zip(letter.futures, self.decide(letter.requests), strict=True):
                if not is_answered and not isinstance(letter.requests[0], Acquire):
                    result = RequestTimedOut("No answer; the outcome is unknown.")
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        del self.letters[:count]

    def lose(self, count: int | None = None) -> None:
        """Lose the oldest letters. Their clients learn that there was no answer."""
        for future in (future for letter in self.letters[:count] for future in letter.futures):
            future.set_exception(RequestTimedOut("No answer; the outcome is unknown."))
        del self.letters[:count]

    # -- the state ------------------------------------------------------------------------------------------

    def deliveries(self, group: str = "g") -> dict[int, list[tuple[int, int, str, int]]]:
        """Return the group's deliveries of each partition: first offset, count, status, delivery count."""
        return {
            partition: [
                (stretch.first, stretch.length, stretch.status.value, stretch.deliveries)
                for stretch in deliveries.stretches
            ]
            for (_, partition), deliveries in sorted(self.core.state.deliveries.get(group, {}).items())
        }


class _FetchResult:
    """Messages by offset: each offset of the topic has one."""

    def __init__(self, topic: str, topic_id: int, _: str, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        self._topic, self._spans = topic, [(p, start[p], end[p]) for p in sorted(start)]
        columns = {
            "partition": [p for p, _, _ in self._spans],
            "base_offset": [first for _, first, _ in self._spans],
            "record_count": [until - first for _, first, until in self._spans],
        }
        ranges = [SimpleNamespace(partition=p, start=first) for p, first, _ in self._spans]
        self.plan = SimpleNamespace(
            topic=topic,
            topic_id=topic_id,
            ranges=ranges,
            segments=pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}),
        )
        self.hidden: tuple[dict[int, np.ndarray[Any, Any]], ...] = ({}, {})
        self.record_count = sum(columns["record_count"])

    def _rows(self) -> Iterator[Row]:
        for partition, first, until in self._spans:
            for offset in range(first, until):
                yield self._topic, partition, offset, _EPOCH, None, b"%d" % offset, (), 1


def take_messages(consumer: QueueConsumer, count: int) -> list[Message]:
    """Poll until this many messages have come, and return them."""
    messages: list[Message] = []
    for _ in range(20):
        if len(messages) < count:
            messages += consumer.poll(timeout_ms=20)
    assert len(messages) == count
    return messages


def deliver(counts: Mapping[int, int], **config: Any) -> tuple[QueueWorld, QueueConsumer, list[Message]]:
    """Return a world with this many messages in each partition, and a member of a queue that has got them all."""
    world = QueueWorld(len(counts))
    world.publish(counts)
    consumer = world.consumer(**config)
    return world, consumer, take_messages(consumer, sum(counts.values()))
