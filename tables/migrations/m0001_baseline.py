"""The tables as they were first released: all that `tables.specs.registry` lists, the journal last."""

from __future__ import annotations

from ..specs.registry import TABLES
from ..storage.store import Store


def apply(store: Store) -> None:
    """Every table is there; what was there before stays as it is."""
    for spec in TABLES:
        store.create(spec)
