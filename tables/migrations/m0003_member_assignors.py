"""A column for the assignors that a member supports.

A new namespace has it from the start. A namespace of version 2 was never released. It lacks the column, and opening it
is refused with a sentence that says so.
"""

from __future__ import annotations

from ..specs.groups import MEMBERS
from ..storage.delta.store import Store


def apply(store: Store) -> None:
    """Check that the members' table has the column. Raises NotATable."""
    store.open(MEMBERS)
