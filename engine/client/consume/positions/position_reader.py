"""Read partitions at positions, which move on with each poll."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Protocol

from ....protocol.errors import LakeMQError, OffsetOutOfRange
from ....protocol.values.consuming.assignments import TopicIdPartition
from ....protocol.values.consuming.offsets import OffsetCommit
from ...arguments import parse_choice, parse_partition_offsets, parse_whole_number
from ...fetch.planning.plan import Bounds
from ...offsets import ConsumedOffsets, TopicPartition
from ..batch import ConsumerBatch, Ownership
from ..outcome import PollOutcome
from ..partition_reader import Moves
from ..poll_loop import ConsumerParts
from ..range_fetcher import cut_to_messages, divide_room
from .positions import Positions, Reset, check_assignment
from .unseen_positions import UnseenPositions


class Partitions(Protocol):
    """The partitions of a consumer that has positions: assigned by its user, or by a group.

    The consumer holds its lock for every call.

    Attributes:
        revoked: partitions that a group wants back, as of the last `read_bounds`. They are read no further.
    """

    revoked: AbstractSet[TopicPartition]

    def update(self, reader: PositionReader, newest: bool) -> None:
        """Take in what has changed since the last poll. Raise IllegalState if the consumer is closed.

        newest: whether to look for newer steps. False: none was decided since the last look.
        """
        ...

    def read_bounds(self, positions: Positions, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of the partitions, and add and drop positions as needed.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        ...

    def read_committed(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetCommit]:
        """Return what the group has committed of these partitions. Needs no lock."""
        ...

    def explain_lost_member(self) -> LakeMQError | None:
        """Return why the group knows the member no longer; None if the member may join again."""
        ...

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Ownership]:
        """Return since when a member of a group has these partitions; empty for assigned partitions."""
        ...

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        """Return offsets that can be committed."""
        ...

    def waits_for_partitions(self) -> bool:
        """Return whether there are no partitions yet, and some are about to come. Needs no lock."""
        ...

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        """Return why a poll brought nothing. is_behind: whether something is left before the ends of the logs."""
        ...

    def explain_outcome(self, outcome: PollOutcome) -> Sequence[str]:
        """Return sentences that say why a poll brought nothing: missing topics, and consumers of this process."""
        ...


class PositionReader:
    """Reads partitions at their positions. The lock is held for calls as `PartitionReader` says."""

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
        self._parts, self._partitions = parts, partitions
        self.positions = Positions(parts.group, reset, self.read_bounds, self.read_committed)
        self.paused_by_user: set[TopicPartition] = set()
        self._has_looked = False
        """Whether a poll has begun by looking for steps, and has not used yet what it found."""

    # -- the partitions ---------------------------------------------------------------------------------

    def list_partitions(self) -> Container[TopicPartition]:
        """Return the partitions that have a position."""
        return self.positions.by_partition

    def read_bounds(self, newest: bool = True) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions of the consumer as of now, and keep positions of exactly these.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        return self._partitions.read_bounds(self.positions, newest)

    def read_committed(self) -> Mapping[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions. Needs no lock."""
        return self._partitions.read_committed(list(self.positions.by_partition))

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition."""
        self.positions.by_partition.pop(tp, None)
        self.paused_by_user.discard(tp)

    def forget_all(self) -> None:
        """Drop all partitions."""
        self.positions.by_partition.clear()
        self.paused_by_user.clear()

    # -- reading ----------------------------------------------------------------------------------------

    def begin_poll(self, newest: bool) -> None:
        self._partitions.update(self, newest)
        self._has_looked = True

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> ConsumerBatch | None:
        """Read the next messages and move the positions; return None to be called again.

        A stretch of expired or aborted messages may be long, so each look takes four times as many offsets as the one
        before (`read_ahead`).
        """
        bounds, offsets = self.positions.settle(newest=not self._has_looked)
        self._has_looked = False
        excluded = self._find_exclusions()
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
        batch = ConsumerBatch(self._parts.group, parts, self._partitions.build_offsets(ends, topic_ids))
        batch.ownership = self._partitions.find_ownership(batch.offsets)
        return batch

    def _move(self, ends: Mapping[TopicPartition, int], moves: Moves) -> None:
        before = self.positions.by_partition
        after = {tp: replace(before[tp], offset=end) for tp, end in ends.items()}
        moves |= {tp: (moves[tp][0] if tp in moves else before[tp], position) for tp, position in after.items()}
        # Partitions read last come last. One assignment, because an interrupt may come at any time.
        self.positions.by_partition = {**{p: position for p, position in before.items() if p not in after}, **after}

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Move positions back to where they were before a poll that failed."""
        for tp, (before, after) in moves.items():
            if self.positions.by_partition.get(tp) is after:
                self.positions.by_partition[tp] = before

    def mark_unseen(self, batch: ConsumerBatch) -> UnseenPositions:
        return UnseenPositions(batch, lambda: self.positions.by_partition, self._find_exclusions)

    def explain_empty(self, batch: ConsumerBatch) -> None:
        bounds = self.read_bounds(newest=False)
        offsets = {tp: position.offset for tp, position in self.positions.by_partition.items() if tp in bounds}
        batch.outcome = self._partitions.find_outcome(
            lambda: any(offset is None or offset < bounds[tp].high_watermark for tp, offset in offsets.items())
        )
        reasons = self._partitions.explain_outcome(batch.outcome)
        batch.explain(reasons, self._parts.explain_transactions, find_held_back(bounds, offsets))

    def waits_for_partitions(self) -> bool:
        return self._partitions.waits_for_partitions()

    def expects_messages(self, deadline_ms: float) -> bool:
        return False

    def rest(self, poll_ms: int, most_ms: int) -> None:
        self._parts.waiter.wait(poll_ms, most_ms)

    def _find_exclusions(self) -> set[TopicPartition]:
        return self.paused_by_user | self._partitions.revoked

    def _list_topic_ids(self) -> dict[str, int]:
        return {topic: position.topic_id for (topic, _), position in self.positions.by_partition.items()}

    # -- where it is ------------------------------------------------------------------------------------

    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read. Raises IllegalState: the partition is not assigned."""
        _, offsets = self.positions.settle((topic, partition))
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
        self.positions.by_partition[topic, partition].offset = offset

    def go_back(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets, in partitions that have a position."""
        positions = self.positions.by_partition
        for tp in starts.keys() & positions.keys():
            positions[tp] = replace(positions[tp], offset=starts[tp])

    def count_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of the log."""
        bounds, offsets = self.positions.settle()
        return {tp: max(0, bounds[tp].high_watermark - offset) for tp, offset in offsets.items()}

    def list_known_offsets(self) -> dict[TopicPartition, int]:
        """Return the positions that are known, of the partitions that the consumer has now."""
        bounds, positions = self.read_bounds(), self.positions.by_partition
        return {tp: offset for tp in bounds if (offset := positions[tp].offset) is not None}

    def find_consumed_offsets(self, named: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """Return the offsets that the user named, or all positions, with the ids of their topics.

        A name stands for the topic that this consumer reads. The sequencer resolves all other names.
        """
        if named is not None:
            offsets = parse_partition_offsets("what", named)
        else:
            offsets = {p: at.offset for p, at in self.positions.by_partition.items() if at.offset is not None}
        return self._partitions.build_offsets(offsets, self._list_topic_ids())


def find_held_back(
    bounds: Mapping[TopicPartition, Bounds], offsets: Mapping[TopicPartition, int | None]
) -> list[TopicIdPartition]:
    """Return the partitions that are read up to an open transaction. offsets: the next offsets to read."""
    return [
        (bounds[tp].topic_id, tp[1])
        for tp, offset in offsets.items()
        if offset is not None and bounds[tp].end <= offset < bounds[tp].high_watermark
    ]
