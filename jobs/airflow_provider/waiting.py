"""Find the messages that wait for a group. This reads files only: it asks no sequencer and joins no group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakemq.engine.client import arguments
from lakemq.errors import GroupIdNotFound

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

Ends = dict[str, dict[int, int]]
"""Topic -> partition -> the offset after the last message that waits there."""


def find_waiting_ends(mq: Connection, group: str, topics: Iterable[str]) -> Ends:
    """Return the ends of all partitions in which committed messages wait for the group.

    Before the group's first commit, messages count from where the group starts. For a group that does not exist, they
    count from the start of the log.

    Raises UnknownTopicOrPartition, InvalidTopic, InvalidRequest.
    """
    names = arguments.parse_topic_names("topics", topics)
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
            start = max(begins[partition], row.next_offset if row else 0)
            if start >= end:
                continue
            if is_queue and row is not None:
                waits = row.lag > 0
            else:  # markers and aborted messages have offsets too, but are no reason to start a run
                unread = mq.fetch(topic, start={partition: start}, end={partition: end}, partitions=[partition])
                waits = unread.record_count > 0
            if waits:
                ends.setdefault(topic, {})[partition] = end
    return ends


def has_new_ends(ends: Ends, before: Ends) -> bool:
    """Return whether messages wait that `before` does not cover. A lower end belongs to a topic that was recreated."""
    return any(
        end != before.get(topic, {}).get(partition, -1)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
