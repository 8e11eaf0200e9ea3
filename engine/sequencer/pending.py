"""The pending file: where rows of small letters will be, named from the first step on that has some.

Invariant: a file has all rows of exactly the steps that name it, in their order, whoever writes it. So an id is in use
from the first step that names it until a pass begins or the term ends, and nobody goes on with another's.
"""

from __future__ import annotations

from collections.abc import Callable

from lakemq.tables.specs.messages import SEQUENCERS_FILES
from lakemq.tables.storage.files import Files

from ..namespace.data_file import file_name
from ..protocol.values.log import PendingFile

MOST_BYTES = 16 << 20
"""Rows that ride since the last pass began, at most: memory of leaders and readers, and what a new leader writes."""

PASS_BYTES = 8 << 20
"""Rows that ride, after which a pass is due."""


class Pending:
    """Of one term of leadership."""

    def __init__(self, files: Files, new_file_id: Callable[[], int], most_step_bytes: int) -> None:
        """new_file_id: random, below SEQUENCERS_FILES; most_step_bytes: of one step's rows, that they may ride."""
        self._files, self._new_file_id, self._most_step_bytes = files, new_file_id, most_step_bytes
        self._file_id: int | None = None
        self._rows = self.size_bytes = 0

    def takes(self, size_bytes: int) -> bool:
        """Whether the rows of a step ride in the journal."""
        return size_bytes <= self._most_step_bytes and self.size_bytes + size_bytes <= MOST_BYTES

    @property
    def is_named(self) -> bool:
        return self._file_id is not None

    def name(self) -> None:
        """Choose a name that is free. Raises OSError."""
        while self._file_id is None:
            file_id = SEQUENCERS_FILES | self._new_file_id()
            if self._files.size(file_name(file_id)) is None:
                self._file_id = file_id

    def add(self, record_count: int, size_bytes: int) -> tuple[PendingFile, int]:
        """So many more rows: the file they will be in, which has a name, and the number of the first of them.

        size_bytes: as they ride, which for a few rows is more than the rows themselves.
        """
        assert self._file_id is not None
        first_row = self._rows
        self._rows += record_count
        self.size_bytes += size_bytes
        return PendingFile(self._file_id, self._rows), first_row

    def close(self) -> None:
        """A pass begins, with all rows so far: later ones will be in another file."""
        self._file_id, self._rows, self.size_bytes = None, 0, 0
