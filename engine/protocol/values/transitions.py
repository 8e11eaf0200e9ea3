"""State machines as tables: which event leads from which states to which state. The docs draw them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

log = logging.getLogger("lakemq")

_logged: set[str] = set()


def log_defect(defect: str) -> None:
    """Log a defect once per process: readers fold the same records again and again."""
    if defect not in _logged:
        _logged.add(defect)
        log.error("%s Please report this defect of LakeMQ, with the journal rows of this step.", defect)


@dataclass(frozen=True)
class Transitions(Generic[S, E]):
    """The states of one kind of thing, and the events that change them.

    subject: its name, for people. starts: the states in which it may begin. table: event -> the states in which the
    event may come, and the state that follows. An event leads to one state, so that a move has a result even if the
    table does not allow it.
    """

    subject: str
    starts: tuple[S, ...]
    table: Mapping[E, tuple[Set[S], S]]

    report: ClassVar[Callable[[str], None]] = staticmethod(log_defect)
    """Is called with a move that the table does not allow. Tests raise an error instead. Elsewhere folding must not
    fail, because a record is already decided.
    """

    def move(self, before: S, event: E) -> S:
        """Return the state that follows. A move that the table does not allow is reported, and made all the same."""
        allowed, after = self.table[event]
        if before not in allowed:
            Transitions.report(
                f"{self.subject} cannot go from {before.value} to {after.value} by the event '{event.value}'. "
                "The move was made all the same."
            )
        return after

    def allows(self, before: S, after: S) -> bool:
        """Return whether an event leads from one state to the other."""
        return any(before in allowed and after is target for allowed, target in self.table.values())

    def find_events_to(self) -> dict[S, E]:
        """Return the event that leads to each state, for tables in which no two events lead to the same state."""
        return {after: event for event, (_, after) in self.table.items()}
