"""What a member of a `queue` group has said of its messages, on its way to the group, until it is noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from ...namespace.clock import Clock
from ...protocol.errors import (
    ClientEnded,
    FencedMemberEpoch,
    InvalidRecordState,
    LakeMQError,
    NoOffsetForPartition,
    RequestTimedOut,
    UnknownMemberId,
)
from ...protocol.values.deliveries import MAX_RANGES, Acknowledgement, AcknowledgementsJudged, Wanted
from ..offsets import TopicPartition
from .flow import Flow
from .membership import Membership


class Teller:
    """Not thread-safe: its consumer has the lock."""

    def __init__(self, membership: Membership, clock: Clock, flows: Mapping[TopicPartition, Flow]) -> None:
        """flows: those of the consumer, as they are at any time."""
        self._membership, self._clock, self._flows = membership, clock, flows
        self._asked: Future[Any] | None = None
        self._told: list[tuple[Future[Any], list[Acknowledgement], int]] = []
        """Answers to come, what was said, and how often the member had joined again by then."""
        self._late: dict[str, LakeMQError] = {}
        """What acknowledgements were refused with, by what it says, for who waits for them."""
        self.told_at_ms = clock.steady_ms()
        self._joined_count = 0
        self.is_lost = False
        """The group knows nothing of the member: nothing is told until it has joined again."""

    def joined_again(self) -> None:
        """What was said before, and not heard, is said again."""
        self._joined_count += 1
        self.is_lost = False

    @property
    def asked(self) -> Future[Any] | None:
        """What was asked for and whose answer was not heard: what one knew before may not show what it has brought."""
        return self._asked

    def hear_singles(self) -> None:
        """Take what was accepted one by one. Raises InvalidRecordState, when all others are taken."""
        wrong: InvalidRecordState | None = None
        for flow in self._flows.values():
            try:
                flow.hear_singles()
            except InvalidRecordState as error:
                wrong = error
        if wrong is not None:
            raise wrong

    def tell(self, wanted: Sequence[Wanted] = (), unseen: Sequence[Acknowledgement] = ()) -> None:
        """Send what was said, and what is wanted, without waiting. Raises InvalidRecordState, when all else is sent."""
        try:
            self.hear_singles()
        finally:
            if not self.is_lost:
                self._tell_all(wanted, unseen)

    def _tell_all(self, wanted: Sequence[Wanted], unseen: Sequence[Acknowledgement]) -> None:
        """What was said stands as said until it is on its way: who interrupts this, or refuses it, loses none of it."""
        parts = [*(part for flow in self._flows.values() for part in flow.said()), *unseen]
        if not parts and not wanted:
            return
        self.told_at_ms = self._clock.steady_ms()
        shares = shared(parts)
        futures = self._membership.submit(shares, wanted)
        self._told += [(future, share, self._joined_count) for future, share in zip(futures, shares, strict=False)]
        for flow in self._flows.values():
            flow.sent()
        if wanted:
            self._asked = futures[-1]

    def hear(self) -> None:
        """Look at what was answered. Raises NoOffsetForPartition: nobody has said where the group begins."""
        for told in list(self._told):
            future, parts, joined_count = told
            if not future.done():
                continue
            if (error := future.exception()) is not None:
                self.is_lost |= isinstance(error, UnknownMemberId) and joined_count == self._joined_count
                self._say_again(parts, error)
            else:
                self._judge(future.result(), parts)
            self._told.remove(told)  # not before: an interrupt would lose it
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if isinstance(error := asked.exception(), NoOffsetForPartition):
                raise error

    def waiting(self) -> list[Future[Any]]:
        """What was said and is not answered."""
        return [future for future, *_ in self._told]

    def too_late(self, place: TopicPartition) -> None:
        """Of this partition something was said, and it was another member's before that was sent."""
        self._note_late(FencedMemberEpoch(found=[f"{place[0]}-{place[1]}"]))

    def _note_late(self, error: LakeMQError) -> None:
        self._late.setdefault(str(error), error)

    def raise_late(self) -> None:
        """Raises what some of what was said was refused with, once: the first, and each next one as its cause."""
        late, self._late = list(self._late.values()), {}
        for error, following in pairwise(late):
            error.__cause__ = following
        if late:
            raise late[0]

    def _say_again(self, parts: Sequence[Acknowledgement], error: BaseException) -> None:
        """Nobody has answered, or the member was lost at that moment: what is still its own is said again."""
        may_be_heard = isinstance(error, UnknownMemberId | RequestTimedOut | ClientEnded) or getattr(
            error, "retriable", False
        )
        for part in parts:
            flow = self.flow_of(part)
            if flow is not None and may_be_heard:
                flow.put_back(part)
            elif isinstance(error, LakeMQError):
                self._note_late(error)
                if flow is not None:
                    flow.reopen(part)

    def flow_of(self, part: Acknowledgement) -> Flow | None:
        key = part.topic_id, part.partition, part.epoch
        return next((one for one in self._flows.values() if (one.topic_id, one.partition, one.epoch) == key), None)

    def _counted_before(self, part: Acknowledgement) -> bool:
        """What is said once more and refused was heard the first time: since then it was delivered again."""
        flow = self.flow_of(part)
        return flow is not None and flow.is_doubtful(part)

    def _judge(self, judged: AcknowledgementsJudged, parts: Sequence[Acknowledgement]) -> None:
        for i in judged.invalid:
            flow = self.flow_of(parts[i])
            if flow is not None:
                flow.reopen(parts[i])
        topics = {flow.topic_id: topic for (topic, _), flow in self._flows.items()}
        invalid = [i for i in judged.invalid if not self._counted_before(parts[i])]
        for listed, kind in ((judged.fenced, FencedMemberEpoch), (invalid, InvalidRecordState)):
            if listed:
                named = [
                    (topics.get(parts[i].topic_id, f"topic {parts[i].topic_id}"), parts[i].partition) for i in listed
                ]
                self._note_late(kind(found=[f"{topic}-{partition}" for topic, partition in named]))


def shared(parts: Sequence[Acknowledgement]) -> list[list[Acknowledgement]]:
    """Parts as requests may bear them, of which each has at most so many ranges."""
    shares: list[list[Acknowledgement]] = []
    room = 0
    for part in parts:
        for at in range(0, len(part.ranges), MAX_RANGES):
            piece = replace(part, ranges=part.ranges[at : at + MAX_RANGES])
            if len(piece.ranges) > room:
                shares.append([])
                room = MAX_RANGES
            shares[-1].append(piece)
            room -= len(piece.ranges)
    return shares
