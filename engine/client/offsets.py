"""Offsets that a consumer hands out, and sets of offsets.

Those of consumers carry topic ids, so that a topic made again under the name is not meant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..protocol.errors import InvalidRecordState
from ..protocol.values.deliveries import Acknowledgement
from ..protocol.values.offsets import OffsetCommit

TopicPartition = tuple[str, int]
"""Topic and partition. A variable of this type is named `tp`."""

HasUnacknowledged = Callable[[Sequence[Acknowledgement]], bool]


class ConsumedOffsets(dict[TopicPartition, int]):
    """A mapping (topic, partition) -> next offset to read.

    Attributes:
        topic_ids: topic name -> id of the topic that was read.
        member_id: the group member that read; None outside of groups.
        epochs: (topic, partition) -> epoch of the assignment under which the member read it.
        generation: generation of a classic group; None otherwise.
    """

    def __init__(
        self,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, int],
        member_id: str | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
        generation: int | None = None,
    ) -> None:
        super().__init__(offsets)
        self.topic_ids, self.member_id, self.epochs = dict(topic_ids), member_id, dict(epochs or {})
        self.generation = generation

    def followed_by(self, later: ConsumedOffsets) -> ConsumedOffsets:
        """Return these offsets, replaced by later ones of the same partitions. Drop topics that exist no more."""
        same_topics = {tp: at for tp, at in self.items() if later.topic_ids.get(tp[0]) == self.topic_ids.get(tp[0])}
        epochs = {**self.epochs, **later.epochs}
        return ConsumedOffsets({**same_topics, **later}, later.topic_ids, later.member_id, epochs, later.generation)


class ConsumedMessages(ConsumedOffsets):
    """Offsets of a queue group's member, with the messages that it read and acknowledges."""

    def __init__(
        self, offsets: ConsumedOffsets, messages: Sequence[Acknowledgement], has_open: HasUnacknowledged
    ) -> None:
        """has_open: returns whether the member has not acknowledged or given back some of the messages yet."""
        super().__init__(offsets, offsets.topic_ids, offsets.member_id, offsets.epochs)
        self.messages, self._has_open = list(messages), has_open

    def followed_by(self, later: ConsumedOffsets) -> ConsumedMessages:
        more = later.messages if isinstance(later, ConsumedMessages) else []
        return ConsumedMessages(super().followed_by(later), [*self.messages, *more], self._has_open)

    def check_has_unacknowledged(self) -> None:
        """Raise InvalidRecordState if all messages are acknowledged or given back. Without messages do nothing."""
        if self.messages and not self._has_open(self.messages):
            raise InvalidRecordState(
                "All messages of the batch were acknowledged or given back before.",
                expected="at least one message that the commit of the transaction can acknowledge",
            )


def build_offset_commits(offsets: Mapping[TopicPartition, int], metadata: str | None = None) -> list[OffsetCommit]:
    """Build the commits to send to the sequencer. Offsets of a plain mapping mean the topic that has the name now."""
    consumed = offsets if isinstance(offsets, ConsumedOffsets) else ConsumedOffsets(offsets, {})
    topic_ids, epochs = consumed.topic_ids, consumed.epochs
    return [
        OffsetCommit(topic, partition, offset, metadata, topic_ids.get(topic), epochs.get((topic, partition)))
        for (topic, partition), offset in consumed.items()
    ]


# Sets of offsets, stored as spans because the offsets mostly follow one another.


Span = tuple[int, int]
"""First offset, and end offset (exclusive)."""


class Spans:
    """A set of offsets, as sorted spans that do not touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in spans:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def remove(self, first: int, end: int) -> None:
        """Remove the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low >= high:
            return
        before = [(self._firsts[low], first)] if self._firsts[low] < first else []
        after = [(end, self._ends[high - 1])] if end < self._ends[high - 1] else []
        rest = [*before, *after]
        self._firsts[low:high] = [span[0] for span in rest]
        self._ends[low:high] = [span[1] for span in rest]

    def within(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are in the set."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        for i in range(low, high):
            yield max(first, self._firsts[i]), min(end, self._ends[i])

    def missing(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are not in the set."""
        for span_first, span_end in self.within(first, end):
            if first < span_first:
                yield first, span_first
            first = span_end
        if first < end:
            yield first, end

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    @property
    def is_empty(self) -> bool:
        return not self._firsts

    def __len__(self) -> int:
        """Return the number of offsets."""
        return sum(self._ends) - sum(self._firsts)


def group_into_spans(offsets: Iterable[int]) -> list[Span]:
    """Return sorted spans of these offsets, which come in any order. Raises ValueError unless they fit 64 bits."""
    listed = list(offsets)
    if not listed:
        return []
    try:
        array = np.array(listed)
    except (TypeError, OverflowError) as error:
        raise ValueError("not a whole number") from error
    if array.dtype.kind != "i" or array.ndim != 1:
        raise ValueError("not a whole number of 64 bits")
    distinct = np.unique(array)
    cuts = np.flatnonzero(np.diff(distinct) != 1)
    firsts = distinct[np.concatenate([[0], cuts + 1])]
    lasts = distinct[np.concatenate([cuts, [len(distinct) - 1]])]
    return [(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
