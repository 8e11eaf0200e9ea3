"""How far the tables, which SQL reads, are behind the decided steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lakemq.tables.storage.coordination.step_objects import StepsGone

from ...namespace.loading.load import read_watermark
from ...namespace.loading.step_reader import StepReader
from ...namespace.loading.waiting_steps import drop_last_renewals, find_projection_target, read_waiting_steps
from ...namespace.processes.clock import SystemClock
from ...protocol.errors import RequestTimedOut

if TYPE_CHECKING:
    from lakemq.tables.storage.delta.store import Store

_LOOK_S = 0.05

PATIENCE_S = 2.0
"""A sequencer projects every second (project.interval.ms). After this time without one, none is running."""


class Lag(NamedTuple):
    """The steps after `step`, which the tables do not hold yet. age_s: the age of the first of them."""

    step: int
    steps_behind: int
    age_s: float

    def __str__(self) -> str:
        steps = "1 step" if self.steps_behind == 1 else f"{self.steps_behind:,} steps"
        return f"as of step {self.step}, {steps} behind: the first of them was decided {self.age_s:,.1f} s ago"


def find_projection_lag(store: Store, step: int) -> Lag:
    """Compare a watermark's step with the last one that changed more than the lease."""
    try:
        waiting = StepReader(store, step, SystemClock().steady_ms).read()
    except StepsGone:  # the watermark was read more than a minute ago
        waiting = [newer for newer in read_waiting_steps(store) if newer.step > step]
    waiting = drop_last_renewals(waiting)
    if not waiting:
        return Lag(step, 0, 0.0)
    age_s = max(0.0, time.time() - waiting[0].decided_at_ms / 1000)
    return Lag(step, waiting[-1].step - step, age_s)


def wait_for_projection(store: Store, timeout_s: float, serve: Callable[[], object]) -> None:
    """Wait until the tables hold everything that is decided so far.

    If the tables do not move for a while, `serve` is called once: it starts a sequencer, which projects once it leads.

    Raises RequestTimedOut.
    """
    begun_s, target, serves = time.monotonic(), find_projection_target(store), False
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
