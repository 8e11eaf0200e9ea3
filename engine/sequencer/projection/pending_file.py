"""The pending file: the data file that will hold the rows of small letters. Steps name it before it exists.

Invariant: a file holds all rows of exactly the steps that name it, in their order, whoever writes it. So an id is used
from the first step that names it until a pass begins or the term ends. No other term goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable

from lakemq.tables.specs.messages import SEQUENCERS_FILES

from ...protocol.values.log import PendingFile

MAX_BYTES = 16 << 20
"""Most bytes of rows in steps since the last pass began. Leaders and readers hold them in memory, and a new leader
writes them."""

PASS_DUE_BYTES = 8 << 20
"""Bytes of rows in steps after which a pass is due."""


class CurrentPendingFile:
    """The pending file that one term of leadership fills at present."""

    def __init__(self, new_file_id: Callable[[], int], most_step_bytes: int) -> None:
        """new_file_id: returns a random id below SEQUENCERS_FILES; most_step_bytes: of rows in one step."""
        self._new_file_id, self._most_step_bytes = new_file_id, most_step_bytes
        self._file_id: int | None = None
        self._rows = self.size_bytes = 0

    def has_room_for(self, size_bytes: int) -> bool:
        """Return whether the rows of a step may go into its object; else they get a file at once."""
        return size_bytes <= self._most_step_bytes and self.size_bytes + size_bytes <= MAX_BYTES

    def add_rows(self, record_count: int, size_bytes: int) -> tuple[PendingFile, int]:
        """Count rows that will be in the file. Return the file, and the number of the first of these rows in it.

        size_bytes: of the rows as encoded in the step, which for few rows is more than the rows themselves.
        """
        if self._file_id is None:  # random enough that no other file has it
            self._file_id = SEQUENCERS_FILES | self._new_file_id()
        first_row = self._rows
        self._rows += record_count
        self.size_bytes += size_bytes
        return PendingFile(self._file_id, self._rows), first_row

    def close(self) -> None:
        """Begin a new file with the next rows: a pass begins, which writes the rows so far."""
        self._file_id, self._rows, self.size_bytes = None, 0, 0
