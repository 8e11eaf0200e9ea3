"""Turn errors of the store into errors that users know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakemq.tables.storage.delta.datasets import DamagedFile
from lakemq.tables.storage.delta.store import NewerTable, NotATable
from lakemq.tables.storage.object_stores.objects import RootGone

from ..protocol.errors import NamespaceError, NewerFormat, StorageError, TableDamaged
from .storage_error import flatten_error, storage_error


def damaged_file_error(error: DamagedFile) -> TableDamaged:
    """Return the error that says what to do about a damaged file of a table."""
    return TableDamaged(str(error), expected="what LakeMQ wrote: restore the namespace from a backup")


def build_removal_error(root: str) -> NamespaceError:
    """Return the error of a call that finds no namespace any more."""
    return NamespaceError(
        f"The namespace {root} is gone. It was deleted, or its disk is not mounted.",
        expected="its disk, or a connection to a namespace that is there",
    )


@contextmanager
def store_errors(what: str = "A table or file cannot be read or written.") -> Iterator[None]:
    """Turn errors of the store in this block into errors that users know. what: the operation.

    Raises:
        StorageError, TableDamaged, NewerFormat: the store failed, or does not hold what it should.
        NamespaceError: the namespace is gone.
    """
    try:
        yield
    except RootGone as gone:
        raise build_removal_error(gone.filename) from gone
    except FileNotFoundError as gone:
        raise StorageError("A file that a table needs is gone: put it back.", found=str(gone)) from gone
    except DamagedFile as error:
        raise damaged_file_error(error) from error
    except NewerTable as error:
        raise NewerFormat(str(error)) from error
    except (OSError, NotATable) as error:
        raise storage_error(what, error, flatten_error(error)) from error
