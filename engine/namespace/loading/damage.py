"""Report a table that holds something that LakeMQ did not write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa
from deltalake.exceptions import DeltaError
from msgspec import MsgspecError

from lakemq.tables.storage.delta.datasets import DamagedFile
from lakemq.tables.storage.delta.foreign import find_foreign_commits
from lakemq.tables.storage.delta.store import Store

from ...protocol.errors import TableDamaged

_SHOWN = 3


@contextmanager
def report_damage(store: Store) -> Iterator[None]:
    """Raise TableDamaged if decoding fails in this block, because a table holds something that LakeMQ did not write.

    Only errors that decoding raises count. A TypeError or AttributeError is a bug of ours, and passes unchanged.
    """
    try:
        yield
    except (LookupError, ValueError, OverflowError, MsgspecError, pa.ArrowTypeError) as error:
        found = str(error) if isinstance(error, DamagedFile) else f"{type(error).__name__}: {error}"
        raise make_damage_error(store, found) from error


def make_damage_error(store: Store, what: str) -> TableDamaged:
    """Return the error. what: what was found."""
    return TableDamaged(
        f"{what}. Commits that are not LakeMQ's: {_describe_foreign_commits(store)}.",
        expected="what LakeMQ wrote: restore the namespace from a backup",
    )


def _describe_foreign_commits(store: Store) -> str:
    try:
        foreign = [str(commit) for commit in islice(find_foreign_commits(store), _SHOWN)]
    except (OSError, DeltaError):
        return "unknown, because a log cannot be read"
    return "; ".join(foreign) or "none that the logs still have"
