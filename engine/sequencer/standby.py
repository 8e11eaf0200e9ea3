"""Stand by: follow who leads, and for how long no step came, by this process's own steady clock.

A lease is not a time in a step: clocks of machines differ. A standby waits until it has itself seen no step for a whole
lease. The leader renews the lease after a third of it. Even a wrong guess does no harm: putting the step of the
take-over decides who leads (see `step_log`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store

from ..namespace.loading.step_reader import StepReader, follow_from_watermark
from ..namespace.processes.clock import Clock
from ..protocol.rules import leader
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")


class Standby:
    """Follows the heads of steps. If there is no new step, this costs one request, for an object that is missing.

    Attributes:
        state: only the lease; everything else is left out.
        has_seen_life: whether a step came while this process looked, so that its leader is alive.
    """

    def __init__(self, store: Store, clock: Clock, is_dead: Callable[[str], bool] = lambda leader: False) -> None:
        """is_dead: returns whether a leader's process has certainly ended, so that its lease need not run out."""
        self._store, self._clock, self._is_dead = store, clock, is_dead
        self.has_seen_life = False
        self._still_since_ms = clock.steady_ms()
        self._reader: StepReader | None = None
        self.state = State()

    @property
    def step(self) -> int | None:
        """The last step that was seen."""
        return self._reader.step if self._reader else None

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs if no step comes."""
        return self._still_since_ms + self.state.lease_ms - self._clock.steady_ms()

    def forget(self) -> None:
        """Start over: what was seen may be wrong. A step counts as just seen."""
        self._reader = None

    def may_lead(self, name: str | None) -> bool:
        """Follow the steps, then return whether `name` may try to take the lease.

        None: as a process that never had it.
        """
        moved = self._follow()
        now_ms = self._clock.steady_ms()
        if moved:
            self._still_since_ms = now_ms
        if leader.may_lead(self.state, name, now_ms - self._still_since_ms):
            return True
        if self._is_dead(self.state.leader):
            log.info("%s has ended without handing over its lease, which is not waited for", self.state.leader)
            return True
        return False

    def _load(self) -> StepReader:
        watermark, reader = follow_from_watermark(self._store, self._clock.steady_ms)
        self.state = State(
            step=watermark.step,
            now_ms=watermark.decided_at_ms,
            leader=watermark.leader,
            leader_epoch=watermark.leader_epoch,
            lease_ms=watermark.lease_ms,
        )
        self._read_heads(reader)
        return reader

    def _follow(self) -> bool:
        """Read the new heads. Return whether there were any, or everything had to be loaded."""
        if self._reader is None:
            self._reader = self._load()
            return True
        try:
            moved = self._read_heads(self._reader)
        except StepsGone:
            self._reader = self._load()
            return True
        self.has_seen_life |= moved
        return moved

    def _read_heads(self, reader: StepReader) -> bool:
        heads = reader.read_heads()
        if heads:
            last, state = heads[-1], self.state
            state.step, state.now_ms = last.step, last.decided_at_ms
            state.leader, state.leader_epoch, state.lease_ms = last.leader, last.leader_epoch, last.lease_ms
        return bool(heads)
