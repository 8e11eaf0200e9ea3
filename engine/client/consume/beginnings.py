"""Log where a new group begins in the messages that are already there: how many it will read, and how many it skips."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...protocol.values.state import State

log = logging.getLogger("lakemq.consumer")


@dataclass
class Beginning:
    """The beginning of a group in a topic, summed over the partitions in which it has committed nothing.

    Attributes:
        skipped: number of offsets before its start.
        waiting: number of offsets from its start to the end.
    """

    skipped: int = 0
    waiting: int = 0

    def add(self, first: int, start: int, end: int) -> None:
        """Count one partition, whose log holds the offsets from `first` to `end`."""
        self.skipped += max(0, start - first)
        self.waiting += max(0, end - start)


def find_new_topics(state: State, group: str, topics: Iterable[str]) -> list[str]:
    """Return the existing topics that the group has no partitions of yet."""
    known_topic_ids = state.groups[group].partition_counts if group in state.groups else {}
    return [name for name in topics if (topic_id := state.topic_ids.get(name)) and topic_id not in known_topic_ids]


def find_beginnings(state: State, group: str, topics: Iterable[str]) -> dict[str, Beginning]:
    """Return where the group begins in each of these topics; partitions with a committed offset are left out."""
    beginnings: dict[str, Beginning] = {}
    committed, group_state = state.offsets.get(group, {}), state.groups.get(group)
    topic_ids = {state.topic_ids[name] for name in topics if name in state.topic_ids}
    for tp, assignment in group_state.assignments.items() if group_state else ():
        if tp[0] in topic_ids and tp not in committed and assignment.start_offset is not None:
            topic, partition = state.topics[tp[0]], tp[1]
            first, end = int(topic.log_starts[partition]), int(topic.last_stable_offsets[partition])
            beginnings.setdefault(topic.topic, Beginning()).add(first, assignment.start_offset, end)
    return beginnings


def log_beginnings(group: str, beginnings: Mapping[str, Beginning]) -> None:
    """Log one line per topic in which there are messages already. A group that skips some is worth a warning."""
    for topic, beginning in sorted(beginnings.items()):
        if beginning.skipped:
            log.warning(
                "Group %s is new to %s and begins behind %d offsets that are already there: it skips them. "
                'To read them, begin with auto_offset_reset="earliest", or reset the offsets of the group.',
                group,
                topic,
                beginning.skipped,
            )
        elif beginning.waiting:
            log.info(
                "Group %s is new to %s and begins at its start: it reads the %d offsets that are already there.",
                group,
                topic,
                beginning.waiting,
            )
