"""Read partitions at positions, which move on with each poll."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from ...protocol.errors import (
    LakeMQError,
    NoOffsetForPartition,
    OffsetOutOfRange,
    ThrottlingQuotaExceeded,
    UnstableOffsetCommit,
)
from ...protocol.values.offsets import FetchOffsets, OffsetCommit, OffsetsFetched
from ...protocol.values.topics import Bounds
from ..arguments import parse_choice, parse_partition_offsets, parse_whole_number
from ..fetch.fetch_result import FetchResult, Message
from ..fetch.plan import Isolation, unknown_partition
from ..offsets import ConsumedOffsets, TopicPartition
from .batch import ConsumerBatch, Ownership, PollOutcome, divide_room, find_held_back
from .member import Member, OwnedPartitions
from .membership import OwnedPartition
from .options import Beginning, log_beginnings
from .parts import ConsumerParts, Moves, check_assignment

Reset = Literal["earliest", "latest", "none"]


@dataclass
class ReadPosition:
    """The position in a partition of the topic with this id.

    Attributes:
        offset: the next offset to read; None: not known yet.
        is_new: the partition was added after the consumer began. Without a committed offset it is read from its start,
            because the consumer is to get all that it ever held.
        is_group_start: the group decided where to begin here. If offsets after that are deleted, the consumer passes
            over them, and its own `auto_offset_reset` does not count.
    """

    topic_id: int
    offset: int | None = None
    is_new: bool = False
    is_group_start: bool = False


class UnseenPositions:
    """Unseen messages of a consumer that has positions. Each position follows the messages that are handed out.

    If something else moves a position (`seek`, a rebalance, another poll), or the partition is paused, none of its
    other messages are handed out. The next poll goes on from its position.
    """

    def __init__(self, batch: ConsumerBatch, reader: PositionReader) -> None:
        """Move the positions back to where the poll of this batch began. reader: of the consumer."""
        self._reader = reader
        self._ends, self._next = batch.offsets, batch.starts
        for tp, start in self._next.items():
            self._move(tp, start)
        # last: if the store fails, the positions are back where the poll began
        self.messages = list(batch)

    def show(self, message: Message) -> bool:
        """Note that the message is handed out. False: the consumer has it no longer, or it will come again."""
        tp = (message.topic, message.partition)
        if not self._is_in_step(tp) or tp in self._reader.find_exclusions():
            self._next.pop(tp, None)
            return False
        self._next[tp] = message.offset + 1
        self._move(tp, message.offset + 1)
        return True

    def end(self) -> None:
        """Move the positions past the offsets at the end that hold no message for this reader."""
        for tp in self._next:
            if self._is_in_step(tp) and tp not in self._reader.find_exclusions():
                self._move(tp, self._ends[tp])

    def _is_in_step(self, tp: TopicPartition) -> bool:
        """Return whether the position is where this iteration has left it."""
        position = self._reader.by_partition.get(tp)
        return position is not None and tp in self._next and position.offset == self._next[tp]

    def _move(self, tp: TopicPartition, offset: int) -> None:
        positions = self._reader.by_partition
        positions[tp] = replace(positions[tp], offset=offset)


_RETRY_MS = 20

HELD_BACK_MS = 60_000
"""How long a consumer waits for committed offsets that an open transaction holds back: a transaction's default."""


