"""The table `topics` holds the versions of each topic's schema.

A new namespace has the column from the start. A namespace of version 5 was never released. It lacks the column, and
opening it is refused with a sentence that says so.
"""

from __future__ import annotations

from ..specs.topics import TOPICS
from ..storage.delta.store import Store


def apply(store: Store) -> None:
    """Check that the table has the columns of its spec. Raises NotATable."""
    store.open(TOPICS)
