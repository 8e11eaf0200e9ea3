"""Migrations: numbered, gapless changes of the stored format. Each is a module here, `m<number>_<name>`.

Its docstring says what changes, its `apply(store)` does it, and does it again after it was interrupted; the last thing
it writes is its number, as the journal's schema version. The last number is `SCHEMA_VERSION`.

Making a namespace is applying them all. There is the baseline only: no older format was ever released, so that there
is nothing to mend and no command for it; a namespace that says it is older is refused (`OlderTable`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from ..storage.store import Store


@dataclass(frozen=True)
class Migration:
    """One change: from version `number` - 1 to version `number`."""

    number: int
    description: str
    apply: Callable[[Store], None]


def all_migrations() -> list[Migration]:
    """Every migration, in order of number."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [_migration(name) for name in names]


def _migration(name: str) -> Migration:
    module = import_module(f"{__name__}.{name}")
    description = (module.__doc__ or name).partition("\n")[0]
    return Migration(int(name[1:5]), description, module.apply)


def migrate(store: Store, version: int, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply all that come after `version` (0: there is nothing yet), in order; returns them."""
    known = all_migrations() if migrations is None else migrations
    todo = [one for one in known if one.number > version]
    for one in todo:
        one.apply(store)
    return todo
