"""Which states of a thing may follow which: a table per kind of thing, beside its states. The docs draw them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

S = TypeVar("S", bound=Enum)


@dataclass(frozen=True)
class Transitions(Generic[S]):
    """what: the thing, for people; table: state -> those that may follow. All states are there."""

    what: str
    table: Mapping[S, Set[S]]

    checked: ClassVar[bool] = False
    """Set where tests run. Elsewhere folding stays total: what was decided is never refused."""

    def check(self, before: S, after: S) -> None:
        """Raises AssertionError where transitions are checked and this is none of them."""
        if self.checked and after not in self.table[before]:
            raise AssertionError(f"{self.what} cannot go from {before.value} to {after.value}")
