"""Rows that could not become messages are in the table `rejected_rows`, which was `dead_letters`.

A new namespace has the table under its name from the start. A namespace of version 3 was never released. It lacks the
table, and opening it is refused with a sentence that says so.
"""

from __future__ import annotations

from ..specs.rejected_rows import REJECTED_ROWS
from ..storage.delta.store import Store


def apply(store: Store) -> None:
    """Check that the table exists. Raises NotATable."""
    store.open(REJECTED_ROWS)
