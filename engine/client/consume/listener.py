"""Callbacks for a member whose partitions change."""

from __future__ import annotations

from ..offsets import TopicPartition


class RebalanceListener:
    """Is called by `poll` when partitions come and go. Inherit from it, and override the methods you need.

    Each method gets a list of (topic, partition) pairs.
    """

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when the consumer has got these partitions. You may `seek` here."""

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called before the consumer gives up these partitions. Commit here what was read of them."""

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions belong to other members already. They cannot be committed any more."""
