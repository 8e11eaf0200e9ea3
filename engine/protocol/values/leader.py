"""The lease: who leads."""

from __future__ import annotations

from .base import Record


class LeaderElected(Record, frozen=True, tag="leader_elected"):
    """A sequencer took the lease, or renewed it; an empty leader gave it back."""

    leader: str
    epoch: int
    lease_ms: int

    @property
    def subject(self) -> str:
        return self.leader


RECORDS = (LeaderElected,)
