"""A step is one object below `steps`; `journal` is written from the steps, like every other table.

A new namespace gets step 0 when it is created, before its tables. A namespace of version 4 was never released. It has
its steps only in `journal`, and opening it is refused with a sentence that says so.
"""

from __future__ import annotations

from ..storage.coordination.step_objects import step_name
from ..storage.delta.store import NotATable, Store


def apply(store: Store) -> None:
    """Check that step 0 exists. Raises NotATable."""
    if store.files.identity(step_name(0)) is None:
        raise NotATable(f"{step_name(0)} is missing")
