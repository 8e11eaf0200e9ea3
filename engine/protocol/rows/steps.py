"""Types for modules that turn steps into rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from ..values.base import Record
from ..values.journal import Step
from ..values.state import State

Steps = Sequence[Step]

Project = Mapping[str, Callable[[State, Steps], pa.Table]]
"""Table -> function that returns the rows that steps add. Its state is the fold up to the last step."""

Restore = Mapping[str, Callable[[State, pa.Table], None]]
"""Table -> function that restores state from its rows, the newest of each key that still exists."""


def iterate_records(steps: Steps) -> Iterator[tuple[Step, Record]]:
    return ((step, entry.record) for step in steps for entry in step.entries)
