"""The tables as they were first released: all that `tables.specs.registry` lists, the journal last."""

from __future__ import annotations

from ..specs.registry import TABLES
from ..storage.delta.store import Store


def apply(store: Store) -> None:
    """Create all tables; existing ones stay unchanged."""
    for spec in TABLES:
        store.create(spec)
