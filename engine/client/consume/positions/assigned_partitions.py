"""Partitions that a user has assigned to a consumer: all those of some topics, and single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from ....namespace.processes.clock import Clock
from ....protocol.errors import ThrottlingQuotaExceeded, UnstableOffsetCommit
from ....protocol.values.consuming.offsets import FetchOffsets, OffsetCommit, OffsetsFetched
from ...fetch.planning.plan import Bounds, Isolation, unknown_partition
from ...offsets import ConsumedOffsets, TopicPartition
from ...requests.requester import Requester
from ..batch import Ownership
from ..outcome import PollOutcome
from ..poll_loop import ConsumerLock
from .position_reader import PositionReader
from .positions import Positions

_RETRY_MS = 20


class FindBounds(Protocol):
    """Returns the bounds of all partitions of some topics; newest=False: as of the step that was read last."""

    def __call__(
        self, topics: Iterable[str], isolation: Isolation, newest: bool = True
    ) -> Mapping[TopicPartition, Bounds]: ...


class AssignedPartitions:
    """The assigned partitions of one consumer, which holds its lock for every call."""

    def __init__(
        self,
        lock: ConsumerLock,
        requester: Requester,
        find_bounds: FindBounds,
        group: str,
        topics: Sequence[str],
        assign: Sequence[TopicPartition],
        isolation: Isolation,
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        """timeout_ms: how long to wait for committed offsets that an open transaction holds back."""
        self._lock, self._requester, self._find_bounds, self._group = lock, requester, find_bounds, group
        self._topics, self._assigned = frozenset(topics), frozenset(assign)
        self._isolation, self._clock, self._timeout_ms = isolation, clock, timeout_ms
        self.revoked: AbstractSet[TopicPartition] = frozenset()
        self._has_begun = False

    def update(self, reader: PositionReader, newest: bool) -> None:
        self._lock.check_open()
        self._find_bounds((), self._isolation, newest)

    def read_bounds(self, positions: Positions, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions. Raises UnknownTopicOrPartition: one of them is not there."""
        topics = sorted({*self._topics, *(topic for topic, _ in self._assigned)})
        existing = self._find_bounds(topics, self._isolation, newest)
        for topic, partition in self._assigned - existing.keys():
            raise unknown_partition(topic, partition, sum(name == topic for name, _ in existing))
        bounds = {p: of for p, of in existing.items() if p[0] in self._topics or p in self._assigned}
        positions.follow(bounds, are_new=self._has_begun)
        self._has_begun = True
        return bounds

    def read_committed(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed. Waits while an open transaction holds some of the offsets back.

        Raises:
            UnstableOffsetCommit: that takes too long.
            ThrottlingQuotaExceeded: the sequencer was too busy with other answers all that time.
        """
        request = FetchOffsets(self._group, list(topic_partitions))
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        while True:
            try:
                answer = self._requester.ask(request)
            except (UnstableOffsetCommit, ThrottlingQuotaExceeded):
                if self._clock.steady_ms() > deadline_ms:
                    raise
                self._clock.sleep(_RETRY_MS)
                continue
            assert isinstance(answer, OffsetsFetched)
            return {(commit.topic, commit.partition): commit for commit in answer.offsets}

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Ownership]:
        return {}

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        return ConsumedOffsets(offsets, topic_ids)

    def waits_for_partitions(self) -> bool:
        return False

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        return PollOutcome.NOT_YET if is_behind() else PollOutcome.AT_END

    def explain_outcome(self, outcome: PollOutcome) -> Sequence[str]:
        return ()
