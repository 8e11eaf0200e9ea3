"""Timers: what time alone brings about. Each subject lists its timers, and the machine checks them once per step.

And the types of the other registries that each subject fills.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..values.base import Record
from ..values.decision import Decision, DecisionInputs, Limits
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State

# Observed waits: how long the leader has itself seen something wait. No clock of another process counts.
#
# After a change of leader everything waits its full time again, at most; nothing ever ends early.


class ObservedWaits:
    """The waits that a leader has observed during its term. Times are those of its monotonic clock."""

    def __init__(self) -> None:
        self._since_ms: dict[Hashable, int] = {}

    def observe(self, waiting: Iterable[Hashable], steady_ms: int) -> None:
        """Note what waits now and forget what no longer waits. A key names one wait and is never used again."""
        self._since_ms = {key: self._since_ms.get(key, steady_ms) for key in waiting}

    def waited_ms(self, key: Hashable, steady_ms: int) -> int:
        """Return how long the wait was observed; 0 if it was not observed yet."""
        return steady_ms - self._since_ms.get(key, steady_ms)


@dataclass(frozen=True)
class Time:
    """The times that a timer may compare.

    now_ms: the time of the step, for times that are stored. steady_ms: the leader's monotonic clock, for waits that the
    leader has itself observed.
    """

    now_ms: int
    steady_ms: int = 0
    limits: Limits = field(default_factory=Limits)
    waits: ObservedWaits = field(default_factory=ObservedWaits)

    def is_over(self, since_ms: int, ms: int) -> bool:
        return self.now_ms - since_ms > ms

    def waited_ms(self, key: Hashable) -> int:
        """Return how long the leader has observed this wait. 0 if it has not seen it yet."""
        return self.waits.waited_ms(key, self.steady_ms)


class Timer(NamedTuple):
    """An event that time brings about.

    list_keys: returns a key for each thing that waits. is_due: whether its time has come; False if the thing no longer
    exists. decide: returns the entries of the journal. watched: the time counts from when the leader first saw the
    wait, and a key names one wait for good. is_expiry: the timer waits until all letters are read, because a client or
    producer that seems silent may have sent one. It also walks through everything, so it does not run in each step.
    """

    list_keys: Callable[[State], Iterable[Any]]
    is_due: Callable[[State, Any, Time], bool]
    decide: Callable[[State, Any], list[JournalEntry]]
    watched: bool = False
    is_expiry: bool = False


Timers = tuple[Timer, ...]
"""A subject's `TIMERS`."""


# The types of the other registries that each subject fills: `DECIDE` and `EVOLVE`.


Rules = Mapping[type[Any], Callable[[State, Any, DecisionInputs], Decision]]
"""Maps a kind of request to its rule. A rule only reads the state, and raises a refusal."""

Fold = Callable[[State, Any, Segments], None]

Folds = Mapping[type[Record], Fold]
"""Maps a kind of record to the function that applies it to the state. It never fails: the record is already decided."""
