"""Whether a namespace can be written, found out before anything is begun."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakemq.tables.storage.files import Files

FOLDER = "probe"


def probe(files: Files) -> int | None:
    """A small object was put and is gone again; the epoch milliseconds at which the store says it was written.

    Raises what the store refuses it with.
    """
    name = f"{FOLDER}/{uuid.uuid4().hex}"
    files.put(name, b"")
    try:
        return files.modified_ms(name)
    finally:
        files.delete([name])
        files.delete_folder(FOLDER)
