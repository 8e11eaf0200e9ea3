"""Standing by: who leads, and for how long the journal has not moved on this process's own steady clock."""

from __future__ import annotations

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

_PAYLOAD = ("rows",)
_IS_LEASE = pc.field("kind") == "leader_elected"


class Standby:
    """Follows the journal commit by commit, at the price of one object that is not there yet.

    state: of all that is decided, only the lease.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._still_since_ms = clock.steady_ms()
        self._follower: Follower | None = None
        self.state = State()

    @property
    def version(self) -> int | None:
        """The journal's last one that was seen."""
        return self._follower.version if self._follower else None

    def forget(self) -> None:
        """Start over: what was known may be wrong, and the journal counts as just moved."""
        self._follower = None

    def may_lead(self, name: str | None) -> bool:
        """Look; then whether `name` may try to take the lease. None: as one that has never had it."""
        moved = self._follow()
        now_ms = self._clock.steady_ms()
        if moved:
            self._still_since_ms = now_ms
        return leader.may_lead(self.state, name, now_ms - self._still_since_ms)

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
        """Fold what the journal has gained; whether it has moved, which it has when it must be loaded."""
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
        return self._follower.version != begun_at

    def _fold(self, rows: pa.Table) -> None:
        machine.replay(self.state, decode_steps(rows))
