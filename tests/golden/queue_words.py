"""The words of stories about `queue` groups: messages are written as ranges of offsets, `0-4`, of one offset `7`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from protocol_harness import Harness

from lakemq.engine.protocol.values.assignments import Place
from lakemq.engine.protocol.values.dead_letters import REDRIVE, Cause, SettleDeadLetters
from lakemq.engine.protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    AckOutcome,
    Acquire,
    Stretch,
    WantedMessages,
)
from lakemq.engine.protocol.values.groups import Assigned
from lakemq.engine.protocol.values.kinds import AnyRequest


def place_of(text: str) -> tuple[str, int]:
    topic, _, partition = text.rpartition("-")
    return topic, int(partition)


def range_of(text: str | int) -> tuple[int, int]:
    """First and count."""
    first, _, last = str(text).partition("-")
    return int(first), int(last or first) - int(first) + 1


def shown(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


class QueueWords:
    mq: Harness

    def _of(self, place: str) -> Place:
        topic, partition = place_of(place)
        return self.mq.state.topic_ids[topic], partition

    def _assigned(self, group: str, place: Place) -> int:
        return self.mq.state.groups[group].assignments[place].epoch

    def ask_acquire(
        self, _: Any, member: str, group: str = "g", most: int = 1_000, of: Sequence[str] | None = None, epoch: int = 0
    ) -> AnyRequest:
        """At most so many of each of these partitions, or of all that the member has."""
        places = self.mq.state.groups[group].list_places_of(member) if of is None else list(map(self._of, of))
        return Acquire(group, member, [WantedMessages(*p, epoch or self._assigned(group, p), most) for p in places])

    def _acknowledge(
        self,
        outcome: AckOutcome,
        producer: Any,
        given: Mapping[str, Any],
        member: str = "C1",
        group: str = "g",
        epoch: int = 0,
        delay_ms: int | None = None,
        delivery: int | None = None,
        error: str = "",
    ) -> AnyRequest:
        """epoch: left out, that of the partition's assignment now."""
        parts = []
        for text, listed in given.items():
            ranges = [range_of(one) for one in (listed if isinstance(listed, list) else [listed])]
            place = self._of(text)
            known = epoch or self._assigned(group, place)
            parts.append(Acknowledgement(*place, known, outcome, ranges, delay_ms, delivery, error))
        return Acknowledge(group, member, parts, producer.ref if producer else None)

    def ask_ack(self, producer: Any, given: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.ACCEPT, producer, given, **more)

    def ask_ack_every_second(self, producer: Any, place: str, until: int, **more: Any) -> AnyRequest:
        """Offsets 1, 3, ..."""
        return self._acknowledge(AckOutcome.ACCEPT, producer, {place: list(range(1, until, 2))}, **more)

    def ask_nack(self, producer: Any, given: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.RELEASE, producer, given, **more)

    def ask_reject(self, producer: Any, given: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.REJECT, producer, given, **more)

    def ask_expire(self, producer: Any, given: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.EXPIRE, producer, given, **more)

    def ask_unseen(self, producer: Any, given: Mapping[str, Any], **more: Any) -> AnyRequest:
        return self._acknowledge(AckOutcome.UNSEEN, producer, given, **more)

    def ask_redrive(
        self, _: Any, given: Mapping[str, Any], purge: bool = False, topic_id: int | None = None
    ) -> AnyRequest:
        """Dead letters of one topic."""
        ((topic, _number),) = {place_of(text)[0]: 0 for text in given}.items()
        ranges = {
            place_of(text)[1]: [range_of(one) for one in (listed if isinstance(listed, list) else [listed])]
            for text, listed in given.items()
        }
        return SettleDeadLetters(topic, topic_id or self.mq.state.topic_ids[topic], ranges, purge)

    def see_redrives(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Dead letters of a partition: what became of them."""
        found = {text: self.mq.state.find_deliveries(REDRIVE, self._of(text)) for text in expected}
        return {
            text: known and [f"{shown(one.first, one.length)} {one.status.value}" for one in known.stretches]
            for text, known in found.items()
        }

    def bound(self, member: str, group: str = "g") -> list[Assigned]:
        """What a member that was lost knows that it had."""
        known = self.mq.state.groups[group].assignments
        return [Assigned(*place, one.epoch) for place, one in sorted(known.items()) if one.lost_by == member]

    def see_deliveries(self, expected: dict[str, Any]) -> dict[str, Any]:
        """What became of messages of the group g past what is done: `0-4 acquired`, `5 available, 2 times`."""
        found = {}
        for text in expected:
            known = self.mq.state.find_deliveries("g", self._of(text))
            found[text] = [_told(one) for one in known.stretches] if known else None
        return found

    def see_stretches(self, expected: dict[str, int]) -> dict[str, int]:
        """How many there are, of the group g."""
        known = {text: self.mq.state.find_deliveries("g", self._of(text)) for text in expected}
        return {text: len(one.stretches) if one else 0 for text, one in known.items()}

    def bury(self, place: str, group: str = "g", stale: str | None = None) -> None:
        """The leader has found where the messages are that are dying; or those that were when it looked."""
        ranges = None if stale is None else [range_of(stale)]
        self.mq.see(self.mq.dying(group, self._of(place), ranges))

    def see_expired(self, expected: dict[str, int]) -> dict[str, int]:
        """By partition, in the group `g`."""
        offsets = self.mq.state.offsets["g"]
        return {place: offsets[self._of(place)].expired_count for place in expected}

    def see_topics(self, expected: dict[str, int]) -> dict[str, int]:
        """How many partitions they have."""
        return {topic.topic: topic.partition_count for topic in self.mq.state.topics.values()}

    def see_origins(self, expected: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Of the messages of a partition: origin -> how many."""
        found: dict[str, dict[str, int]] = {text: {} for text in expected}
        for segment in self.mq.segments():
            text = f"{segment['topic']}-{segment['partition']}"
            if text in found:
                count = found[text].get(segment["origin"], 0)
                found[text][segment["origin"]] = count + segment["record_count"]
        return found

    def see_dead_letters(self, expected: dict[str, Any]) -> dict[str, list[str]]:
        """By partition of a dead-letter topic: `t-0 4-5 rejected, 1 times, by g: error`."""
        found: dict[str, list[str]] = {text: [] for text in expected}
        for segment in self.mq.segments():
            text = f"{segment['topic']}-{segment['partition']}"
            if segment["dead_letter"] is not None and text in found:
                cause = msgspec.json.decode(segment["dead_letter"], type=Cause)
                offsets = shown(segment["source_offset"], segment["record_count"])
                told = f"{cause.topic}-{cause.partition} {offsets} {cause.reason}, {cause.delivery_count} times"
                found[text].append(f"{told}, by {cause.group}" + (f": {cause.error}" if cause.error else ""))
        return found


def _told(one: Stretch) -> str:
    times = "" if one.deliveries == 1 else f", {one.deliveries} times"
    until = f", until {one.not_before_ms}" if one.not_before_ms else ""
    return f"{shown(one.first, one.length)} {one.status.value}{times}{until}"
