"""A namespace: a folder or object-store prefix that holds the tables, the mailbox and the data files."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from deltalake.exceptions import DeltaError

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.coordination.mailbox import Mailbox
from lakemq.tables.storage.coordination.sockets import LINES_FOLDER
from lakemq.tables.storage.coordination.step_objects import STEPS_FOLDER, list_steps, step_name
from lakemq.tables.storage.delta.delta_log import DeltaLog
from lakemq.tables.storage.delta.store import NewerTable, NotATable, OlderTable, Store
from lakemq.tables.storage.object_stores.files import Files, LocalFiles, open_files
from lakemq.tables.storage.object_stores.local_files import share_with_group
from lakemq.tables.storage.object_stores.store_options import hide_secrets

from ..protocol.codec.steps import StepHead, encode_step_object
from ..protocol.errors import NamespaceError, NewerFormat, flatten_error, is_unreachable, storage_error
from ..protocol.values.journal import FORMAT_VERSION, Step
from .config import EngineConfig
from .process import claim_tables, new_id


@dataclass(frozen=True)
class Namespace:
    """Everything that a sequencer or client needs to reach the stored state.

    namespace_id: Delta's id of the journal. A namespace that was created again at the same path has another id; one
    that was restored from a backup has the same.
    """

    path: str
    namespace_id: str
    files: Files
    store: Store
    mailbox: Mailbox
    config: EngineConfig
    storage_options: Mapping[str, str] = field(repr=False)


def open_namespace(
    path: str,
    config: EngineConfig | None = None,
    storage_options: Mapping[str, str] | None = None,
    create: bool = False,
    shared_with_group: bool = False,
) -> Namespace:
    """Open the namespace at a path or URI. With `create`, create it first if there is none.

    Args:
        shared_with_group: with `create`, the group of the folder may read and write everything in it, whatever umask.

    Raises:
        NamespaceError: nothing is there, or something else, or it may not be written.
        NewerFormat: a later version of LakeMQ has written it.
        StorageError: the store gives no answer.
        IllegalState: this process was forked from one that has opened a namespace.
    """
    config = config or EngineConfig()
    path = os.path.expanduser(path)
    claim_tables()
    try:
        files = open_files(path, storage_options)
        store = Store(files, storage_options)
        if create and shared_with_group:
            _share(files)
        # also if nothing is created: a store that gives no answer shows it here, and delta-rs would wait for long
        is_there = store.exists(JOURNAL)
        if create and not is_there:
            _check_free(path, files, store)
            _put_first_step(files)
            for spec in TABLES:  # the journal comes last
                store.create(spec)
        namespace_id = _open_journal(path, files, store)
    except OSError as error:
        if is_unreachable(error):
            raise storage_error(f"{path} cannot be reached.", error, flatten_error(error)) from error
        reason = error.strerror or flatten_error(error)
        raise NamespaceError(f"{path} cannot be used: {reason}", expected=_USABLE) from error
    except ValueError as error:
        raise NamespaceError(f"{hide_secrets(repr(path), {})} cannot be used: {error}", expected=_USABLE) from error
    mailbox = Mailbox(files, limit=config.number("mailbox.max.letters"))
    return Namespace(path, namespace_id, files, store, mailbox, config, dict(storage_options or {}))


def _put_first_step(files: Files) -> None:
    """Put step 0, which decides nothing, unless it is there. The first leader stands on it."""
    # Some stores identify an object by its content. Without a nonce, step 0 of a namespace that was created again at
    # this path would pass for the one before, and a leader of the former namespace would go on from it.
    head = StepHead(FORMAT_VERSION, "", new_id(), 0, 0, "", 0, 0)
    with suppress(FileExistsError):
        files.put(step_name(0), encode_step_object(head, Step(0, 0, 0, [])))
    files.sync([step_name(0)])  # also if another process has put it: it may have been killed before this


def _share(files: Files) -> None:
    if not isinstance(files, LocalFiles):
        raise NamespaceError(f"{files.root} is not on a disk: who may read and write it is for the store's policies.")
    try:
        share_with_group(files.root)
    except OSError as error:
        raise NamespaceError(
            f"{files.root} cannot be shared with its group ({error.strerror or error}). Without access lists: give the "
            "folder to the group, chmod g+rwxs, and start every process that uses it with umask 002 or 007."
        ) from error


_USABLE = "a folder that this user may read and write, or the URI of an object store"
_RESTORED = "a copy of it from a backup"


def _check_free(path: str, files: Files, store: Store) -> None:
    """Check that a namespace can be created here. An interrupted init is completed; a lost journal is not replaced."""
    if DeltaLog(files).exists():
        text = f"{path} is itself a Delta table, and no place for a namespace."
        raise NamespaceError(text, expected="another path")
    if written := [*_find_written_tables(store), *([STEPS_FOLDER] if any(list_steps(files)) else [])]:
        raise _make_lost_journal_error(path, written)
    if foreign := _find_foreign_names(files):
        shown = ", ".join(foreign[:_SHOWN]) + (f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else "")
        raise NamespaceError(
            f"A namespace cannot be created in {path}: the folder is not empty.",
            found=shown,
            expected=f"an empty folder, or one that is not there yet, such as {path.rstrip('/')}/mq",
        )


_SHOWN = 5
_OWN_FOLDERS = {spec.name for spec in TABLES} | {
    "aside",
    "beats",
    "leaders",
    "leftovers",
    LINES_FOLDER,
    "mailbox",
    "messages",
    "overdue",
    "replies",
    "standbys",
    STEPS_FOLDER,
    "streams",
}
"""Folders of a namespace: an interrupted `create` has made some of them."""


def _find_foreign_names(files: Files) -> list[str]:
    """Return names in the folder that do not belong to a namespace, other namespaces first, without hidden files."""
    folders = [name for name in files.folders("", _MANY) if name not in _OWN_FOLDERS]
    namespaces = [name for name in folders if DeltaLog(files, f"{name}/{JOURNAL.name}").exists()]
    folders_left = [f"{name}/" for name in folders if name not in namespaces and name != "lost+found"]
    return [*(f"the namespace {name}/" for name in namespaces), *folders_left, *files.list("", _MANY)]


_MANY = 100


def _open_journal(path: str, files: Files, store: Store) -> str:
    """Return the id of the journal's table. Raises NamespaceError, NewerFormat, with what is there and what helps."""
    try:
        return store.open(JOURNAL).table_id
    except NewerTable as error:
        raise NewerFormat(str(error), expected="the version of LakeMQ that wrote it, or a later one") from error
    except OlderTable as error:
        raise NamespaceError(
            f"{path} was written by an older LakeMQ ({error}), and no command of this one migrates it.",
            expected="the version that wrote it",
        ) from error
    except NotATable as error:
        raise _explain_missing_journal(path, files, store, error) from error


