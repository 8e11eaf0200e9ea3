"""How far groups have come, for who watches them: what each has committed, and how much is left."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.errors import GroupIdNotFound
from ...protocol.hashing import shard
from ...protocol.names import shown
from ...protocol.values.state import State
from ..arguments import group_name


@dataclass(frozen=True)
class PartitionLag:
    """A group in a partition. lag: offsets between what it has committed and the last stable offset.

    committed_offset, committed_at_ms, metadata, lag: None before it has committed there, though a transaction that is
    still open may (pending: its transactional id).
    """

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    last_stable_offset: int
    high_watermark: int
    lag: int | None
    committed_at_ms: int | None
    metadata: str | None
    pending: str | None


@dataclass(frozen=True)
class GroupInfo:
    """A group. partitions: those for which it has offsets; lag: over all of them.

    shard: as Kafka's coordinators divide the groups; coordinator: the sequencer that leads, empty where none does.
    """

    group: str
    shard: int
    coordinator: str
    partitions: int
    lag: int


class Groups:
    """Reads what groups have committed; a consumer of the group is what commits."""

    def __init__(self, state: Callable[[], State]) -> None:
        """state: as of the newest step, with groups and transactions."""
        self._state = state

    def list(self) -> builtins.list[str]:
        """Groups that have committed offsets, by name."""
        return sorted(group for group, committed in self._state().offsets.items() if committed)

    def describe(self, group: str) -> GroupInfo:
        """Raises GroupIdNotFound, InvalidGroupId."""
        group, state = group_name(group), self._state()
        rows = _rows(state, group)
        return GroupInfo(group, shard(group), state.leader, len(rows), sum(row.lag or 0 for row in rows))

    def lag(self, group: str) -> builtins.list[PartitionLag]:
        """By topic and partition, of every partition for which the group has offsets.

        Raises GroupIdNotFound, InvalidGroupId.
        """
        return _rows(self._state(), group_name(group))


def _rows(state: State, group: str) -> list[PartitionLag]:
    committed, pending = state.offsets.get(group, {}), state.pending_offsets(group)
    if not committed and not pending:
        raise GroupIdNotFound(found=shown(group), expected="a group that has committed offsets")
    rows = [_row(state, group, place, pending.get(place)) for place in {*committed, *pending}]
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def _row(state: State, group: str, place: tuple[int, int], pending: str | None) -> PartitionLag:
    topic, partition = state.topics[place[0]], place[1]
    known = state.offsets.get(group, {}).get(place)
    stable = int(topic.last_stable_offsets[partition])
    return PartitionLag(
        group,
        topic.topic,
        partition,
        known.offset if known else None,
        stable,
        int(topic.high_watermarks[partition]),
        # who reads uncommitted may be beyond what is stable
        max(0, stable - known.offset) if known else None,
        known.committed_at_ms if known else None,
        known.metadata if known else None,
        pending,
    )
