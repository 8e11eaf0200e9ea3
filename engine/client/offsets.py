"""Offsets that a consumer hands out.

Those of consumers carry topic ids, so that a topic made again under the name is not meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