class AssignedPartitions:
    """The assigned partitions of one consumer, which holds its lock for every call."""

    def __init__(
        self,
        parts: ConsumerParts,
        find_bounds: Callable[[Iterable[str], Isolation, bool], Mapping[TopicPartition, Bounds]],
        topics: Sequence[str],
        assign: Sequence[TopicPartition],
    ) -> None:
        """Name the partitions. `revoked`, which a group wants back, are none of them.

        Args:
            parts: what the parts of the consumer share.
            find_bounds: returns the bounds of all partitions of some topics, as of the newest step; with False, as of
                the step that was read last.
            topics: topics whose partitions are all read.
            assign: single partitions that are read.
        """
        self._parts, self._find_bounds = parts, find_bounds
        self._topics, self._assigned = frozenset(topics), frozenset(assign)
        self.revoked: AbstractSet[TopicPartition] = frozenset()
        self._has_begun = False

    def update(self, newest: bool) -> None:
        """Take in what has changed since the last poll. Raise IllegalState if the consumer is closed.

        newest: whether to look for newer steps. False: none was decided since the last look.
        """
        self._parts.lock.check_open()
        self._find_bounds((), self._parts.fetcher.isolation, newest)

    def read_bounds(self, reader: PositionReader, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions, and let the reader have positions of exactly these.

        newest: whether to read newer steps first. False: as of the step that was read last.

        Raises UnknownTopicOrPartition: one of them is not there.
        """
        topics = sorted({*self._topics, *(topic for topic, _ in self._assigned)})
        existing = self._find_bounds(topics, self._parts.fetcher.isolation, newest)
        for topic, partition in self._assigned - existing.keys():
            raise unknown_partition(topic, partition, sum(name == topic for name, _ in existing))
        bounds = {tp: of for tp, of in existing.items() if tp[0] in self._topics or tp in self._assigned}
        reader.follow(bounds, are_new=self._has_begun)
        self._has_begun = True
        return bounds

    def read_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed. Waits while an open transaction holds some of the offsets back.

        Raises:
            UnstableOffsetCommit: that takes longer than a minute.
            ThrottlingQuotaExceeded: the sequencer was too busy with other answers all that time.
        """
        request, clock = FetchOffsets(self._parts.group, list(topic_partitions)), self._parts.clock
        deadline_ms = clock.steady_ms() + HELD_BACK_MS
        while True:
            try:
                answer = self._parts.requester.ask(request)
            except (UnstableOffsetCommit, ThrottlingQuotaExceeded):
                if clock.steady_ms() > deadline_ms:
                    raise
                clock.sleep(_RETRY_MS)
                continue
            assert isinstance(answer, OffsetsFetched)
            return {(commit.topic, commit.partition): commit for commit in answer.offsets}

    def explain_lost_member(self) -> LakeMQError | None:
        """Return None: there is no member."""
        return None

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Ownership]:
        """Return nothing: no group has assigned these partitions."""
        return {}

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        """Return offsets that can be committed."""
        return ConsumedOffsets(offsets, topic_ids)

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        """Return why a poll brought nothing. is_behind: whether something is left before the ends of the logs."""
        return PollOutcome.NOT_YET if is_behind() else PollOutcome.AT_END

    def explain_outcome(self, outcome: PollOutcome) -> Sequence[str]:
        """Return nothing: no group holds messages back."""
        return ()


