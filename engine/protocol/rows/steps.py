"""Some steps, as those see them who make rows of tables of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from ..values.base import Record
from ..values.journal import Step
from ..values.state import State

Steps = Sequence[Step]

Project = Mapping[str, Callable[[State, Steps], pa.Table]]
"""Table -> the rows that steps add to it; the state is the fold up to the last of them."""

Restore = Mapping[str, Callable[[State, pa.Table], None]]
"""Table -> what its rows, the newest of each key that is still there, tell of the state."""


def records(steps: Steps) -> Iterator[tuple[Step, Record]]:
    return ((step, one.record) for step in steps for one in step.entries)
