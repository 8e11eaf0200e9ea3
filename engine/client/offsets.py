"""Offsets that a consumer hands out: they remember which topics they are of, so that no other one is meant."""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol.values.offsets import OffsetCommit

TopicPartition = tuple[str, int]
"""Topic and partition."""


class ConsumedOffsets(dict[TopicPartition, int]):
    """(topic, partition) -> the next offset to read. topic_ids: by name, of the topics that were read."""

    def __init__(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> None:
        super().__init__(offsets)
        self.topic_ids = dict(topic_ids)

    def then(self, later: ConsumedOffsets) -> ConsumedOffsets:
        """Both, where they name the same partition the later; what is of a topic that has gone since is left out."""
        same = {p: at for p, at in self.items() if later.topic_ids.get(p[0]) == self.topic_ids.get(p[0])}
        return ConsumedOffsets({**same, **later}, later.topic_ids)


def offset_commits(offsets: Mapping[TopicPartition, int], metadata: str | None = None) -> list[OffsetCommit]:
    """What to ask the sequencer to note; offsets of a plain mapping are those of whichever topic has the name."""
    topic_ids: Mapping[str, int] = offsets.topic_ids if isinstance(offsets, ConsumedOffsets) else {}
    return [
        OffsetCommit(topic, partition, at, metadata, topic_ids.get(topic)) for (topic, partition), at in offsets.items()
    ]
