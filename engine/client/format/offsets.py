"""How far a stream has come, as its checkpoint keeps it, and how far the next batch goes. Pure.

Invariant: what a batch reads follows from the offsets before and after it, which are in the checkpoint before the batch
begins. So also where a stream began is written with its first batch, and not looked up again by who repeats that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import InvalidConfig
from .positions import Logs, Offsets


@dataclass(frozen=True)
class StreamOffset:
    """The next offsets to read, of the topics of these ids. began: where, if this is the end of the first batch.

    now_ms: when the batch was made that ends here, by the newest step: what had expired by then is not in it.
    namespace_id: whose topics these are, as ids begin anew in each.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)
    began: Offsets | None = None
    now_ms: int | None = None
    namespace_id: str | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> StreamOffset:
        """As it was told. Raises InvalidConfig: another source told it, and its checkpoint was kept for this one."""
        try:
            began, offsets, topic_ids = told.get("began"), _read(told["offsets"]), dict(told["topic_ids"])
            if offsets.keys() != topic_ids.keys():
                raise ValueError("topics without an id")
            at_ms, namespace_id = told.get("now_ms"), told.get("namespace_id")
            return cls(offsets, topic_ids, None if began is None else _read(began), at_ms, namespace_id)
        except (LookupError, TypeError, ValueError, AttributeError):
            what = "The checkpoint is not one of the format lakemq."
            raise InvalidConfig(what, found=told, expected="a new checkpoint") from None

    def told(self) -> dict[str, Any]:
        """As JSON; the same for the same. `offsets` are written as startingOffsets are."""
        topic_ids = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        found: dict[str, Any] = {"offsets": _written(self.offsets), "topic_ids": topic_ids}
        if self.now_ms is not None:
            found["now_ms"] = self.now_ms
        if self.namespace_id is not None:
            found["namespace_id"] = self.namespace_id
        return found if self.began is None else {**found, "began": _written(self.began)}

    def start_of(self, topic: str, topic_id: int, partition: int) -> int:
        """Where to read on; a partition, or a topic, that has come since is read from its first message on."""
        if self.topic_ids.get(topic) != topic_id:
            return 0
        return self.offsets[topic].get(partition, 0)


def _written(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(p): log[p] for p in sorted(log)} for topic, log in sorted(offsets.items())}


def _read(told: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: {int(p): offset for p, offset in log.items()} for topic, log in told.items()}


def ids_of(logs: Logs) -> dict[str, int]:
    return {topic: one.topic_id for topic, log in logs.items() for one in log.values()}


def available(start: StreamOffset, logs: Logs) -> dict[tuple[str, int], tuple[int, int]]:
    """(topic, partition) -> where the next batch begins, and where it ends at the latest: not before that.

    A log that has lost its end is gone on with at the end that it has, one that has lost its beginning at its first
    offset: what is lost counts for no limit of a batch.
    """
    found = {}
    for topic, log in logs.items():
        for partition, one in log.items():
            at = max(start.start_of(topic, one.topic_id, partition), one.first)
            found[topic, partition] = (at, max(at, one.end)) if at <= one.high_watermark else (one.end, one.end)
    return found


def limited(ranges: Mapping[tuple[str, int], tuple[int, int]], most: int | None) -> Offsets:
    """Where the next batch ends: at most so many offsets on, in all, which partitions share by how much they have."""
    left = {place: end - start for place, (start, end) in ranges.items()}
    total = sum(left.values())
    shares = left if most is None or total <= most else _shares(left, most, total)
    ends: Offsets = {}
    for (topic, partition), (start, _) in ranges.items():
        ends.setdefault(topic, {})[partition] = start + shares[topic, partition]
    return ends


def _shares(left: Mapping[tuple[str, int], int], most: int, total: int) -> dict[tuple[str, int], int]:
    """That add up to `most`: what is left over when all are rounded down goes to those that lost most by it."""
    shares = {place: count * most // total for place, count in left.items()}
    by_loss = sorted(left, key=lambda place: (-(left[place] * most % total), place))
    for place in by_loss[: most - sum(shares.values())]:
        shares[place] += 1
    return shares
