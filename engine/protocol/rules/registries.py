"""What each subject registers: its rules in `DECIDE`, its folds in `EVOLVE`; what is in `TIMERS` is of `timers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..values.base import Record
from ..values.deciding import Decision, Given
from ..values.segments import Segments
from ..values.state import State

Rules = Mapping[type[Any], Callable[[State, Any, Given], Decision]]
"""Kind of request -> rule. It reads the state only, and raises the refusal."""

Fold = Callable[[State, Any, Segments], None]

Folds = Mapping[type[Record], Fold]
"""Kind of record -> fold. Total: what was decided is never refused here."""