def _explain_missing_journal(path: str, files: Files, store: Store, error: NotATable) -> NamespaceError:
    try:
        if store.exists(JOURNAL) or DeltaLog(files, JOURNAL.name).exists():
            return NamespaceError(f"{path} has a journal that cannot be used ({error}).", expected=_RESTORED)
        if written := _find_written_tables(store):
            return _make_lost_journal_error(path, written)
    except DeltaError as unreadable:
        return NamespaceError(f"{path} cannot be read: {unreadable}", expected=_USABLE)
    text = f"{path} is not a LakeMQ namespace ({error})."
    return NamespaceError(text, expected=f"the path of one, or one made by: lakemq --path {path} init")


def _make_lost_journal_error(path: str, written: list[str]) -> NamespaceError:
    tables = ", ".join(written[:3])
    text = f"{path} is a namespace without its journal: {tables} were written to."
    return NamespaceError(text, expected=_RESTORED)


def _find_written_tables(store: Store) -> list[str]:
    """Return the tables, except the journal, that are not as init leaves them."""
    candidates = (spec for spec in TABLES if spec is not JOURNAL and store.exists(spec))
    return [spec.name for spec in candidates if not _is_unwritten(store, spec)]


def _is_unwritten(store: Store, spec: TableSpec) -> bool:
    try:
        return store.open(spec).version == 0
    except (NotATable, NewerTable):
        return False
