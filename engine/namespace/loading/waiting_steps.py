"""Read the steps that the tables do not hold yet."""

from __future__ import annotations

from contextlib import suppress

from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store

from ...protocol.values.journal import Step, is_renewal
from ..processes.clock import SystemClock
from .step_reader import follow_from_watermark


def find_projection_target(store: Store) -> int:
    """Return the step that the tables must reach to hold all that is decided so far; 0 if they hold it."""
    steps = read_waiting_steps(store)
    return steps[-1].step if steps else 0


def read_waiting_steps(store: Store) -> list[Step]:
    """Return all steps that the tables do not hold yet, up to the last one that does more than renew the lease.

    A leader projects renewals late, so nothing that waits for the tables may wait for these.
    """
    return drop_last_renewals(read_steps_after_watermark(store))


def read_steps_after_watermark(store: Store) -> list[Step]:
    """Return all steps after the newest watermark, also those that only renew the lease."""
    while True:
        _, reader = follow_from_watermark(store, SystemClock().steady_ms)
        with suppress(StepsGone):
            return reader.read()


def drop_last_renewals(steps: list[Step]) -> list[Step]:
    """Return the steps up to the last one that does more than renew the lease."""
    count = len(steps)
    while count and is_renewal(steps[count - 1]):
        count -= 1
    return steps[:count]
