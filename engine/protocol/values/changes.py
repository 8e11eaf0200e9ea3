"""The changes of folds: the keys of the rows that the next projection writes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import chain
from typing import NamedTuple

from .consuming.assignments import TopicIdPartition
from .segments import Segments


class DeletedTopic(NamedTuple):
    """The facts that the last rows of a deleted topic need. log_count: its partitions, including ended ones."""

    topic: str
    log_count: int


@dataclass
class Changes:
    """Key of a row -> the last step that has changed it. One field per table that holds state.

    The methods of State that change a thing, or let a fold change it, note its key here. So no projection needs to know
    which records change its rows, and no member which records change its view of the group. Delayed rows are missing:
    their rows name the request of each change, which only the journal tells.

    appended: segments that have changed their partitions, with the step. To note each partition would slow down a step
    of many segments. deleted_topics: by topic id. removed_partitions: group and partition -> topic, of partitions that
    a group no longer has.
    """

    topics: dict[int, int] = field(default_factory=dict)
    partitions: dict[TopicIdPartition, int] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)
    applications: dict[tuple[str, str], int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicIdPartition], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    members: dict[tuple[str, str], int] = field(default_factory=dict)
    assignments: dict[tuple[str, TopicIdPartition], int] = field(default_factory=dict)
    appended: list[tuple[int, Segments]] = field(default_factory=list)
    deleted_topics: dict[int, DeletedTopic] = field(default_factory=dict)
    removed_partitions: dict[tuple[str, TopicIdPartition], str] = field(default_factory=dict)

    def find_partitions(self, group: str) -> set[TopicIdPartition]:
        """Return the partitions of which the log, or what this group knows of them, has changed.

        Partitions of topics that have changed as a whole may be missing.
        """
        changed = {tp for name, tp in chain(self.offsets, self.assignments) if name == group}
        changed.update(self.partitions)
        for _, segments in self.appended:
            changed.update(zip(segments.column("topic_id"), segments.column("partition"), strict=True))
        return changed

    def clear(self) -> None:
        """Forget all changes: the tables hold them."""
        for part in fields(self):
            getattr(self, part.name).clear()
