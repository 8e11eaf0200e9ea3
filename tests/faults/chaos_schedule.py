"""A schedule of faults that follows from a seed: which process is stopped or killed, when, and for how long."""

import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

LEASE_MS = 2000
SEQUENCERS = ("sequencer-0", "sequencer-1")
PRODUCERS = ("producer-0", "producer-1", "producer-2")
MEMBERS = ("member-0", "member-1")
PIPELINE, TAIL = "pipeline", "tail"

Kind = Literal["stop", "kill", "replace"]
"""stop: SIGSTOP, and SIGCONT later. kill: SIGKILL, and another one later. replace: SIGSTOP, another one, SIGCONT."""


class Fault(NamedTuple):
    """A fault. at_ms: after the start of the run; for_ms: until the process goes on, or another one starts."""

    at_ms: int
    target: str
    kind: Kind
    for_ms: int


class Habit(NamedTuple):
    """How often faults happen to a target: the mean time between two of them, and the chances of each kind."""

    targets: tuple[str, ...]
    every_ms: int
    kinds: dict[Kind, int]


HABITS = (
    Habit(SEQUENCERS, 2500, {"stop": 3, "kill": 2}),
    Habit(PRODUCERS, 9000, {"stop": 1, "kill": 2}),
    Habit(MEMBERS, 6000, {"stop": 1, "kill": 1}),
    Habit((PIPELINE,), 4000, {"stop": 1, "kill": 2, "replace": 1}),
    Habit((TAIL,), 8000, {"stop": 2, "kill": 1}),
)
SHORTEST_MS, LONGEST_MS = 100, LEASE_MS * 3 // 2


def schedule(seed: int, lasts_ms: int) -> list[Fault]:
    """Return all faults of a run, in order. Faults of a target never overlap, and all are over at the end."""
    faults = [fault for habit in HABITS for target in habit.targets for fault in _faults(seed, habit, target, lasts_ms)]
    return sorted(faults)


def _faults(seed: int, habit: Habit, target: str, lasts_ms: int) -> Iterator[Fault]:
    chance, at_ms = random.Random(f"{seed}/{target}"), 0.0
    while True:
        at_ms += chance.expovariate(1 / habit.every_ms)
        # Short faults are as frequent as long ones: each order of magnitude does other harm
        for_ms = SHORTEST_MS * (LONGEST_MS / SHORTEST_MS) ** chance.random()
        (kind,) = chance.choices([*habit.kinds], [*habit.kinds.values()])
        if at_ms + for_ms > lasts_ms:
            return
        yield Fault(int(at_ms), target, kind, int(for_ms))
        at_ms += for_ms
