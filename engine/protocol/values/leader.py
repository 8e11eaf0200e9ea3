"""The lease of the leader."""

from __future__ import annotations

from .base import Record


class LeaderElected(Record, frozen=True, tag="leader_elected"):
    """A sequencer took or renewed the lease. An empty leader means that the lease was given back."""

    leader: str
    epoch: int
    lease_ms: int

    @property
    def subject(self) -> str:
        return self.leader


RECORDS = (LeaderElected,)
