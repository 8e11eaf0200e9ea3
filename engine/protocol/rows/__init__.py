"""Rows: one module per subject turns decisions and state into rows of its tables, and such rows into state.

Both directions stand side by side, so that they do not drift apart. Each module lists its tables in PROJECT and
RESTORE, which `projection` puts together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa

from ..values.base import Record
from ..values.journal import Step, StepBatch, batch_steps
from ..values.state import State

K = TypeVar("K", bound=Any)
R = TypeVar("R", bound=Record)

Project = Mapping[str, Callable[[State, StepBatch], pa.Table]]
"""Table -> function that returns the rows that steps add. Its state is the fold up to the last step."""

Restore = Mapping[str, Callable[[State, pa.Table], None]]
"""Table -> function that restores state from its rows, the newest of each key that still exists."""


def list_changed(changes: Mapping[K, int], steps: StepBatch) -> list[K]:
    """Return the keys that these steps have changed, sorted. changes: a field of `Changes`."""
    if not steps:
        return []
    first = steps[0].step
    return sorted(key for key, step in changes.items() if step >= first)


def map_change_times(changes: Mapping[K, int], steps: StepBatch) -> dict[K, int]:
    """Return the keys that these steps have changed, sorted, with the time of the last change."""
    times_ms = {step.step: step.decided_at_ms for step in steps}
    return {key: times_ms[changes[key]] for key in list_changed(changes, steps)}


def find_records(steps: Sequence[Step], kind: type[R]) -> list[tuple[Step, R]]:
    """Return the records of this kind, in order, each with its step."""
    return [(step, cast(R, entry.record)) for step, _, entry in batch_steps(steps).find_entries(kind)]
