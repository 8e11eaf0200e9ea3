"""How far the tables, which SQL reads, are behind the journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lakemq.tables.specs.journal import JOURNAL

from ...namespace.load import read_watermark
from ...protocol.errors import RequestTimedOut

if TYPE_CHECKING:
    from lakemq.tables.storage.store import Store, TableHandle

_LOOK_S = 0.05

PATIENCE_S = 2.0
"""A sequencer projects every second (project.interval.ms). After this time without one, none is running."""


class Lag(NamedTuple):
    """The journal's steps after `step`, which the tables do not hold yet. age_s: the age of the first of them."""

    step: int
    steps_behind: int
    age_s: float

    def __str__(self) -> str:
        steps = "1 step" if self.steps_behind == 1 else f"{self.steps_behind:,} steps"
        return f"as of step {self.step}, {steps} behind: the first of them was decided {self.age_s:,.1f} s ago"


def find_projection_lag(store: Store, step: int) -> Lag:
    """Compare a watermark's step with the journal's last one."""
    journal = store.open(JOURNAL)
    behind = max(0, _last_step(journal) - step)
    decided = journal.read(["decided_at_ms"], step=(step + 1, step + 1)).column(0).to_pylist() if behind else []
    age_s = max(0.0, time.time() - decided[0] / 1000) if decided else 0.0
    return Lag(step, behind, age_s)


def _last_step(journal: TableHandle) -> int:
    return max((file.statistics["max.step"] or 0 for file in journal.files()), default=0)


def wait_for_projection(store: Store, timeout_s: float, serve: Callable[[], object]) -> None:
    """Wait until the tables hold everything that is decided so far.

    If the tables do not move for a while, `serve` is called once: it starts a sequencer, which projects once it leads.

    Raises RequestTimedOut.
    """
    begun_s, target, serves = time.monotonic(), _last_step(store.open(JOURNAL)), False
    while (step := read_watermark(store).step) < target:
        waited_s = time.monotonic() - begun_s
        if waited_s >= timeout_s:
            raise RequestTimedOut(
                f"The tables were not projected within {timeout_s:g} s. Try again, or start `lakemq serve`.",
                found=f"step {step}",
                expected=f"step {target}",
            )
        if waited_s >= min(PATIENCE_S, timeout_s / 4) and not serves:
            serve()
            serves = True
        time.sleep(min(_LOOK_S, timeout_s - waited_s))
