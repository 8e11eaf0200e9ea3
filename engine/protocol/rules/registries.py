"""The types of the registries that each subject fills: `DECIDE` and `EVOLVE`. `TIMERS` is described in `timers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..values.base import Record
from ..values.decision import Decision, DecisionInputs
from ..values.segments import Segments
from ..values.state import State

Rules = Mapping[type[Any], Callable[[State, Any, DecisionInputs], Decision]]
"""Maps a kind of request to its rule. A rule only reads the state, and raises a refusal."""

Fold = Callable[[State, Any, Segments], None]

Folds = Mapping[type[Record], Fold]
"""Maps a kind of record to the function that applies it to the state. It never fails: the record is already decided."""
