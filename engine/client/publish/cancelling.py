"""Cancelling many delayed messages: those of receipts, or those that something is true of; and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...namespace.clock import Clock
from ...namespace.load import damage_told, read_watermark
from ...namespace.namespace import Namespace
from ...namespace.store_errors import store_errors
from ...protocol.errors import RequestTimedOut
from ...protocol.values.delays import CancelDelays, CancelOutcome, DelaysJudged
from ...protocol.values.state import State
from ..predicate import Predicate
from ..requester import Requester
from .fates import fates_of
from .pending_rows import PLACE, SHOWN, pending_rows
from .receipts import Place, columns_of, receipt_of

Look: TypeAlias = Callable[[Callable[[State], Any]], Any]
"""What a function makes of topics and partitions as of the newest step."""

MOST_ROWS = 100_000
"""Of one request: the step that decides it takes about half a second."""

_ATTEMPTS = 20
_POLL_MS = 20


class Cancelling:
    """For a connection."""

    def __init__(self, namespace: Namespace, requester: Requester, look: Look, clock: Clock) -> None:
        self._ns, self._requester, self._look, self._clock = namespace, requester, look, clock

    def cancel(self, places: Sequence[Place]) -> list[CancelOutcome]:
        """What became of each, as definite as it can be told. Raises RequestTimedOut: some may be cancelled."""
        outcomes: list[CancelOutcome] = []
        for first in range(0, len(places), MOST_ROWS):
            judged = self._requester.ask(CancelDelays(*columns_of(places[first : first + MOST_ROWS])))
            assert isinstance(judged, DelaysJudged)
            outcomes += judged.outcomes
        return self.definite(places, outcomes)

    def definite(self, places: Sequence[Place], outcomes: Sequence[CancelOutcome]) -> list[CancelOutcome]:
        """The same, with what became of rows whose range has ended as a whole."""
        gone = {p.range for p, outcome in zip(places, outcomes, strict=True) if outcome is CancelOutcome.NOT_FOUND}
        fates = fates_of(self._ns.store, self._clock, gone) if gone else {}
        return [
            fates[place.range].outcome_of(place.row)
            if outcome is CancelOutcome.NOT_FOUND and place.range in fates
            else outcome
            for place, outcome in zip(places, outcomes, strict=True)
        ]

    def cancel_where(self, topic: str | None, key: bytes | None, predicate: str | None, dry_run: bool) -> pa.Table:
        """Of all that waited when it was called: those for which this holds, and what became of them."""
        found = self._found(topic, key, None if predicate is None else Predicate(predicate, SHOWN))
        columns = (found.column(name).to_pylist() for name in PLACE)
        places = [Place(*row) for row in zip(*columns, strict=True)]
        outcomes = [CancelOutcome.WAITING] * len(places) if dry_run else self.cancel(places)
        receipts = [receipt_of(self._requester.namespace_id, [place]) for place in places]
        told = found.select(["topic", "partition", "key", "deliver_at"])
        told = told.append_column("receipt", pa.array(receipts, pa.string()))
        return told.append_column("outcome", pa.array([one.value for one in outcomes], pa.string()))

    def _found(self, topic: str | None, key: bytes | None, predicate: Predicate | None) -> pa.Table:
        """Columns of SHOWN and PLACE."""
        step = self._look(lambda state: state.step)
        for attempt in range(_ATTEMPTS):
            with store_errors(), damage_told(self._ns.store):
                self._wait_for(step)
                try:
                    unread = key is None and predicate is None
                    parts = [_those(rows, key, predicate) for rows in pending_rows(self._ns.store, topic, unread)]
                except FileNotFoundError:  # merged, and removed meanwhile
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
            names = [*SHOWN, *(pa.field(name, pa.int64()) for name in PLACE)]
            return pa.concat_tables([pa.schema(names).empty_table(), *parts], promote_options="permissive")
        raise AssertionError("unreachable")

    def _wait_for(self, step: int) -> None:
        """Until the tables hold this step."""
        timeout_ms = self._ns.config.ms("request.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while (found := read_watermark(self._ns.store).step) < step:
            if self._clock.steady_ms() > deadline_ms:
                raise RequestTimedOut(
                    f"Nothing was cancelled: the tables were not brought up to date in {timeout_ms} ms.",
                    found=f"step {found}",
                    expected=f"step {step}, by a sequencer that leads",
                )
            self._clock.sleep(_POLL_MS)


def _those(rows: pa.Table, key: bytes | None, predicate: Predicate | None) -> pa.Table:
    if key is not None:
        rows = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.binary())))
    return rows if predicate is None or not rows.num_rows else predicate.chosen(rows)
