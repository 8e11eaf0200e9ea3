"""The lease: one sequencer leads; the others stand by and take over when the journal has not moved for a lease."""

from __future__ import annotations

from ..values.journal import JournalEntry
from ..values.leader import LeaderElected
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules
from .timers import Timers


def decide_take_over(state: State, leader: str, lease_ms: int) -> JournalEntry:
    """`leader` leads under the next epoch. Legal at any time: the journal's compare-and-append is the fence."""
    return JournalEntry(LeaderElected(leader, state.leader_epoch + 1, lease_ms))


def decide_renew(state: State) -> JournalEntry:
    """The leader is alive though it has nothing to decide."""
    return JournalEntry(LeaderElected(state.leader, state.leader_epoch, state.lease_ms))


def decide_resign(state: State) -> JournalEntry:
    """Nobody leads: a standby need not wait for the lease to run out."""
    return JournalEntry(LeaderElected("", state.leader_epoch, state.lease_ms))


def may_lead(state: State, leader: str | None, journal_still_for_ms: int) -> bool:
    """Whether `leader` may take the lease, the journal not having moved for that long on its own monotonic clock.

    None: one that has never had it.
    """
    return state.leader in ("", leader) or journal_still_for_ms > state.lease_ms


def evolve_elected(state: State, record: LeaderElected, segments: Segments) -> None:
    state.leader, state.leader_epoch, state.lease_ms = record.leader, record.epoch, record.lease_ms


DECIDE: Rules = {}
EVOLVE: Folds = {LeaderElected: evolve_elected}
TIMERS: Timers = ()
