"""A namespace: a folder or object-store prefix that holds the tables, the mailbox and the data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemq.tables.files import Files, open_files
from lakemq.tables.journal import JOURNAL
from lakemq.tables.mailbox import Mailbox
from lakemq.tables.migrations import migrate
from lakemq.tables.store import NewerTable, NotATable, OlderTable, Store

from .config import EngineConfig
from .protocol.errors import NamespaceError, NewerFormat


@dataclass(frozen=True)
class Namespace:
    """Everything a sequencer or a client needs to reach the stored state."""

    path: str
    files: Files
    store: Store
    mailbox: Mailbox
    config: EngineConfig
    storage_options: Mapping[str, str]


def open_namespace(
    path: str,
    config: EngineConfig | None = None,
    storage_options: Mapping[str, str] | None = None,
    create: bool = False,
) -> Namespace:
    """The namespace at a path or URI, made first where `create` allows it.

    Raises NamespaceError (nothing there, something else there, not writable), NewerFormat.
    """
    config = config or EngineConfig()
    try:
        files = open_files(path, storage_options)
        store = Store(files, storage_options)
        if create and not store.exists(JOURNAL):
            if files.list("_delta_log", 1):
                raise NamespaceError(f"{path} is itself a Delta table, and no place for a namespace.")
            migrate(store, 0)
        store.open(JOURNAL)
    except NewerTable as error:
        raise NewerFormat(str(error)) from error
    except OlderTable as error:
        raise NamespaceError(
            f"{path} was written by an older LakeMQ ({error}), and no command of this one migrates it: "
            "open it with the version that wrote it"
        ) from error
    except NotATable as error:
        raise NamespaceError(
            f"{path} is not a LakeMQ namespace ({error}). Make one with: lakemq --path {path} init"
        ) from error
    except OSError as error:
        raise NamespaceError(f"{path} cannot be used: {error.strerror or error}") from error
    except ValueError as error:
        raise NamespaceError(f"{path!r} cannot be used: {error}") from error
    mailbox = Mailbox(files, limit=config.number("mailbox.max.letters"))
    return Namespace(path, files, store, mailbox, config, dict(storage_options or {}))
