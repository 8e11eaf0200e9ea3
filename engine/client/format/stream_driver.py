"""A stream on Spark's driver: it plans batches as the log grows, and commits progress for the stream's group."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...protocol.errors import InconsistentClusterId, LakeMQError, OffsetOutOfRange, UnknownTopicId
from ...protocol.values.offsets import CommitOffsets
from ..offsets import ConsumedOffsets, build_offset_commits
from .offsets import Logs, StreamOffset, find_available_ranges, find_logs, find_offsets, find_topic_ids, limit_ranges
from .options import ReadOptions
from .planning import Range, plan_tasks, report_data_loss
from .tasks import MessagesTask

logger = logging.getLogger("lakemq.format")


@dataclass(frozen=True)
class NextBatch:
    """The offsets that the next batch may contain.

    began: where the stream begins, if it is the first batch; now_ms: the time of the newest step.
    """

    namespace_id: str
    ranges: Mapping[tuple[str, int], Range]
    topic_ids: Mapping[str, int]
    began: dict[str, dict[int, int]] | None
    now_ms: int

    @property
    def offset_count(self) -> int:
        return sum(end - start for start, end in self.ranges.values())

    def end(self, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        """Return where a batch of at most `most` offsets ends; `start` itself if nothing is new."""
        end = StreamOffset(limit_ranges(self.ranges, most), self.topic_ids, self.began)
        is_same = bool(start) and replace(StreamOffset.of(start), began=None, now_ms=None, namespace_id=None) == end
        return start if is_same else replace(end, now_ms=self.now_ms, namespace_id=self.namespace_id).to_json()


class StreamDriver:
    """Belongs to one stream; not thread-safe.

    end: the end of the log when it was last read, as JSON of StreamOffset.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options, self._mq = options, options.location.connect()
        self.end: dict[str, Any] | None = None
        self._now_ms = 0
        self._noted: dict[str, Any] = {}
        self._last: Logs | None = None

    def close(self) -> None:
        self._mq.close()

    def stop_at_current_end(self) -> None:
        """Let the stream end at the present end of the log."""
        self._last = self._read_logs(required=False)

    def _read_logs(self, required: bool) -> Logs:
        state = self._mq.state()
        self._now_ms = state.now_ms
        logs = find_logs(state, self._options.selection, self._options.isolation, required)
        ends = {topic: {p: bounds.end for p, bounds in log.items()} for topic, log in logs.items()}
        self.end = StreamOffset(ends, find_topic_ids(logs)).to_json()
        if self._last is None:
            return logs
        # ignore everything that came after the stream was asked to stop
        until = {(bounds.topic_id, p): bounds.end for log in self._last.values() for p, bounds in log.items()}
        return {
            topic: {
                p: replace(bounds, end=min(bounds.end, until[bounds.topic_id, p]))
                for p, bounds in log.items()
                if (bounds.topic_id, p) in until
            }
            for topic, log in logs.items()
        }

    def plan_next_batch(self, start_json: dict[str, Any]) -> NextBatch:
        """Return what may come after an offset.

        Raises:
            OffsetOutOfRange, UnknownTopicId: data was lost.
            InconsistentClusterId: the checkpoint is of another namespace.
        """
        if not start_json:
            logs = self._read_logs(required=True)
            began = find_offsets(self._mq, self._options.start, logs, "startingOffsets")
            start = StreamOffset(began, find_topic_ids(logs))
        else:
            logs, start, began = self._read_logs(required=False), self._parse_own_offset(start_json), None
        self._check_still_there(start, logs)
        return NextBatch(
            self._mq.namespace.namespace_id,
            find_available_ranges(start, logs),
            find_topic_ids(logs),
            began,
            self._now_ms,
        )

    def _parse_own_offset(self, offset_json: dict[str, Any]) -> StreamOffset:
        """Parse an offset of this namespace. Raises InconsistentClusterId: the checkpoint is another namespace's."""
        offset, own_id = StreamOffset.of(offset_json), self._mq.namespace.namespace_id
        if offset.namespace_id not in (None, own_id):
            text = "The checkpoint is of another namespace. Its offsets have no meaning here."
            raise InconsistentClusterId(text, found=offset.namespace_id, expected=f"{own_id}, or a new checkpoint")
        return offset

    def _check_still_there(self, start: StreamOffset, logs: Logs) -> None:
        """Check that the log still has the next offsets."""
        now = find_topic_ids(logs)
        for topic, topic_id in start.topic_ids.items():
            if now.get(topic) != topic_id:
                text_ = "is another topic now" if topic in now else "is not there, or not read, any more"
                gone = UnknownTopicId(
                    f"Topic {topic} {text_}; data may be lost.",
                    found=topic_id,
                    expected="the topics that the checkpoint names, or another checkpoint, or failOnDataLoss=false",
                )
                report_data_loss(self._options, gone)
        for topic, log in logs.items():
            for partition, bounds in log.items():
                at = start.find_start(topic, bounds.topic_id, partition)
                if not bounds.first <= at <= bounds.high_watermark:
                    text = f"{topic}-{partition} does not hold what comes next; data may be lost."
                    expected = f"{bounds.first} to {bounds.high_watermark}, or failOnDataLoss=false"
                    report_data_loss(self._options, OffsetOutOfRange(text, found=at, expected=expected))

    def plan_tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessagesTask]:
        """Return the tasks of the batch between two offsets."""
        last = self._parse_own_offset(end)
        first = self._parse_own_offset(start) if start else StreamOffset(last.began or {}, last.topic_ids)
        ranges = {
            topic: {p: (first.find_start(topic, last.topic_ids[topic], p), at) for p, at in log.items()}
            for topic, log in last.offsets.items()
        }
        filled = {
            topic: {p: range_ for p, range_ in log.items() if range_[1] > range_[0]} for topic, log in ranges.items()
        }
        return plan_tasks(self._mq, self._options, last.topic_ids, filled, last.now_ms)

    def commit_progress(self, offset_json: dict[str, Any]) -> None:
        """Commit for the group that everything before this offset is processed.

        If the commit fails, the stream goes on.
        """
        if self._options.group is None or not offset_json or offset_json == self._noted:
            return
        done = self._parse_own_offset(offset_json)
        offsets = {(topic, p): at for topic, log in done.offsets.items() for p, at in log.items()}
        commits = build_offset_commits(ConsumedOffsets(offsets, done.topic_ids))
        try:
            self._mq.requester.ask(CommitOffsets(self._options.group, commits))
        except LakeMQError as error:
            if not (error.retriable or isinstance(error, UnknownTopicId)):
                raise
            text = "The progress of the stream could not be committed for group %s: %s"
            logger.warning(text, self._options.group, error)
        else:
            self._noted = offset_json
