"""The lease: one sequencer leads. A standby takes over when no step came for the length of a lease."""

from __future__ import annotations

from ..values.journal import JournalEntry
from ..values.leader import LeaderElected
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules
from .timers import Timers


def decide_take_over(state: State, leader: str, lease_ms: int) -> JournalEntry:
    """Let `leader` lead under the next epoch.

    This is legal at any time. The fence is the step log: a step is put only if its number is free, so of two sequencers
    that believe they lead one fails to put it.
    """
    return JournalEntry(LeaderElected(leader, state.leader_epoch + 1, lease_ms))


def decide_renew(state: State) -> JournalEntry:
    """Show that the leader is alive although it has nothing to decide."""
    return JournalEntry(LeaderElected(state.leader, state.leader_epoch, state.lease_ms))


def decide_resign(state: State) -> JournalEntry:
    """Give the lease back, so that a standby need not wait until it runs out."""
    return JournalEntry(LeaderElected("", state.leader_epoch, state.lease_ms))


def may_lead(state: State, leader: str | None, no_step_for_ms: int) -> bool:
    """Return whether `leader` may take the lease.

    leader: None for a process that has never led. no_step_for_ms: how long no step came, by the
    caller's own monotonic clock.
    """
    return state.leader in ("", leader) or no_step_for_ms > state.lease_ms


def set_leader(state: State, record: LeaderElected, segments: Segments) -> None:
    state.leader, state.leader_epoch, state.lease_ms = record.leader, record.epoch, record.lease_ms


DECIDE: Rules = {}
EVOLVE: Folds = {LeaderElected: set_leader}
TIMERS: Timers = ()
