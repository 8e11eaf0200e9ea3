"""The driver's side of a stream: the log as it grows, and the group that is told how far the stream has come."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...protocol.errors import InconsistentClusterId, LakeMQError, OffsetOutOfRange, UnknownTopicId
from ...protocol.values.offsets import CommitOffsets
from ..offsets import ConsumedOffsets, offset_commits
from .narrowing import Narrowing
from .offsets import StreamOffset, available, ids_of, limited
from .options import ReadOptions
from .planning import Range, lost, tasks_of_ranges
from .positions import Logs, logs_of, offsets_at
from .tasks import MessagesTask

logger = logging.getLogger("lakemq.format")


@dataclass(frozen=True)
class Coming:
    """What the next batch may have. began: where, if it is the first one; now_ms: the time of the newest step."""

    namespace_id: str
    ranges: Mapping[tuple[str, int], Range]
    topic_ids: Mapping[str, int]
    began: dict[str, dict[int, int]] | None
    now_ms: int

    @property
    def offset_count(self) -> int:
        return sum(end - start for start, end in self.ranges.values())

    def end(self, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        """Of a batch of at most so many offsets; `start` itself where that is the same."""
        end = StreamOffset(limited(self.ranges, most), self.topic_ids, self.began)
        is_same = bool(start) and replace(StreamOffset.of(start), began=None, now_ms=None, namespace_id=None) == end
        return start if is_same else replace(end, now_ms=self.now_ms, namespace_id=self.namespace_id).told()


class Following:
    """Not thread-safe. end: of the log when it was looked at last, as StreamOffset tells it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options, self._mq = options, options.place.connect()
        self.end: dict[str, Any] | None = None
        self._now_ms = 0
        self._noted: dict[str, Any] = {}
        self._last: Logs | None = None

    def close(self) -> None:
        self._mq.close()

    def stop_at_the_end(self) -> None:
        """Of the log as it is now."""
        self._last = self._look(required=False)

    def _look(self, required: bool) -> Logs:
        state = self._mq.state()
        self._now_ms = state.now_ms
        logs = logs_of(state, self._options.which, self._options.isolation, required)
        ends = {topic: {p: one.end for p, one in log.items()} for topic, log in logs.items()}
        self.end = StreamOffset(ends, ids_of(logs)).told()
        if self._last is None:
            return logs
        # what has come since the stream was told to stop is not there
        until = {(one.topic_id, p): one.end for log in self._last.values() for p, one in log.items()}
        return {
            topic: {
                p: replace(one, end=min(one.end, until[one.topic_id, p]))
                for p, one in log.items()
                if (one.topic_id, p) in until
            }
            for topic, log in logs.items()
        }

    def coming(self, told: dict[str, Any]) -> Coming:
        """After what was told. Raises OffsetOutOfRange, UnknownTopicId: data was lost; InconsistentClusterId; and what
        a batch raises.
        """
        if not told:
            logs = self._look(required=True)
            began = offsets_at(self._mq, self._options.start, logs, "startingOffsets")
            start = StreamOffset(began, ids_of(logs))
        else:
            logs, start, began = self._look(required=False), self._own(told), None
        self._check(start, logs)
        return Coming(self._mq.namespace.namespace_id, available(start, logs), ids_of(logs), began, self._now_ms)

    def _own(self, told: dict[str, Any]) -> StreamOffset:
        """As it was told, of this namespace. Raises InconsistentClusterId: its checkpoint is another one's."""
        offset, mine = StreamOffset.of(told), self._mq.namespace.namespace_id
        if offset.namespace_id not in (None, mine):
            what = "The checkpoint is of another namespace, whose offsets say nothing here."
            raise InconsistentClusterId(what, found=offset.namespace_id, expected=f"{mine}, or a new checkpoint")
        return offset

    def _check(self, start: StreamOffset, logs: Logs) -> None:
        """That what comes next is still there."""
        now = ids_of(logs)
        for topic, topic_id in start.topic_ids.items():
            if now.get(topic) != topic_id:
                gone = "is another topic now" if topic in now else "is not there, or not read, any more"
                lost(self._options, UnknownTopicId(f"Topic {topic} {gone}; data may be lost.", found=topic_id))
        for topic, log in logs.items():
            for partition, one in log.items():
                at = start.start_of(topic, one.topic_id, partition)
                if not one.first <= at <= one.high_watermark:
                    less = f"{topic}-{partition} does not hold what comes next; data may be lost."
                    expected = f"{one.first} to {one.high_watermark}, or failOnDataLoss=false"
                    lost(self._options, OffsetOutOfRange(less, found=at, expected=expected))

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessagesTask]:
        """Of the batch between them."""
        last = self._own(end)
        first = self._own(start) if start else StreamOffset(last.began or {}, last.topic_ids)
        ranges = {
            topic: {p: (first.start_of(topic, last.topic_ids[topic], p), at) for p, at in log.items()}
            for topic, log in last.offsets.items()
        }
        wanted = {topic: {p: one for p, one in log.items() if one[1] > one[0]} for topic, log in ranges.items()}
        return tasks_of_ranges(self._mq, self._options, last.topic_ids, wanted, Narrowing(), last.now_ms)

    def done_with(self, told: dict[str, Any]) -> None:
        """Tells the group that all before this was read and dealt with. A stream does not end when nobody listens."""
        if self._options.group is None or not told or told == self._noted:
            return
        done = self._own(told)
        places = {(topic, p): at for topic, log in done.offsets.items() for p, at in log.items()}
        commits = offset_commits(ConsumedOffsets(places, done.topic_ids))
        try:
            self._mq.requester.ask(CommitOffsets(self._options.group, commits))
        except LakeMQError as error:
            if not (error.retriable or isinstance(error, UnknownTopicId)):
                raise
            logger.warning("Group %s was not told how far the stream has come: %s", self._options.group, error)
        else:
            self._noted = told
