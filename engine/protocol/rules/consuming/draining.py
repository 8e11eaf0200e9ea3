"""Draining partitions: a topic that gets fewer partitions keeps the last ones until all groups have read them.

Nothing is deleted. Partitions end from the last number down, so that groups always have the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...values.consuming.assignments import TopicIdPartition
from ...values.journal import JournalEntry
from ...values.state import State
from ...values.topics import PartitionsEnded, Topic
from ..timers import Time, Timer, Timers

_DrainedFrom = tuple[int, int]
"""A topic id, and the first of the partitions that end."""


def _find_drained_topics(state: State) -> list[_DrainedFrom]:
    draining = (state.topics[topic_id] for topic_id in sorted(state.draining))
    ended = ((topic, _find_first_to_end(state, topic)) for topic in draining)
    return [(topic.topic_id, first) for topic, first in ended if first < topic.consumed_count]


def _can_end(state: State, key: _DrainedFrom, time: Time) -> bool:
    topic_id, first = key
    topic = state.topics.get(topic_id)
    return topic is not None and _find_first_to_end(state, topic) <= first < topic.consumed_count


def _find_first_to_end(state: State, topic: Topic) -> int:
    """Return the first partition of the run at the end that every group has read; the consumed count without a run."""
    first = topic.consumed_count
    while first > topic.partition_count and _is_read_to_end(state, topic, first - 1):
        first -= 1
    return first


def _is_read_to_end(state: State, topic: Topic, partition: int) -> bool:
    """Return whether no transaction is open in the partition and every group that reads it has reached its end."""
    if partition in topic.open_transactions:
        return False
    end = int(topic.high_watermarks[partition])
    if int(topic.log_starts[partition]) == end:
        return True
    return all(at >= end for at in _find_positions(state, topic.find_partition(partition)))


def _find_positions(state: State, tp: TopicIdPartition) -> Iterator[int]:
    """Yield where groups continue in the partition: at their committed offset, else where they are to start."""
    for committed in state.offsets.values():
        if tp in committed:
            yield committed[tp].offset
    for name, group in state.groups.items():
        assignment = group.assignments.get(tp)
        if assignment is not None and assignment.start_offset is not None and tp not in state.offsets.get(name, {}):
            yield assignment.start_offset


def decide_end_partitions(state: State, key: _DrainedFrom) -> list[JournalEntry]:
    topic_id, first = key
    return [JournalEntry(PartitionsEnded(topic_id, state.topics[topic_id].topic, first))]


# A step may have many commits. Looking through all groups in each would be slow, so this runs as rarely as expiries.
TIMERS: Timers = (Timer(_find_drained_topics, _can_end, decide_end_partitions, is_expiry=True),)
