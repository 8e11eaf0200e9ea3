"""Tables of the allowed transitions of a state machine, one table beside each enum of states. The docs draw them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

S = TypeVar("S", bound=Enum)


@dataclass(frozen=True)
class Transitions(Generic[S]):
    """The allowed transitions of one kind of thing.

    subject: its name, for people. table: state -> the states that may follow. Every state has an entry.
    """

    subject: str
    table: Mapping[S, Set[S]]

    checked: ClassVar[bool] = False
    """Set in tests. Elsewhere folding must not fail, because a record is already decided."""

    def check(self, before: S, after: S) -> None:
        """Raise AssertionError for a transition that is not allowed, where transitions are checked."""
        if self.checked and after not in self.table[before]:
            raise AssertionError(f"{self.subject} cannot go from {before.value} to {after.value}")
