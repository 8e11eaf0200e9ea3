"""The folder of the demo: the demo removes only what it made itself, and one demo at a time works there."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARKER = ".lakemq-demo"
"""A file that says that the demo made the folder. Who holds the lock on it works there."""

NAMESPACE, FLIGHTS, REPORT = "nyc", "flights.parquet", "report.html"
"""All that a demo makes."""


class FolderTaken(Exception):
    """The folder holds files that the demo did not make, or another demo works in it."""


@contextmanager
def take_folder(folder: Path) -> Iterator[None]:
    """Make the folder, or remove what an earlier demo left in it, and keep other demos out of it.

    Raises FolderTaken; then nothing in the folder has changed.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderTaken(f"{folder} is a file. Name a folder with --keep.")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise FolderTaken(f"{folder} has files that this demo did not make. Name another folder with --keep.")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / MARKER).open("a") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderTaken(f"Another demo works in {folder}. Name another folder with --keep.") from None
        shutil.rmtree(folder / NAMESPACE, ignore_errors=True)
        for name in (FLIGHTS, REPORT):
            (folder / name).unlink(missing_ok=True)
        yield
