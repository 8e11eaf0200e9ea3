"""Figures of benchmarks beside their targets. Ratios come from one run, side by side."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A measured number. `sense`: whether it must be at least or at most the target."""

    name: str
    value: float
    unit: str
    target: float
    sense: Literal[">=", "<="]
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.value >= self.target if self.sense == ">=" else self.value <= self.target

    def as_row(self) -> dict[str, object]:
        return {**asdict(self), "reached": self.reached}


def seconds(action: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def measure_in_turn(actions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return the seconds of each action in each round. Actions take turns, so that all see the same drift of the
    machine.
    """
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for durations_s, action in zip(times, actions, strict=True):
            durations_s.append(seconds(action))
    return times


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


median = statistics.median
