"""A disk that loses power: what a process does to it (noted by disk_shim.c), and what remains of it at any moment.

A file's content survives if it was synced after its last write. A name survives if its folder was synced after the
change.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from faults.shims import preloading

Loss = Literal["names lost", "removals only", "contents lost"]
"""The fate of changes that were not synced: undone; undone except for removals; done, with empty files."""

LOSSES: tuple[Loss, ...] = ("names lost", "removals only", "contents lost")


class Note(NamedTuple):
    """A note. kind: write, name, folder (a new one), gone, sync, or told: `path` is a message to the process."""

    kind: str
    inode: int
    path: str


@dataclass
class Disk:
    """The names and contents now, and after a loss of power."""

    names: dict[str, int] = field(default_factory=dict)
    synced_names: dict[str, int] = field(default_factory=dict)
    unsynced: set[int] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def follow(self, note: Note) -> None:
        if note.kind == "write":
            self.unsynced.add(note.inode)
        elif note.kind in ("name", "folder"):
            self.names[note.path] = note.inode
            if note.kind == "folder":
                # inodes are reused: a file may have had it before
                self.unsynced.discard(note.inode)
                self.folders.add(note.path)
        elif note.kind == "gone" and self.names.get(note.path) == note.inode:
            del self.names[note.path]
        elif note.kind == "sync":
            self.unsynced.discard(note.inode)
            self._sync_folder(note.path)

    def _sync_folder(self, folder: str) -> None:
        for path in {*self.names, *self.synced_names}:
            if os.path.dirname(path) == folder:
                self.synced_names.pop(path, None)
                if path in self.names:
                    self.synced_names[path] = self.names[path]

    def survives(self, path: str, root: str) -> bool:
        """Return whether the path would be there with its content after a loss of power."""
        inode = self.names.get(path)
        if inode is None or inode in self.unsynced or self.synced_names.get(path) != inode:
            return False
        parent = os.path.dirname(path)
        return parent == root or self.survives(parent, root)

    def list_remaining(self, loss: Loss) -> Iterator[tuple[str, int, bool]]:
        """Yield paths, folders before their contents, with their inodes and whether they have kept their contents."""
        if loss == "contents lost":
            paths = self.names
        elif loss == "names lost":
            paths = self.synced_names
        else:
            paths = {path: inode for path, inode in self.synced_names.items() if path in self.names}
        for path in sorted(paths):
            yield path, paths[path], paths[path] not in self.unsynced


class RecordedDisk:
    """The disk of one process, in a folder, and everything that the process did to it."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.root, self._kept, self.notes_file = folder / "disk", folder / "kept", folder / "notes"
        for folder_ in (self.root, self._kept):
            folder_.mkdir()
        self.environ = preloading(
            library,
            LAKEMQ_TEST_DISK=str(self.root),
            LAKEMQ_TEST_DISK_NOTES=str(self.notes_file),
            LAKEMQ_TEST_DISK_KEPT=str(self._kept),
        )

    def notes(self) -> list[Note]:
        lines = self.notes_file.read_text().splitlines()
        return [Note(kind, int(inode), path) for kind, inode, path in (line.split("\t", 2) for line in lines)]

    def restore(self, disk: Disk, loss: Loss, to: Path) -> None:
        """Write the remaining files to an empty folder."""
        contents = {path.stat().st_ino: path for path in self.root.rglob("*") if path.is_file()}
        contents |= {int(path.name): path for path in self._kept.iterdir()}
        for path, inode, is_whole in disk.list_remaining(loss):
            copy = to / Path(path).relative_to(self.root)
            if not copy.parent.is_dir():
                continue  # its folder is lost
            if path in disk.folders:
                copy.mkdir()
            elif is_whole:
                shutil.copyfile(contents[inode], copy)
            else:
                copy.touch()


def disk_after(notes: list[Note]) -> Disk:
    """Return the disk after these notes. It starts as an empty folder."""
    disk = Disk()
    for note in notes:
        disk.follow(note)
    return disk


def read_tellings(notes: list[Note]) -> list[list[object]]:
    """Return what the process has noted with `tell`, in order."""
    return [json.loads(note.path) for note in notes if note.kind == "told"]


def tell(notes_file: str, fields: list[object]) -> None:
    """Note that the process got this message."""
    file = os.open(notes_file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"told\t0\t{json.dumps(fields)}\n".encode())
    finally:
        os.close(file)
