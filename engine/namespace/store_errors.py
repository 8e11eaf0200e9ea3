"""Turn errors of the store into errors that users know, and notice a namespace that is gone or damaged."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa
from deltalake.exceptions import DeltaError
from msgspec import MsgspecError

from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.step_objects import StepsGone, list_steps, step_name
from lakemq.tables.storage.delta.delta_log import DeltaLog
from lakemq.tables.storage.delta.store import (
    DamagedFile,
    MissingTable,
    NewerTable,
    NotATable,
    OlderTable,
    Store,
    find_foreign_commits,
)
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.object_stores.objects import RootGone

from ..protocol.codec.steps import decode_head
from ..protocol.errors import (
    InconsistentClusterId,
    NamespaceError,
    NewerFormat,
    NotLeader,
    StepTooOld,
    StorageError,
    TableDamaged,
    flatten_error,
    is_unreachable,
    storage_error,
)

log = logging.getLogger("lakemq.serve")


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
        NamespaceError: the namespace is gone, or an older version made it.
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
    except (MissingTable, OlderTable) as error:
        if isinstance(error, MissingTable) and not error.is_needed:
            raise NamespaceError(f"The namespace lacks a table. {error}.") from error
        raise NamespaceError(
            f"The namespace lacks what this LakeMQ needs ({error}): an older version made it, or a part was deleted.",
            expected="a new namespace, or this one from a backup: no command migrates it",
        ) from error
    except (OSError, NotATable) as error:
        raise storage_error(what, error, flatten_error(error)) from error


# Notice that the namespace was deleted under its sequencer or client, and remove the steps that this left behind.
#
# A leader learns of the deletion when the step before its own is gone, or when it cannot project. By then it may have
# put steps where the namespace was: on a disk a put makes its folder again, and deleting a prefix of a store misses
# what is put meanwhile. With such steps the path looks like a namespace that has lost its journal, and none can be
# created there.
#
# A step is removed only if nobody can need it:
#
# - No table of the namespace has a log. So nobody can load the state that the step goes on from.
# - All steps that are there were put by this sequencer in its last term. Otherwise somebody is still deleting, or
#   copies a namespace here. A look at the next error decides.
#
# As long as our step is there, a new namespace cannot have a step of the same name. The look at a step and its removal
# are two requests, without a fence. A step of others could only be hit if, between these two, somebody deletes ours,
# creates a namespace and decides as many steps.


_STORE_FAILED = "The sequencer cannot read or write what it must."
_SLOW_MS = 2_000
"""Time that a step may come after the lease of its leader."""
_SIGNS = (NotLeader, StepTooOld, StepsGone, StorageError, TableDamaged, NamespaceError)
"""Errors that a deleted namespace can cause."""


class RemovedNamespace:
    """Explains errors of one sequencer by the deletion of its namespace. For the sequencer's thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._term: tuple[str, int] | None = None

    def note_term(self, namespace_id: str, epoch: int) -> None:
        """Note the term that has begun. Its steps, and no others, carry these values."""
        if self._term is not None and self._term[0] != namespace_id:
            log.warning("Another namespace is at %s now. This sequencer leads it from here on.", self._files.root)
        self._term = namespace_id, epoch

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn errors of the store in this block into errors that users know.

        Raises:
            NamespaceError: the namespace is gone.
            StorageError: the store failed.
        """
        try:
            with store_errors(_STORE_FAILED):
                yield
        except _SIGNS as error:
            # a store that gives no answer would only take more time
            if is_unreachable(error) or not self._clear_leftovers():
                raise
            raise NamespaceError(
                _describe_removal(self._files),
                expected="that you stop this sequencer, or create the namespace again",
            ) from error

    def _clear_leftovers(self) -> bool:
        """Return whether the namespace is gone. Remove what the last term has left of it."""
        try:
            if not _has_no_table(self._files):
                return False
            self._remove_own_steps()
        except OSError:
            return False
        return True

    def _remove_own_steps(self) -> None:
        steps = list_steps(self._files)
        if all(map(self._is_own, steps)):
            self._files.delete(map(step_name, steps))

    def _is_own(self, step: int) -> bool:
        try:
            head = decode_head(self._files.get(step_name(step)))
        except (FileNotFoundError, NewerFormat, ValueError):
            return False
        return (head.namespace_id, head.leader_epoch) == self._term


def find_removal(files: Files) -> str | None:
    """Return a sentence if the namespace is gone. None: it is there, or the store gives no answer."""
    try:
        return _describe_removal(files) if _has_no_table(files) else None
    except OSError:
        return None


def explain_silence(files: Files, namespace_id: str) -> str | None:
    """Return why a request may get no answer, as the store shows it. None: the store shows nothing.

    Raises InconsistentClusterId: another namespace is there.
    """
    if removal := find_removal(files):
        return removal
    try:
        name = step_name(max(list_steps(files)))
        head, age_ms = decode_head(files.get(name)), files.time_ms() - (files.modified_ms(name) or 0)
    except (OSError, NewerFormat, ValueError):
        return None
    if head.namespace_id not in ("", namespace_id):  # step 0 is put before the namespace has its id
        raise InconsistentClusterId(
            f"Another namespace is at {files.root} now: connect again. The outcome of the request is unknown.",
            found=head.namespace_id,
            expected=namespace_id,
        )
    if not head.leader or age_ms > head.lease_ms + _SLOW_MS:
        return None
    return f"The sequencer {head.leader} leads and put step {head.step:,} {age_ms / 1000:.0f} s ago: its log says more."


def _describe_removal(files: Files) -> str:
    return (
        f"The namespace {files.root} is gone: none of its tables is there. It was deleted, or its disk is not mounted."
    )


def _has_no_table(files: Files) -> bool:
    tables = {spec.name for spec in TABLES}
    return not any(DeltaLog(files, name).exists() for name in files.folders("") if name in tables)


# Report a table that holds something that LakeMQ did not write.


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
