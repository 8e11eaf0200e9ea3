"""A copy of a streaming query's checkpoint, kept in the namespace.

A batch is written down here before it is published under its number. A checkpoint that was deleted is restored, so
that a batch number never stands for other rows than those published under it; and of two runs at once, the second one
that claims a number is refused.
"""

from __future__ import annotations

from contextlib import suppress

from lakemq.tables.storage.files import Files

from ...protocol.errors import IllegalState

FOLDER = "streams"


class CheckpointCopy:
    """The notes of one query: `metadata`, and a file per batch in `offsets`, `commits` and `sources/<i>`."""

    def __init__(self, kept: Files, query: str, checkpoint: Files) -> None:
        self._kept, self._query, self._checkpoint = kept, query, checkpoint
        self._root = f"{FOLDER}/{query}"

    def restore(self) -> bool:
        """Make an empty checkpoint what it was; False where there is nothing to restore and nothing restored."""
        if self._checkpoint.list("offsets"):
            return True
        names = self._notes(self._kept, f"{self._root}/")
        for name in names:
            with suppress(FileExistsError):
                self._checkpoint.put(name, self._kept.get(f"{self._root}/{name}"))
        return bool(names)

    def save(self, batch_id: int) -> None:
        """Copy new files. Raises IllegalState if this batch was noted before with other rows."""
        if self._checkpoint.list("state/0/0", limit=1):
            raise IllegalState("A query with state (aggregation, deduplication, join) cannot be published as a stream.")
        copied = set(self._notes(self._kept, f"{self._root}/"))
        for name in self._notes(self._checkpoint, ""):
            if name not in copied:
                self._keep(name)
            elif name.rpartition("/")[2] == str(batch_id):
                self._compare(name)

    def prune(self) -> None:
        """Forget what Structured Streaming has forgotten."""
        gone = set(self._notes(self._kept, f"{self._root}/")) - set(self._notes(self._checkpoint, ""))
        self._kept.delete(f"{self._root}/{name}" for name in gone)

    def _keep(self, name: str) -> None:
        try:
            self._kept.put(f"{self._root}/{name}", self._checkpoint.get(name))
        except FileExistsError:
            self._compare(name)

    def _compare(self, name: str) -> None:
        if self._kept.get(f"{self._root}/{name}") != self._checkpoint.get(name):
            raise IllegalState(
                f"Stream {self._query} is run twice at once, or from an old copy of its checkpoint:"
                f" {name} stands for other rows."
            )

    def _notes(self, files: Files, root: str) -> list[str]:
        """Names of all notes below `root`, in the order in which they are written."""
        offsets = files.list(f"{root}offsets")
        folders = [f"sources/{i}" for i in range(_count_sources(files, offsets))]
        names = [f"{root}metadata"] if files.size(f"{root}metadata") is not None else []
        names += [name for folder in folders for name in files.list(f"{root}{folder}")]
        return [name.removeprefix(root) for name in [*names, *offsets, *files.list(f"{root}commits")]]


def _count_sources(files: Files, offsets: list[str]) -> int:
    """An entry of the offset log is its version, its metadata, and one line per source."""
    return max((len(files.get(name).splitlines()) - 2 for name in offsets[-1:]), default=1)
