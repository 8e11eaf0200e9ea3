"""What the sequencer knows. Always the fold of `evolve` over the journal, from a snapshot in the projections.

It holds one entry per topic, partition, producer, application and client, and nothing per segment or message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnknownTopicOrPartition
from .parameters import TOPIC
from .records import UnitAppended
from .requests import AnyResult

Offsets = npt.NDArray[np.int64]


@dataclass
class Topic:
    """A topic and its partitions; `high_watermarks[p]` is the offset the next message of partition p gets."""

    topic_id: int
    topic: str
    config: dict[str, Any]
    subscriptions: list[str]
    high_watermarks: Offsets
    log_starts: Offsets
    active: bool = True

    @property
    def partition_count(self) -> int:
        return len(self.high_watermarks)

    @property
    def last_stable_offsets(self) -> Offsets:
        """Where read_committed ends; with no transaction open this is the high watermark."""
        return self.high_watermarks

    def setting(self, key: str) -> Any:
        """The value set, else the default."""
        return self.config.get(key, TOPIC[key].default)


@dataclass
class Producer:
    """An idempotent producer: its last five appends per (topic_id, partition), oldest first."""

    epoch: int
    seen_at_ms: int
    units: dict[tuple[int, int], tuple[UnitAppended, ...]] = field(default_factory=dict)


@dataclass
class Client:
    """A client process: its last letter and what was answered, kept for a repeat after a crash."""

    number: int
    results: list[AnyResult]
    seen_at_ms: int


@dataclass
class Application:
    """Last txn_version published by an application to a target."""

    version: int
    seen_at_ms: int


@dataclass
class State:
    """`now_ms` is the time of the last decision; `step` the last step folded in."""

    step: int = 0
    now_ms: int = 0
    leader: str = ""
    leader_epoch: int = 0
    lease_ms: int = 0
    next_topic_id: int = 1
    next_producer_id: int = 0
    subscriptions_step: int = 0
    topics: dict[int, Topic] = field(default_factory=dict)
    topic_ids: dict[str, int] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    applications: dict[tuple[str, str], Application] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)

    def topic(self, name: str) -> Topic:
        """The active topic of this name; raises UnknownTopicOrPartition."""
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition("There is no such topic.", found=name[:MAX_SHOWN])
        return self.topics[topic_id]

    def active_topics(self) -> Iterator[Topic]:
        return (self.topics[topic_id] for topic_id in self.topic_ids.values())

    def subscriptions(self) -> dict[str, list[str]]:
        """Topic name -> subscriptions, for every active topic."""
        return {topic.topic: topic.subscriptions for topic in self.active_topics()}


MAX_SHOWN = 60
