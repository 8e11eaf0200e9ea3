"""Message rows that are in steps. A reader keeps them until they are in their data file.

Invariant: rows that the journal's tail had when it was read are here, or in the data file that their segment names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from lakemq.tables.storage.object_stores.files import Files

from ....namespace.data_file import file_name
from ....protocol.codec.step_rows import decode_step_rows
from ....protocol.values.journal import Step
from ....protocol.values.log import RowsJournaled

MOST_BYTES = 32 << 20
"""Above this, rows that are in their data file by now are dropped. A leader lets no more than this wait for files."""


@dataclass(frozen=True, eq=False)
class JournalPart:
    """The rows of one step: `record_count` rows, which begin at row `first_row` of their file. body: as in the step."""

    first_row: int
    record_count: int
    body: bytes

    @cached_property
    def rows(self) -> pa.Table:
        """The rows as BODY_SCHEMA."""
        return decode_step_rows([self.body])


JournalParts: TypeAlias = Mapping[int, Sequence[JournalPart]]
"""file_id -> its parts, in order."""


class JournalRows:
    """The rows of one load of the journal's tail, and of the steps that were followed since."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._parts: dict[int, list[JournalPart]] = {}
        self._last_steps: dict[int, int] = {}
        self._size_bytes = 0

    def add(self, steps: Iterable[Step]) -> None:
        """Add the rows of the next steps of the journal. Raises OSError: the store cannot say which files exist."""
        for step in steps:
            for entry in step.entries:
                record = entry.record
                if isinstance(record, RowsJournaled) and step.rows is not None:
                    part = JournalPart(record.first_row, record.record_count, step.rows)
                    self._parts.setdefault(record.file_id, []).append(part)
                    self._last_steps[record.file_id] = step.step
                    self._size_bytes += len(step.rows)
        if self._size_bytes > MOST_BYTES:
            self._drop_written_files()

    def _drop_written_files(self) -> None:
        for file_id in list(self._parts):
            if self._size_bytes <= MOST_BYTES or self._files.size(file_name(file_id)) is None:
                return  # files are written in this order, so the others do not exist either
            self._drop(file_id)

    def forget(self, step: int) -> None:
        """Drop the rows of steps up to this watermark, which are in their files."""
        for file_id in [file_id for file_id, last_step in self._last_steps.items() if last_step <= step]:
            self._drop(file_id)

    def _drop(self, file_id: int) -> None:
        del self._last_steps[file_id]
        self._size_bytes -= sum(len(part.body) for part in self._parts.pop(file_id))

    def find_parts(self, segments: pa.Table) -> JournalParts:
        """Return the parts with rows of these segments (columns file_id, footer_hash, first_row, record_count)."""
        parts_by_index: dict[int, dict[int, JournalPart]] = {}
        pending = segments.filter(segments.column("footer_hash").is_null())
        columns = (pending.column(name).to_pylist() for name in ("file_id", "first_row", "record_count"))
        for file_id, first_row, count in zip(*columns, strict=True):
            parts = self._parts.get(file_id, ())
            i = max(0, bisect_right(parts, first_row, key=lambda part: part.first_row) - 1)
            while i < len(parts) and parts[i].first_row < first_row + count:
                parts_by_index.setdefault(file_id, {})[i] = parts[i]
                i += 1
        return {file_id: [parts[i] for i in sorted(parts)] for file_id, parts in parts_by_index.items()}
