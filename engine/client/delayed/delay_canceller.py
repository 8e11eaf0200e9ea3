"""Cancelling delayed messages, by receipt or by a predicate, with the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...namespace.loading.damage import report_damage
from ...namespace.loading.load import read_watermark
from ...namespace.loading.waiting_steps import find_projection_target
from ...namespace.namespace import Namespace
from ...namespace.processes.clock import Clock
from ...namespace.store_errors import store_errors
from ...protocol.errors import RequestTimedOut
from ...protocol.values.delayed.delays import CancelDelays, CancelOutcome, DelaysJudged
from ..predicate import Predicate
from ..requests.requester import Requester
from ..rows.receipts import MessagePlace, format_receipt, place_columns
from .ended_ranges import read_ended_ranges
from .pending_rows import PLACE, SHOWN, read_pending_rows

MOST_ROWS = 100_000
"""Most rows of one request: the step that decides it takes about half a second."""

_ATTEMPTS = 20
_POLL_MS = 20


class DelayCanceller:
    """Cancels delayed messages for a connection."""

    def __init__(self, namespace: Namespace, requester: Requester, clock: Clock) -> None:
        self._ns, self._requester, self._clock = namespace, requester, clock

    def cancel(self, places: Sequence[MessagePlace]) -> list[CancelOutcome]:
        """Cancel messages, and return the outcome of each. Raises RequestTimedOut: some may be cancelled."""
        outcomes: list[CancelOutcome] = []
        for first in range(0, len(places), MOST_ROWS):
            judged = self._requester.ask(CancelDelays(*place_columns(places[first : first + MOST_ROWS])))
            assert isinstance(judged, DelaysJudged)
            outcomes += judged.outcomes
        return self.resolve_not_found(places, outcomes)

    def resolve_not_found(
        self, places: Sequence[MessagePlace], outcomes: Sequence[CancelOutcome]
    ) -> list[CancelOutcome]:
        """Replace NOT_FOUND by the outcome of rows whose range has ended as a whole."""
        missing = {p.range for p, outcome in zip(places, outcomes, strict=True) if outcome is CancelOutcome.NOT_FOUND}
        ended_ranges = read_ended_ranges(self._ns.store, self._clock, missing) if missing else {}
        return [
            ended_ranges[place.range].find_outcome(place.row)
            if outcome is CancelOutcome.NOT_FOUND and place.range in ended_ranges
            else outcome
            for place, outcome in zip(places, outcomes, strict=True)
        ]

    def cancel_where(self, topic: str | None, key: bytes | None, predicate: str | None, dry_run: bool) -> pa.Table:
        """Cancel the waiting messages that match, as of the call, and return them with their outcomes."""
        rows = self._find_waiting_rows(topic, key, None if predicate is None else Predicate(predicate, SHOWN))
        columns = (rows.column(name).to_pylist() for name in PLACE)
        places = [MessagePlace(*row) for row in zip(*columns, strict=True)]
        outcomes = [CancelOutcome.WAITING] * len(places) if dry_run else self.cancel(places)
        receipts = [format_receipt(self._requester.namespace_id, [place]) for place in places]
        result = rows.select(["topic", "partition", "key", "deliver_at"])
        result = result.append_column("receipt", pa.array(receipts, pa.string()))
        return result.append_column("outcome", pa.array([outcome.value for outcome in outcomes], pa.string()))

    def _find_waiting_rows(self, topic: str | None, key: bytes | None, predicate: Predicate | None) -> pa.Table:
        """Return the waiting rows that match, with columns of SHOWN and PLACE."""
        for attempt in range(_ATTEMPTS):
            with store_errors(), report_damage(self._ns.store):
                self._wait_for_tables()
                try:
                    unread = key is None and predicate is None
                    parts = [
                        _filter_rows(rows, key, predicate) for rows in read_pending_rows(self._ns.store, topic, unread)
                    ]
                except FileNotFoundError:  # merged, and removed meanwhile
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
            names = [*SHOWN, *(pa.field(name, pa.int64()) for name in PLACE)]
            return pa.concat_tables([pa.schema(names).empty_table(), *parts], promote_options="permissive")
        raise AssertionError("unreachable")

    def _wait_for_tables(self) -> None:
        """Wait until the tables hold all that is decided so far."""
        step = find_projection_target(self._ns.store)
        timeout_ms = self._ns.config.ms("request.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while (table_step := read_watermark(self._ns.store).step) < step:
            if self._clock.steady_ms() > deadline_ms:
                raise RequestTimedOut(
                    f"Nothing was cancelled: no sequencer brought the tables up to date within {timeout_ms} ms.",
                    found=f"step {table_step}",
                    expected=f"step {step}, by a sequencer that leads",
                )
            self._clock.sleep(_POLL_MS)


def _filter_rows(rows: pa.Table, key: bytes | None, predicate: Predicate | None) -> pa.Table:
    if key is not None:
        rows = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.binary())))
    return rows if predicate is None or not rows.num_rows else predicate.select_rows(rows)
