"""Migrations: numbered, gapless changes of the stored format. Each is a module here, `m<number>_<name>`.

The module's docstring says what changes. Its `apply(store)` makes the change, and can run again after an interruption.
The last thing it writes is its number, as the journal's schema version. The last number is `SCHEMA_VERSION`.

Creating a namespace applies all migrations. No older format was ever released, so no command applies them to an
existing namespace; a namespace of an older version is refused (`OlderTable`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from ..storage.delta.store import Store


@dataclass(frozen=True)
class Migration:
    """A change from version `number` - 1 to version `number`."""

    number: int
    description: str
    apply: Callable[[Store], None]


def all_migrations() -> list[Migration]:
    """Return all migrations in order of number."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [_migration(name) for name in names]


def _migration(name: str) -> Migration:
    module = import_module(f"{__name__}.{name}")
    description = (module.__doc__ or name).partition("\n")[0]
    return Migration(int(name[1:5]), description, module.apply)


def migrate(store: Store, version: int, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply all migrations after `version` (0: a new namespace) in order, and return them."""
    available = all_migrations() if migrations is None else migrations
    todo = [migration for migration in available if migration.number > version]
    for migration in todo:
        migration.apply(store)
    return todo
