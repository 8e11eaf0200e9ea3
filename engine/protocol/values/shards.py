"""Shards of groups and transactional ids, in numbers that are chosen when a namespace is created."""

from __future__ import annotations

from dataclasses import dataclass

from ..hashing import SHARDS, shard


@dataclass(frozen=True)
class Shards:
    """The number of shards of a namespace's groups and of its transactional ids.

    A shard is what a partition of `__consumer_offsets` and of `__transaction_state` is in Kafka: rows that share one
    may be read together. One sequencer decides for all of them.
    """

    group_shard_count: int = SHARDS
    transaction_shard_count: int = SHARDS

    def of_group(self, group: str) -> int:
        """Return the group's shard."""
        return shard(group, self.group_shard_count)

    def of_transactional_id(self, transactional_id: str) -> int:
        """Return the transactional id's shard."""
        return shard(transactional_id, self.transaction_shard_count)
