"""Find out whether a namespace can be written before any work starts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakemq.tables.storage.object_stores.files import Files

FOLDER = "probe"

_OBJECT = bytes(4096)
"""One block of a disk. An empty object needs no room, so that it can be written to a full disk."""


def probe(files: Files) -> int | None:
    """Write and delete a small object, and return the time in epoch milliseconds that the store gave it.

    Raises the store's error if it refuses.
    """
    name = f"{FOLDER}/{uuid.uuid4().hex}"
    files.put(name, _OBJECT)
    try:
        return files.modified_ms(name)
    finally:
        files.delete([name])
        files.delete_folder(FOLDER)
