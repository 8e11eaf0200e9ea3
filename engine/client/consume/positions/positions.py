"""The positions of a consumer: the offset at which it reads on in each of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from ....protocol.errors import IllegalState, NoOffsetForPartition, OffsetOutOfRange
from ....protocol.values.consuming.offsets import OffsetCommit
from ...arguments import parse_partition, parse_topic_name
from ...fetch.planning.plan import Bounds
from ...offsets import TopicPartition
from ..beginnings import Beginning, log_beginnings

Reset = Literal["earliest", "latest", "none"]


@dataclass
class ReadPosition:
    """The position in a partition of the topic with this id.

    Attributes:
        offset: the next offset to read; None: not known yet.
        is_new: the partition was added after the consumer began. Without a committed offset it is read from its start,
            because the consumer is to get all that it ever held.
        is_group_start: the group decided where to begin here. If offsets behind that are deleted, the consumer passes
            over them, and its own `auto_offset_reset` does not count.
    """

    topic_id: int
    offset: int | None = None
    is_new: bool = False
    is_group_start: bool = False


class ReadBounds(Protocol):
    """Returns bounds of partitions as of the newest step; newest=False: of the step that was read last."""

    def __call__(self, newest: bool) -> Mapping[TopicPartition, Bounds]: ...


class Positions:
    """The positions of a consumer, which holds its lock for every call. The partition read longest ago comes first.

    A position becomes known when it is first needed: it is the committed offset, or else where `auto_offset_reset`
    says.
    """

    def __init__(
        self,
        group: str,
        reset: Reset,
        read_bounds: ReadBounds,
        read_committed: Callable[[], Mapping[TopicPartition, OffsetCommit]],
    ) -> None:
        """read_bounds: returns the bounds of the consumer's partitions, and adds and drops positions as needed;
        read_committed: returns the committed offsets of these partitions, and may wait for them.
        """
        self._group, self._reset = group, reset
        self._read_bounds, self._read_committed = read_bounds, read_committed
        self.by_partition: dict[TopicPartition, ReadPosition] = {}

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
        bounds, asked_topic_ids = self._read_bounds(newest), dict[TopicPartition, int]()
        # Partitions may come, or belong to a topic that is created again, while the committed offsets are read.
        while any(asked_topic_ids.get(tp) != self.by_partition[tp].topic_id for tp in self._find_unknown(only)):
            asked_topic_ids = {tp: position.topic_id for tp, position in self.by_partition.items()}
            for tp, commit in self._read_committed().items():
                position = self.by_partition[tp]
                if position.offset is None and commit.topic_id == position.topic_id:
                    position.offset = commit.offset
            # Read the bounds after the commits: another consumer may have read on and committed meanwhile.
            bounds = self._read_bounds(newest=True)
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
            raise NoOffsetForPartition(found=f"group {self._group}, {tp[0]}-{tp[1]}")
        if self._reset == "none":
            raise OffsetOutOfRange(
                f"Group {self._group} is to read {tp[0]}-{tp[1]} from an offset that the log does not hold.",
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
        log_beginnings(self._group, beginnings)


def check_assignment(tp: TopicPartition, topic_partitions: Container[TopicPartition]) -> None:
    """Raise IllegalState unless the partition is one of `topic_partitions`."""
    parse_topic_name("topic", tp[0])
    parse_partition(tp[1])
    if tp not in topic_partitions:
        raise IllegalState("The partition is not assigned to this consumer.", found=f"{tp[0]}-{tp[1]}")
