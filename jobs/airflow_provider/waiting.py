"""What waits for a group: read from the journal, without asking anybody and without being a member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakemq.engine.client import arguments
from lakemq.errors import GroupIdNotFound

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

Ends = dict[str, dict[int, int]]
"""Topic -> partition -> where what waits there ends: the offset after the last message."""


def waiting(mq: Connection, group: str, topics: Iterable[str]) -> Ends:
    """Of all partitions in which there are committed messages that the group is not done with.

    Where it has committed nothing, all that there is. Raises UnknownTopicOrPartition, InvalidTopic, InvalidRequest.
    """
    names = arguments.topic_names("topics", topics)
    try:
        lag = {(row.topic, row.partition): row for row in mq.groups.lag(group)}
        is_queue = mq.groups.describe(group).protocol == "queue"
    except GroupIdNotFound:
        lag, is_queue = {}, False
    ends: Ends = {}
    for topic in names:
        begins = mq.beginning_offsets(topic)
        for partition, end in mq.end_offsets(topic).items():
            row = lag.get((topic, partition))
            start = max(begins[partition], (row.committed_offset if row else None) or 0)
            if start >= end:
                continue
            if is_queue and row is not None and row.lag is not None:
                waits = row.lag > 0
            else:  # markers and aborted messages are offsets, too, and nothing to start a run for
                left = mq.fetch(topic, start={partition: start}, end={partition: end}, partitions=[partition])
                waits = left.record_count > 0
            if waits:
                ends.setdefault(topic, {})[partition] = end
    return ends


def advanced(ends: Ends, told: Ends) -> bool:
    """Whether something waits that had not come when `told` was. An end below is that of a topic made anew."""
    return any(
        end != told.get(topic, {}).get(partition, -1)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
