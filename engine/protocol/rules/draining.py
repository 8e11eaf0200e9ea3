"""Partitions that a topic was given up: groups read them to their ends, and are given them no more then.

Nothing is deleted for it. The last one ends first, so that those which groups have are always the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..values.assignments import Place
from ..values.journal import JournalEntry
from ..values.state import State
from ..values.topics import PartitionsEnded, Topic
from .timers import Time, Timer, Timers

_Ended = tuple[int, int]
"""A topic, and the number from which on its partitions have ended."""


def _waiting(state: State) -> list[_Ended]:
    draining = (state.topics[topic_id] for topic_id in sorted(state.draining))
    ended = ((topic, _ended_from(state, topic)) for topic in draining)
    return [(topic.topic_id, first) for topic, first in ended if first < topic.consumed_count]


def _has_ended(state: State, key: _Ended, time: Time) -> bool:
    topic_id, first = key
    topic = state.topics.get(topic_id)
    return topic is not None and _ended_from(state, topic) <= first < topic.consumed_count


def _ended_from(state: State, topic: Topic) -> int:
    """The lowest of the last ones that nobody is to come back to; none: as many as groups have."""
    first = topic.consumed_count
    while first > topic.partition_count and _is_passed(state, topic, first - 1):
        first -= 1
    return first


def _is_passed(state: State, topic: Topic, partition: int) -> bool:
    """Whether no transaction is open in it, and every group that is to read it has come to its end."""
    if partition in topic.open_transactions:
        return False
    end = int(topic.high_watermarks[partition])
    if int(topic.log_starts[partition]) == end:
        return True
    return all(at >= end for at in _positions(state, topic.place(partition)))


def _positions(state: State, place: Place) -> Iterator[int]:
    """Where groups go on in it: from what they have committed, else from where they are to begin."""
    for committed in state.offsets.values():
        if place in committed:
            yield committed[place].offset
    for name, group in state.groups.items():
        one = group.assignments.get(place)
        if one is not None and one.start_offset is not None and place not in state.offsets.get(name, {}):
            yield one.start_offset


def decide_ended(state: State, key: _Ended) -> list[JournalEntry]:
    topic_id, first = key
    return [JournalEntry(PartitionsEnded(topic_id, state.topics[topic_id].topic, first))]


# commits may be many in a step: groups are looked through as seldom as those who are to be forgotten
TIMERS: Timers = (Timer(_waiting, _has_ended, decide_ended, forgets=True),)
