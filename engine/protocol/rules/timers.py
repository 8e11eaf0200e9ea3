"""What time alone brings about: each subject lists its timers, and the machine asks them once a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..values.deciding import Limits
from ..values.journal import JournalEntry
from ..values.state import State
from .patience import Patience


@dataclass(frozen=True)
class Time:
    """What a timer may compare. now_ms: for times that are stored; steady_ms: for what the leader itself saw pass."""

    now_ms: int
    steady_ms: int = 0
    limits: Limits = field(default_factory=Limits)
    patience: Patience = field(default_factory=Patience)

    def is_over(self, since_ms: int, ms: int) -> bool:
        return self.now_ms - since_ms > ms

    def waited_ms(self, key: Hashable) -> int:
        """Of what a timer watches."""
        return self.patience.waited_ms(key, self.steady_ms)


class Timer(NamedTuple):
    """What comes by itself. waiting: keys of those that wait; is_due: whether the time of one has come, False for one
    that is gone; decide: what happens then.

    watched: the leader's patience counts, and a key names one wait for ever. forgets: who may have letters that were
    not looked at, so it has to wait for them; and its look at everybody is not for each step.
    """

    waiting: Callable[[State], Iterable[Any]]
    is_due: Callable[[State, Any, Time], bool]
    decide: Callable[[State, Any], list[JournalEntry]]
    watched: bool = False
    forgets: bool = False


Timers = tuple[Timer, ...]
"""A subject's `TIMERS`."""
