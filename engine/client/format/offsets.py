"""How far a stream has come, as its checkpoint stores it, and how far the next batch goes. Pure.

Invariant: the offsets before and after a batch decide what it reads, and both are in the checkpoint before it begins.
Therefore the first batch also stores where the stream began; a repeat of that batch must not look it up again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import InvalidConfig
from .log_offsets import Logs, Offsets


@dataclass(frozen=True)
class StreamOffset:
    """The next offsets to read.

    Attributes:
        offsets: by topic and partition.
        topic_ids: of these topics.
        began: where the stream began, if this is the end of the first batch.
        now_ms: when the batch that ends here was planned, by the newest step. Messages expired by then are not in it.
        namespace_id: the namespace of these topics, because ids start at 0 in each.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)
    began: Offsets | None = None
    now_ms: int | None = None
    namespace_id: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> StreamOffset:
        """Parse the JSON of an offset. Raises InvalidConfig: another source wrote it, and its checkpoint was kept."""
        try:
            began, offsets, topic_ids = (
                fields.get("began"),
                _from_json_offsets(fields["offsets"]),
                dict(fields["topic_ids"]),
            )
            if offsets.keys() != topic_ids.keys():
                raise ValueError("topics without an id")
            at_ms, namespace_id = fields.get("now_ms"), fields.get("namespace_id")
            return cls(offsets, topic_ids, None if began is None else _from_json_offsets(began), at_ms, namespace_id)
        except (LookupError, TypeError, ValueError, AttributeError):
            text = "The checkpoint is not one of the format lakemq."
            raise InvalidConfig(text, found=fields, expected="a new checkpoint") from None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; equal offsets give equal JSON. `offsets` are written as startingOffsets are."""
        topic_ids = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        fields: dict[str, Any] = {"offsets": _to_json_offsets(self.offsets), "topic_ids": topic_ids}
        if self.now_ms is not None:
            fields["now_ms"] = self.now_ms
        if self.namespace_id is not None:
            fields["namespace_id"] = self.namespace_id
        return fields if self.began is None else {**fields, "began": _to_json_offsets(self.began)}

    def find_start(self, topic: str, topic_id: int, partition: int) -> int:
        """Return the next offset of a partition. A new partition or topic is read from its first message on."""
        if self.topic_ids.get(topic) != topic_id:
            return 0
        return self.offsets[topic].get(partition, 0)


def _to_json_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(p): log[p] for p in sorted(log)} for topic, log in sorted(offsets.items())}


def _from_json_offsets(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: {int(p): offset for p, offset in log.items()} for topic, log in offsets.items()}


def find_topic_ids(logs: Logs) -> dict[str, int]:
    return {topic: bounds.topic_id for topic, log in logs.items() for bounds in log.values()}


def find_available_ranges(start: StreamOffset, logs: Logs) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (topic, partition) -> where the next batch begins, and where it ends at most.

    If a log has lost its end, reading goes on at its present end; if it has lost its beginning, at its first offset.
    Lost messages do not count for the limit of a batch.
    """
    ranges = {}
    for topic, log in logs.items():
        for partition, bounds in log.items():
            at = max(start.find_start(topic, bounds.topic_id, partition), bounds.first)
            ranges[topic, partition] = (
                (at, max(at, bounds.end)) if at <= bounds.high_watermark else (bounds.end, bounds.end)
            )
    return ranges


def limit_ranges(ranges: Mapping[tuple[str, int], tuple[int, int]], most: int | None) -> Offsets:
    """Return where the next batch ends: at most `most` offsets in all, shared by how much the partitions have."""
    counts = {tp: end - start for tp, (start, end) in ranges.items()}
    total = sum(counts.values())
    shares = counts if most is None or total <= most else _share_out(counts, most, total)
    ends: Offsets = {}
    for (topic, partition), (start, _) in ranges.items():
        ends.setdefault(topic, {})[partition] = start + shares[topic, partition]
    return ends


def _share_out(counts: Mapping[tuple[str, int], int], most: int, total: int) -> dict[tuple[str, int], int]:
    """Return shares that add up to `most`. Remainders of rounding go to the partitions that lost most by it."""
    shares = {tp: count * most // total for tp, count in counts.items()}
    by_loss = sorted(counts, key=lambda tp: (-(counts[tp] * most % total), tp))
    for tp in by_loss[: most - sum(shares.values())]:
        shares[tp] += 1
    return shares
