"""Words of stories about queue groups. A story writes messages as ranges of offsets: `0-4`, or `7` for one."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from protocol_harness import Harness

from lakemq.engine.protocol.values.assignments import TopicIdPartition
from lakemq.engine.protocol.values.dead_letters import REDRIVE, Cause, SettleDeadLetters
from lakemq.engine.protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    AckOutcome,
    Acquire,
    Stretch,
    WantedMessages,
)
from lakemq.engine.protocol.values.kinds import AnyRequest


def parse_tp(text: str) -> tuple[str, int]:
    """Return the topic and the partition of a text such as `t-0`."""
    topic, _, partition = text.rpartition("-")
    return topic, int(partition)


def range_of(text: str | int) -> tuple[int, int]:
    """Return the first offset and the count."""
    first, _, last = str(text).partition("-")
    return int(first), int(last or first) - int(first) + 1


def format_range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


class QueueWords:
    mq: Harness

    def _find_tp(self, text: str) -> TopicIdPartition:
        topic, partition = parse_tp(text)
        return self.mq.state.topic_ids[topic], partition

    def _epoch_now(self, group: str, tp: TopicIdPartition) -> int:
        return self.mq.state.groups[group].assignments[tp].epoch

    def ask_acquire(
        self, _: Any, member: str, group: str = "g", most: int = 1_000, of: Sequence[str] | None = None, epoch: int = 0
    ) -> AnyRequest:
        """Ask for at most `most` messages of each partition in `of`, or of all that the member has."""
        topic_partitions = (
            self.mq.state.groups[group].list_partitions_of(member) if of is None else list(map(self._find_tp, of))
        )
        return Acquire(
            group, member, [WantedMessages(*p, epoch or self._epoch_now(group, p), most) for p in topic_partitions]
        )

    def _acknowledge(
        self,
        outcome: AckOutcome,
        producer: Any,
        settled: Mapping[str, Any],
        member: str = "C1",
        group: str = "g",
        epoch: int = 0,
        delay_ms: int | None = None,
        delivery: int | None = None,
        error: str = "",
    ) -> Acknowledge:
        """Settle messages. settled: tp -> ranges. epoch: by default that of the partition's assignment now."""
        parts = []
        for text, ranges in settled.items():
            tp = self._find_tp(text)
            epoch_now = epoch or self._epoch_now(group, tp)
            parts.append(Acknowledgement(*tp, epoch_now, outcome, _ranges(ranges), delay_ms, delivery, error))
        return Acknowledge(group, member, parts, producer.ref if producer else None)

    def ask_settle(self, _: Any, parts: list[dict[str, Any]], member: str = "C1", group: str = "g") -> Acknowledge:
        """Settle messages in several parts of one request: `[{ack: {t-0: 1-3}}, {nack: {t-0: 2}}]`."""
        outcomes = [(AckOutcome[outcome.upper()], settled) for part in parts for outcome, settled in part.items()]
        requests = [self._acknowledge(outcome, None, settled, member, group) for outcome, settled in outcomes]
        return Acknowledge(group, member, [part for request in requests for part in request.parts])

    def ask_ack(self, producer: Any, settled: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.ACK, producer, settled, **more)

    def ask_ack_every_second(self, producer: Any, tp: str, until: int, **more: Any) -> AnyRequest:
        """Accept offsets 1, 3, ... below `until`."""
        return self._acknowledge(AckOutcome.ACK, producer, {tp: list(range(1, until, 2))}, **more)

    def ask_nack(self, producer: Any, settled: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.NACK, producer, settled, **more)

    def ask_reject(self, producer: Any, settled: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.REJECT, producer, settled, **more)

    def ask_expire(self, producer: Any, settled: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.EXPIRE, producer, settled, **more)

    def ask_unseen(self, producer: Any, settled: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.UNSEEN, producer, settled, **more)

    def ask_redrive(
        self, _: Any, letters: Mapping[str, Any], purge: bool = False, topic_id: int | None = None
    ) -> AnyRequest:
        """Send dead letters of one topic back, or delete them. letters: tp -> ranges."""
        (topic,) = {parse_tp(text)[0] for text in letters}
        ranges = {parse_tp(text)[1]: _ranges(listed) for text, listed in letters.items()}
        return SettleDeadLetters(topic, topic_id or self.mq.state.topic_ids[topic], ranges, purge)

    def see_redrives(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Return the dead letters of partitions, with their status."""
        deliveries = {text: self.mq.state.find_deliveries(REDRIVE, self._find_tp(text)) for text in expected}
        return {
            text: letters
            and [f"{format_range(letter.first, letter.length)} {letter.status.value}" for letter in letters.stretches]
            for text, letters in deliveries.items()
        }

    def see_deliveries(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Return the deliveries of group `g` that are not done: `0-4 acquired`, `5 available, 2 times`."""
        deliveries = {text: self.mq.state.find_deliveries("g", self._find_tp(text)) for text in expected}
        return {
            text: [_format_stretch(stretch) for stretch in partition.stretches] if partition else None
            for text, partition in deliveries.items()
        }

    def see_stretches(self, expected: dict[str, int]) -> dict[str, int]:
        """Return the number of stretches of group `g`."""
        deliveries = {text: self.mq.state.find_deliveries("g", self._find_tp(text)) for text in expected}
        return {text: len(partition.stretches) if partition else 0 for text, partition in deliveries.items()}

    def bury(self, tp: str, group: str = "g", stale: str | None = None) -> None:
        """Let the leader find the messages that are dying, or with `stale` those that were dying when it looked."""
        ranges = None if stale is None else [range_of(stale)]
        self.mq.see(self.mq.dying(group, self._find_tp(tp), ranges))

    def see_expired(self, expected: dict[str, int]) -> dict[str, int]:
        """Return how many messages of each partition have expired in group `g`."""
        offsets = self.mq.state.offsets["g"]
        return {tp: offsets[self._find_tp(tp)].expired_count for tp in expected}

    def see_topics(self, expected: dict[str, int]) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        return {topic.topic: topic.partition_count for topic in self.mq.state.topics.values()}

    def see_origins(self, expected: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Return for each partition how many messages have which origin."""
        counts: dict[str, dict[str, int]] = {text: {} for text in expected}
        for segment in self.mq.segments():
            text = f"{segment['topic']}-{segment['partition']}"
            if text in counts:
                count = counts[text].get(segment["origin"], 0)
                counts[text][segment["origin"]] = count + segment["record_count"]
        return counts

    def see_dead_letters(self, expected: dict[str, Any]) -> dict[str, list[str]]:
        """Return the contents of partitions of a dead-letter topic: `t-0 4-5 rejected, 1 times, by g: error`."""
        letters: dict[str, list[str]] = {text: [] for text in expected}
        for segment in self.mq.segments():
            text = f"{segment['topic']}-{segment['partition']}"
            if segment["dead_letter"] is not None and text in letters:
                cause = msgspec.json.decode(segment["dead_letter"], type=Cause)
                offsets = format_range(segment["source_offset"], segment["record_count"])
                letter = f"{cause.topic}-{cause.partition} {offsets} {cause.reason}, {cause.delivery_count} times"
                letters[text].append(f"{letter}, by {cause.group}" + (f": {cause.error}" if cause.error else ""))
        return letters


def _ranges(ranges: Any) -> list[tuple[int, int]]:
    """Return the ranges of a list, or of one range."""
    return [range_of(text) for text in (ranges if isinstance(ranges, list) else [ranges])]


def _format_stretch(stretch: Stretch) -> str:
    times = "" if stretch.deliveries == 1 else f", {stretch.deliveries} times"
    until = f", until {stretch.not_before_ms}" if stretch.not_before_ms else ""
    return f"{format_range(stretch.first, stretch.length)} {stretch.status.value}{times}{until}"
