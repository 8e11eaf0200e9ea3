"""Stand by: follow who leads, and for how long the journal has not moved, by this process's own steady clock.

A lease is not a time in the journal: clocks of machines differ. A standby waits until it has itself seen the journal
unchanged for a whole lease. The leader renews the lease after a third of it. Even a wrong guess does no harm: the
commit of the take-over decides who leads (see `journal`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.follower import Follower, LogGone
from lakemq.tables.storage.store import Store

from ..namespace.clock import Clock
from ..namespace.load import read_watermark
from ..protocol import machine
from ..protocol.codec.journal import decode_steps
from ..protocol.rules import leader
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

_PAYLOAD = ("rows",)
_IS_LEASE = pc.field("kind") == "leader_elected"


class Standby:
    """Follows the journal commit by commit. A look without news costs one request, for a missing log entry.

    Attributes:
        state: only the lease; everything else is left out.
        has_seen_life: whether the journal has moved while this process looked, so that its leader is alive.
    """

    def __init__(self, store: Store, clock: Clock, is_dead: Callable[[str], bool] = lambda leader: False) -> None:
        """is_dead: returns whether a leader's process has certainly ended. Its lease need not be waited out."""
        self._store, self._clock, self._is_dead = store, clock, is_dead
        self.has_seen_life = False
        self._still_since_ms = clock.steady_ms()
        self._follower: Follower | None = None
        self.state = State()

    @property
    def version(self) -> int | None:
        """The last version of the journal that was seen."""
        return self._follower.version if self._follower else None

    def forget(self) -> None:
        """Start over: what was seen may be wrong. The journal counts as just moved."""
        self._follower = None

    def may_lead(self, name: str | None) -> bool:
        """Follow the journal, then return whether `name` may try to take the lease.

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

    def _load(self) -> Follower:
        watermark = read_watermark(self._store)
        self.state = State(
            step=watermark.step,
            leader=watermark.leader,
            leader_epoch=watermark.leader_epoch,
            lease_ms=watermark.lease_ms,
        )
        journal = self._store.open(JOURNAL)
        columns = [name for name in JOURNAL.stored_schema.names if name not in _PAYLOAD]
        self._fold(journal.read(columns, where=_IS_LEASE, step=(watermark.step + 1, None)))
        return self._store.follow(journal, without=_PAYLOAD)

    def _follow(self) -> bool:
        """Fold the new commits of the journal. Return whether it has moved, or had to be loaded."""
        if self._follower is None:
            self._follower = self._load()
            return True
        begun_at = self._follower.version
        try:
            while (rows := self._follower.next()) is not None:
                self._fold(rows.filter(_IS_LEASE))
        except LogGone:
            self._follower = self._load()
            return True
        moved = self._follower.version != begun_at
        self.has_seen_life |= moved
        return moved

    def _fold(self, rows: pa.Table) -> None:
        machine.follow(self.state, decode_steps(rows))
