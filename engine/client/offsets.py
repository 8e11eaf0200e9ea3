"""Offsets that a consumer hands out: they remember which topics they are of, so that no other one is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..protocol.errors import InvalidRecordState
from ..protocol.values.deliveries import Acknowledgement
from ..protocol.values.offsets import OffsetCommit

TopicPartition = tuple[str, int]
"""Topic and partition."""

HasOpen = Callable[[Sequence[Acknowledgement]], bool]


class ConsumedOffsets(dict[TopicPartition, int]):
    """(topic, partition) -> the next offset to read. topic_ids: by name, of the topics that were read.

    Of a member of a group also member_id, the epochs of the assignments under which it has read, and the generation of
    a classic group.
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

    def then(self, later: ConsumedOffsets) -> ConsumedOffsets:
        """Both, where they name the same partition the later; what is of a topic that has gone since is left out."""
        same = {p: at for p, at in self.items() if later.topic_ids.get(p[0]) == self.topic_ids.get(p[0])}
        epochs = {**self.epochs, **later.epochs}
        return ConsumedOffsets({**same, **later}, later.topic_ids, later.member_id, epochs, later.generation)


class ConsumedMessages(ConsumedOffsets):
    """Of a member of a queue group, which acknowledges messages. messages: those that were read, of each partition."""

    def __init__(self, offsets: ConsumedOffsets, messages: Sequence[Acknowledgement], has_open: HasOpen) -> None:
        """has_open: whether the member has still to say what became of some of them."""
        super().__init__(offsets, offsets.topic_ids, offsets.member_id, offsets.epochs)
        self.messages, self._has_open = list(messages), has_open

    def then(self, later: ConsumedOffsets) -> ConsumedMessages:
        more = later.messages if isinstance(later, ConsumedMessages) else []
        return ConsumedMessages(super().then(later), [*self.messages, *more], self._has_open)

    def check_open(self) -> None:
        """Raises InvalidRecordState: it was said of all of them what became of them; where there are none, nothing."""
        if self.messages and not self._has_open(self.messages):
            raise InvalidRecordState(
                "All messages of the batch were acknowledged, or given back, before.",
                expected="some of which nothing was said, to be done with when the transaction commits",
            )


def offset_commits(offsets: Mapping[TopicPartition, int], metadata: str | None = None) -> list[OffsetCommit]:
    """What to ask the sequencer to note; offsets of a plain mapping are those of whichever topic has the name."""
    known = offsets if isinstance(offsets, ConsumedOffsets) else ConsumedOffsets(offsets, {})
    return [
        OffsetCommit(topic, partition, at, metadata, known.topic_ids.get(topic), known.epochs.get((topic, partition)))
        for (topic, partition), at in known.items()
    ]
