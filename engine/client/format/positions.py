"""Where a read begins and ends: what its options say, looked up in the log as it is now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from ...protocol.values.state import State
from ..connection import Connection
from ..consume.subscription import Pattern
from ..fetch.plan import Bounds, Isolation, bounds_of
from .options import EARLIEST, LATEST, At, Which

Logs = dict[str, dict[int, Bounds]]
"""Topic -> partition -> its bounds, as of one step. A partition that has ended is among them."""

Offsets = dict[str, dict[int, int]]


def logs_of(state: State, which: Which, isolation: Isolation, required: bool = True) -> Logs:
    """What is to be read. required: raises UnknownTopicOrPartition where one that is named is not there."""
    if which.pattern is not None:
        names = Pattern(which.pattern).matching([*state.topic_ids])
    else:
        names = [name for name in which.topics or which.partitions if required or name in state.topic_ids]
    logs = {name: dict(enumerate(bounds_of(state.topic(name), isolation))) for name in sorted(names)}
    for name, wanted in which.partitions.items():
        known = logs.get(name, {})
        if required and (missing := [p for p in wanted if p not in known]):
            raise UnknownTopicOrPartition(f"{name} has no such partition.", found=missing[0])
        if known:
            logs[name] = {p: one for p, one in known.items() if p in wanted}
    return logs


def offsets_at(mq: Connection, at: At, logs: Logs, name: str) -> Offsets:
    """Of each partition where to begin, or to end. name: of the option.

    Raises InvalidConfig: it does not name just these partitions; OffsetOutOfRange: one has no message of such a time.
    """
    if at.time_ms is not None:
        return _at_times(mq, at, logs, {topic: dict.fromkeys(log, at.time_ms) for topic, log in logs.items()})
    if at.times_ms is not None:
        _check_same(at.times_ms, logs, f"{name}ByTimestamp")
        return _at_times(mq, at, logs, at.times_ms)
    if at.offsets is not None:
        _check_same(at.offsets, logs, name)
        return _each(logs, lambda topic, p, one: _offset(at.offsets[topic][p], one))  # type: ignore[index]
    return _each(logs, lambda _, p, one: one.first if at.word == "earliest" else one.end)


def _offset(offset: int, bounds: Bounds) -> int:
    return {EARLIEST: bounds.first, LATEST: bounds.end}.get(offset, offset)


def _each(logs: Logs, offset: Callable[[str, int, Bounds], int]) -> Offsets:
    return {topic: {p: offset(topic, p, one) for p, one in log.items()} for topic, log in logs.items()}


def _check_same(given: Mapping[str, Mapping[int, int]], logs: Logs, name: str) -> None:
    """As in Spark's Kafka source: who names some names all."""
    found = {(topic, p) for topic, numbers in given.items() for p in numbers}
    expected = {(topic, p) for topic, log in logs.items() for p in log}
    for word, places in (("lacks", expected - found), ("names what is not read:", found - expected)):
        if places:
            topic, p = min(places)
            raise InvalidConfig(f"{name} {word} a partition.", found=f"{topic}-{p}")


def _at_times(mq: Connection, at: At, logs: Logs, times_ms: Mapping[str, Mapping[int, int]]) -> Offsets:
    offsets: Offsets = {}
    for topic, log in logs.items():
        found = mq.offsets_for_times(topic, times_ms[topic])
        offsets[topic] = {}
        for p, one in log.items():
            known = found[p]
            if known is None and at.otherwise is None:
                raise OffsetOutOfRange(
                    f"{topic}-{p} has no message of that time or later.",
                    found=times_ms[topic][p],
                    expected="an earlier time, or startingOffsetsByTimestampStrategy=latest",
                )
            offsets[topic][p] = one.end if known is None else min(known[0], one.end)
    return offsets
