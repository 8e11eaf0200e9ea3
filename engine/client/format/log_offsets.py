"""Resolve where a read begins and ends: look up its options in the present log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.errors import InvalidConfig, OffsetOutOfRange
from ...protocol.values.state import State
from ..connection import Connection
from ..consume.member.subscription import Pattern
from ..fetch.planning.plan import Bounds, Isolation, read_bounds, unknown_partition
from .options import EARLIEST, LATEST, OffsetBound, TopicSelection

Logs = dict[str, dict[int, Bounds]]
"""Topic -> partition -> its bounds, as of one step. Includes partitions that have ended."""

Offsets = dict[str, dict[int, int]]


def find_logs(state: State, selection: TopicSelection, isolation: Isolation, required: bool = True) -> Logs:
    """Return the logs to read. required: raise UnknownTopicOrPartition if a named one does not exist."""
    if selection.pattern is not None:
        names = Pattern(selection.pattern).find_matches([*state.topic_ids])
    else:
        names = [name for name in selection.topics or selection.partitions if required or name in state.topic_ids]
    logs = {name: dict(enumerate(read_bounds(state.topic(name), isolation))) for name in sorted(names)}
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
        OffsetOutOfRange: a partition has no message of that time.
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
                    f"{topic}-{p} has no message of that time or later.",
                    found=times_ms[topic][p],
                    expected="an earlier time, or startingOffsetsByTimestampStrategy=latest",
                )
            offsets[topic][p] = bounds.end if position is None else min(position[0], bounds.end)
    return offsets
