"""Columns for the process of a member, for what a queue waits for, for moves of partitions and for delays.

Tables are created with the columns of their specs, so a new namespace has them from the start. A namespace of version 1
was never released. It lacks the columns, and opening it is refused with a sentence that says so.
"""

from __future__ import annotations

from ..specs.registry import TABLES
from ..storage.delta.store import Store


def apply(store: Store) -> None:
    """Check that every table has the columns of its spec. Raises NotATable."""
    for spec in TABLES:
        store.open(spec)
