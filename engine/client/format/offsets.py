"""How far a stream has come, as its checkpoint stores it, and how far the next batch goes. Pure.

Invariant: the offsets before and after a batch decide what it reads, and both are in the checkpoint before it begins.
Therefore the first batch also stores where the stream began; a repeat of that batch must not look it up again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import InvalidConfig, OffsetOutOfRange
from ...protocol.values.state import State
from ...protocol.values.topics import Bounds
from ..connection import Connection
from ..consume.options import Pattern
from ..fetch.plan import Isolation, unknown_partition
from .options import EARLIEST, LATEST, OffsetBound, TopicSelection

# Resolve where a read begins and ends: look up its options in the present log.


Logs = dict[str, dict[int, Bounds]]
"""Topic -> partition -> its bounds, as of one step. Includes partitions that have ended."""

Offsets = dict[str, dict[int, int]]


def find_logs(state: State, selection: TopicSelection, isolation: Isolation, required: bool = True) -> Logs:
    """Return the logs to read. required: raise UnknownTopicOrPartition if a named one does not exist."""
    if selection.pattern is not None:
        names = Pattern(selection.pattern).find_matches([*state.topic_ids])
    else:
        names = [name for name in selection.topics or selection.partitions if required or name in state.topic_ids]
    logs = {name: dict(enumerate(state.topic(name).read_bounds(isolation))) for name in sorted(names)}
    for name, partitions in selection.partitions.items():
        log = logs.get(name, {})
        if required and (missing := [p for p in partitions if p not in log]):
            raise unknown_partition(name, missing[0], len(log))
        if log:
            logs[name] = {p: bounds for p, bounds in log.items() if p in partitions}
    return logs


def find_offsets(mq: Connection, at: OffsetBound, logs: Logs, name: str) -> Offsets:
    """Return for each partition where to begin or end. name: of the option.

    Raises:
        InvalidConfig: the option does not name exactly these partitions.
        OffsetOutOfRange: a partition has no message of this time.
    """
    if at.time_ms is not None:
        return _find_offsets_at_times(
            mq, at, logs, {topic: dict.fromkeys(log, at.time_ms) for topic, log in logs.items()}
        )
    if at.times_ms is not None:
        _check_same_partitions(at.times_ms, logs, f"{name}ByTimestamp")
        return _find_offsets_at_times(mq, at, logs, at.times_ms)
    if at.offsets is not None:
        _check_same_partitions(at.offsets, logs, name)
        return _map_partitions(logs, lambda topic, p, bounds: _resolve_offset(at.offsets[topic][p], bounds))  # type: ignore[index]
    return _map_partitions(logs, lambda _, p, bounds: bounds.first if at.word == "earliest" else bounds.end)


def _resolve_offset(offset: int, bounds: Bounds) -> int:
    return {EARLIEST: bounds.first, LATEST: bounds.end}.get(offset, offset)


def _map_partitions(logs: Logs, offset: Callable[[str, int, Bounds], int]) -> Offsets:
    return {topic: {p: offset(topic, p, bounds) for p, bounds in log.items()} for topic, log in logs.items()}


def _check_same_partitions(parser: Mapping[str, Mapping[int, int]], logs: Logs, name: str) -> None:
    """Check that the option names all partitions, as in Spark's Kafka source."""
    named = {(topic, p) for topic, numbers in parser.items() for p in numbers}
    expected = {(topic, p) for topic, log in logs.items() for p in log}
    for word, topic_partitions in (("lacks", expected - named), ("names what is not read:", named - expected)):
        if topic_partitions:
            topic, p = min(topic_partitions)
            raise InvalidConfig(f"{name} {word} a partition.", found=f"{topic}-{p}")


def _find_offsets_at_times(
    mq: Connection, at: OffsetBound, logs: Logs, times_ms: Mapping[str, Mapping[int, int]]
) -> Offsets:
    offsets: Offsets = {}
    for topic, log in logs.items():
        positions = mq.offsets_for_times(topic, times_ms[topic])
        offsets[topic] = {}
        for p, bounds in log.items():
            position = positions[p]
            if position is None and at.fallback is None:
                raise OffsetOutOfRange(
                    f"{topic}-{p} has no message of this time or later.",
                    found=times_ms[topic][p],
                    expected="an earlier time, or startingOffsetsByTimestampStrategy=latest",
                )
            offsets[topic][p] = bounds.end if position is None else min(position[0], bounds.end)
    return offsets


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
