"""How long the steps of a process took, for metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import NamedTuple

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets. A step on a local disk takes milliseconds; beyond ten seconds, clients lose patience."""


class DurationCounts(NamedTuple):
    """Steps that were put, so far.

    Attributes:
        counts: steps per bucket; the last one has those above all bounds.
        sum_s: how long all of them took together.
        letters: how many letters they decided.
    """

    counts: list[int]
    sum_s: float
    letters: int


class StepDurations:
    """Count steps by their duration. The sequencer's thread adds, and other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s, self._letters = 0.0, 0
        self._step = -1

    def add(self, step: int, letters: int, took_ms: float) -> None:
        """Count one call of `step` of the sequencer. One that has put no step does not count."""
        with self._lock:
            if step == self._step:
                return
            self._step = step
            self._counts[bisect_left(BOUNDS_S, took_ms / 1000)] += 1
            self._sum_s += took_ms / 1000
            self._letters += letters

    def read(self) -> DurationCounts:
        """Return the counts so far."""
        with self._lock:
            return DurationCounts(list(self._counts), self._sum_s, self._letters)