class PositionMember(Member):
    """A member with a position in each of its partitions, which are those of its reader.

    A revoked partition is released after the listener has returned, even if it raises: the group waits for that before
    another member gets it. The release is repeated with each poll until the group knows of it.

    Attributes:
        reader: reads at the positions. The consumer sets it before the member joins.
        revoked: partitions that the group wants back, as of the last `read_bounds`. They are read no further.
    """

    reader: PositionReader
    revoked: AbstractSet[TopicPartition] = frozenset()

    def read_bounds(self, reader: PositionReader, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of reported partitions that the member still has.

        The positions of others stay until they are reported as lost, because they may still be committed.
        """
        partitions, current = self.partitions, self.membership.read_view(newest).owned
        owned = {tp: current[tp] for tp, old in partitions.items() if tp in current and current[tp].epoch == old.epoch}
        self.revoked = {tp for tp, partition in owned.items() if partition.is_paused}
        for tp, partition in owned.items():
            if tp not in reader.by_partition:
                reader.by_partition[tp] = ReadPosition(
                    partition.bounds.topic_id,
                    partition.start_offset,
                    is_group_start=partitions[tp].committed is None,
                )
        return {tp: partition.bounds for tp, partition in owned.items()}

    def read_offsets(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetCommit]:
        """Return what the group has committed. Needs no lock."""
        with self._lock.own:
            return self.read_committed()

    def explain_lost_member(self) -> LakeMQError | None:
        """Return why the group knows the member no longer; None if the member may join again."""
        return self.membership.fenced_error() if self.membership.is_replaced() else None

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return all partitions: other members may have them already."""
        return list(self.partitions)

    def lose(self, tp: TopicPartition) -> bool:
        self.reader.forget(tp)
        return True

    def find_revoked(self, owned: OwnedPartitions) -> list[TopicPartition]:
        return [tp for tp, partition in owned.items() if partition.is_paused and tp in self.partitions]

    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        for tp in reported:
            self.partitions.pop(tp, None)
            self.reader.forget(tp)
        revoked = {tp: partition for tp, partition in owned.items() if partition.is_paused}
        if revoked and not self._lock.is_closed:
            self.membership.release(revoked)

    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        return {tp: part for tp, part in owned.items() if not part.is_paused and tp not in self.partitions}

    def take(self, new: OwnedPartitions) -> None:
        self.reader.read_bounds()

    def drop_all(self) -> None:
        self.reader.forget_all()


Partitions: TypeAlias = AssignedPartitions | PositionMember
"""The partitions of a consumer that has positions: assigned by its user, or by a group."""


class PositionReader:
    """Reads partitions at positions, which move on with each poll. The consumer holds its lock for every call.

    A position becomes known when it is first needed: it is the committed offset, or else where `auto_offset_reset`
    says.

    Attributes:
        by_partition: the positions. The partition read longest ago comes first. The partitions add and drop positions
            as needed, when their bounds are read.
        paused_by_user: partitions of which no messages are read.
    """

    def __init__(self, parts: ConsumerParts, partitions: Partitions, reset: Reset) -> None:
        """Begin to read; nothing is polled yet.

        Args:
            parts: what the parts of the consumer share.
            partitions: of the consumer.
            reset: where to begin without a committed offset.

        Raises:
            InvalidRequest: `reset` is not valid.
        """
        parse_choice("auto_offset_reset", reset, ("earliest", "latest", "none"))
        self._parts, self._partitions, self._reset = parts, partitions, reset
        self.by_partition: dict[TopicPartition, ReadPosition] = {}
        self.paused_by_user: set[TopicPartition] = set()
        self._has_looked = False
        """Whether a poll has begun by looking for steps, and has not used yet what it found."""

    # -- the partitions ---------------------------------------------------------------------------------

    def list_partitions(self) -> Container[TopicPartition]:
        """Return the partitions that have a position."""
        return self.by_partition

    def read_bounds(self, newest: bool = True) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions of the consumer as of now, and keep positions of exactly these.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        return self._partitions.read_bounds(self, newest)

    def read_committed(self) -> Mapping[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions. Needs no lock."""
        return self._partitions.read_offsets(list(self.by_partition))

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition."""
        self.by_partition.pop(tp, None)
        self.paused_by_user.discard(tp)

    def forget_all(self) -> None:
        """Drop all partitions."""
        self.by_partition.clear()
        self.paused_by_user.clear()

    def follow(self, bounds: Mapping[TopicPartition, Bounds], are_new: bool) -> None:
        """Keep positions of exactly these partitions; are_new: those that are added came after the consumer began."""
        for tp in self.by_partition.keys() - bounds.keys():
            del self.by_partition[tp]
        for tp, partition in bounds.items():
            position = self.by_partition.get(tp)
            if position is None or position.topic_id != partition.topic_id:  # else the topic was created again
                self.by_partition[tp] = ReadPosition(partition.topic_id, is_new=are_new)

    def settle(
        self, only: TopicPartition | None = None, newest: bool = True
    ) -> tuple[Mapping[TopicPartition, Bounds], dict[TopicPartition, int]]:
        """Return the bounds of all partitions, and the next offset to read in all of them or in one.

        newest: whether to read newer steps first. False: as of the step that was read last.

        Raises:
            IllegalState: `only` is not assigned.
            NoOffsetForPartition, OffsetOutOfRange: a position is unknown or not in the log, and the reset is `none`.
        """
        bounds, asked_topic_ids = self._partitions.read_bounds(self, newest), dict[TopicPartition, int]()
        # Partitions may come, or belong to a topic that is created again, while the committed offsets are read.
        while any(asked_topic_ids.get(tp) != self.by_partition[tp].topic_id for tp in self._find_unknown(only)):
            asked_topic_ids = {tp: position.topic_id for tp, position in self.by_partition.items()}
            for tp, commit in self._partitions.read_offsets(list(self.by_partition)).items():
                position = self.by_partition[tp]
                if position.offset is None and commit.topic_id == position.topic_id:
                    position.offset = commit.offset
            # Read the bounds after the commits: another consumer may have read on and committed meanwhile.
            bounds = self._partitions.read_bounds(self, newest=True)
        if only is not None:
            check_assignment(only, bounds)
        topic_partitions = bounds if only is None else [only]
        # Most positions stay where they are: a consumer may have a thousand, and looks with each poll.
        lost = [tp for tp in topic_partitions if not self._is_in_log(tp, bounds[tp])]
        starts = {tp: self._find_start(tp, bounds[tp]) for tp in lost}
        self._log_beginnings(starts, bounds)
        for tp, offset in starts.items():
            self.by_partition[tp].offset = offset
        offsets = {tp: position.offset for tp, position in self.by_partition.items() if tp in topic_partitions}
        return bounds, cast(dict[TopicPartition, int], offsets)  # none is unknown any more

    def _find_unknown(self, only: TopicPartition | None) -> list[TopicPartition]:
        if only is not None:
            check_assignment(only, self.by_partition)
        topic_partitions = self.by_partition if only is None else [only]
        return [tp for tp in topic_partitions if self.by_partition[tp].offset is None]

    def _is_in_log(self, tp: TopicPartition, bounds: Bounds) -> bool:
        offset = self.by_partition[tp].offset
        return offset is not None and bounds.first <= offset <= bounds.high_watermark

    def _find_start(self, tp: TopicPartition, bounds: Bounds) -> int:
        """Return where to begin, as the position is not known, or not in the log."""
        position = self.by_partition[tp]
        offset = position.offset
        if offset is None and position.is_new:
            return bounds.first
        if position.is_group_start and offset is not None and offset < bounds.first:
            return bounds.first
        if self._reset == "none" and offset is None:
            raise NoOffsetForPartition(found=f"group {self._parts.group}, {tp[0]}-{tp[1]}")
        if self._reset == "none":
            raise OffsetOutOfRange(
                f"Group {self._parts.group} is to read {tp[0]}-{tp[1]} from an offset that the log does not hold.",
                found=offset,
                expected=f"{bounds.first} to {bounds.high_watermark}",
            )
        return bounds.first if self._reset == "earliest" else bounds.end

    def _log_beginnings(self, offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]) -> None:
        """Log where the group begins in partitions in which it has committed nothing."""
        beginnings: dict[str, Beginning] = {}
        for tp, start in offsets.items():
            if self.by_partition[tp].offset is None and not self.by_partition[tp].is_new:
                beginnings.setdefault(tp[0], Beginning()).add(bounds[tp].first, start, bounds[tp].end)
        log_beginnings(self._parts.group, beginnings)

    # -- reading ----------------------------------------------------------------------------------------

    def begin_poll(self, newest: bool, is_first: bool = False) -> None:
        """Take in what has changed about the partitions. Raise IllegalState if the consumer is closed.

        Args:
            newest: whether to look for newer steps. False: none was decided since the last look.
            is_first: whether this is the first look of a poll.
        """
        self._partitions.update(newest)
        self._has_looked = True

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> ConsumerBatch | None:
        """Look once for messages, and move the positions past them; return None to be called again.

        Args:
            max_records: the most messages of the batch.
            moves: how the poll has moved on so far; this call adds its own moves.
            read_ahead: least number of offsets to look at. A stretch of expired or aborted messages may be long, so
                each look takes four times as many as the one before.
        """
        bounds, offsets = self.settle(newest=not self._has_looked)
        self._has_looked = False
        excluded = self.find_exclusions()
        behind = {tp: bounds[tp].end - offset for tp, offset in offsets.items() if tp not in excluded}
        sizes = divide_room(behind, max(max_records, read_ahead))
        ends = {tp: offsets[tp] + count for tp, count in sizes.items() if count}
        topic_ids = self._list_topic_ids()
        parts = self._parts.fetcher.fetch_topics(offsets, ends, topic_ids, offsets)
        if read_ahead and parts is not None and (cut := cut_to_messages(ends, parts, max_records)) != ends:
            ends = {tp: end for tp, end in cut.items() if end > offsets[tp]}
            parts = self._parts.fetcher.fetch_topics(offsets, ends, topic_ids, offsets)
        if parts is None:
            return None
        self._move(ends, moves)
        ownership = self._partitions.find_ownership(ends)
        return ConsumerBatch(self._parts.group, parts, self._partitions.build_offsets(ends, topic_ids), ownership)

    def _move(self, ends: Mapping[TopicPartition, int], moves: Moves) -> None:
        before = self.by_partition
        after = {tp: replace(before[tp], offset=end) for tp, end in ends.items()}
        moves |= {tp: (moves[tp][0] if tp in moves else before[tp], position) for tp, position in after.items()}
        # Partitions read last come last. One assignment, because an interrupt may come at any time.
        self.by_partition = {**{tp: position for tp, position in before.items() if tp not in after}, **after}

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Move positions back to where they were before a poll that failed."""
        for tp, (before, after) in moves.items():
            if self.by_partition.get(tp) is after:
                self.by_partition[tp] = before

    def mark_unseen(self, batch: ConsumerBatch) -> UnseenPositions:
        """Move back to where the poll of this batch has begun, so that its messages can be handed out one by one."""
        return UnseenPositions(batch, self)

    def explain_empty(self, batch: ConsumerBatch) -> None:
        """Note in an empty batch why it is empty."""
        bounds = self.read_bounds(newest=False)
        offsets = {tp: position.offset for tp, position in self.by_partition.items() if tp in bounds}
        batch.outcome = self._partitions.find_outcome(
            lambda: any(offset is None or offset < bounds[tp].high_watermark for tp, offset in offsets.items())
        )
        reasons = self._partitions.explain_outcome(batch.outcome)
        batch.explain(reasons, self._parts.explain_transactions, find_held_back(bounds, offsets))

    def expects_messages(self, deadline_ms: float) -> bool:
        """Return whether messages are on their way, so that the poll waits a moment longer. Needs no lock."""
        return False

    def rest(self, poll_ms: int, most_ms: int) -> None:
        """Sleep until polling again is worthwhile, at most `most_ms`. The lock must not be held.

        poll_ms: how long to sleep if nothing tells of messages.
        """
        self._parts.waiter.wait(poll_ms, most_ms)

    def find_exclusions(self) -> set[TopicPartition]:
        """Return the partitions that are not read now: paused, or being given up."""
        return self.paused_by_user | self._partitions.revoked

    def _list_topic_ids(self) -> dict[str, int]:
        return {topic: position.topic_id for (topic, _), position in self.by_partition.items()}

    # -- where it is ------------------------------------------------------------------------------------

    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read. Raises IllegalState: the partition is not assigned."""
        _, offsets = self.settle((topic, partition))
        return offsets[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset. Raises OffsetOutOfRange: the log does not hold it."""
        offset = parse_whole_number("offset", offset)
        all_bounds = self.read_bounds()
        check_assignment((topic, partition), all_bounds)
        bounds = all_bounds[topic, partition]
        if not bounds.first <= offset <= bounds.high_watermark:
            raise OffsetOutOfRange(
                f"{topic}-{partition} does not hold this offset.",
                found=offset,
                expected=f"{bounds.first} to {bounds.high_watermark}",
            )
        self.by_partition[topic, partition].offset = offset

    def go_back(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets, in partitions that have a position."""
        positions = self.by_partition
        for tp in starts.keys() & positions.keys():
            positions[tp] = replace(positions[tp], offset=starts[tp])

    def count_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of the log."""
        bounds, offsets = self.settle()
        return {tp: max(0, bounds[tp].high_watermark - offset) for tp, offset in offsets.items()}

    def list_known_offsets(self) -> dict[TopicPartition, int]:
        """Return the positions that are known, of the partitions that the consumer has now."""
        bounds, positions = self.read_bounds(), self.by_partition
        return {tp: offset for tp in bounds if (offset := positions[tp].offset) is not None}

    def find_consumed_offsets(self, named: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """Return the offsets that the user named, or all positions, with the ids of their topics.

        A name stands for the topic that this consumer reads. The sequencer resolves all other names.
        """
        if named is not None:
            offsets = parse_partition_offsets("what", named)
        else:
            offsets = {tp: at.offset for tp, at in self.by_partition.items() if at.offset is not None}
        return self._partitions.build_offsets(offsets, self._list_topic_ids())


def cut_to_messages(
    ends: Mapping[TopicPartition, int], parts: Iterable[FetchResult], max_records: int
) -> dict[TopicPartition, int]:
    """Return smaller `ends`, so that the parts have at most `max_records` messages, evenly from all partitions.

    A partition that is cut ends at the first message that is left out.
    """
    offsets = {(part.plan.topic, partition): at for part in parts for partition, at in part.offsets().items()}
    sizes = divide_room({tp: len(at) for tp, at in offsets.items()}, max_records)
    return {**ends, **{tp: int(at[sizes[tp]]) for tp, at in offsets.items() if sizes[tp] < len(at)}}
