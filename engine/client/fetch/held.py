"""Rows that ride in the journal, as a reader holds them until they are in their data file.

Invariant: what the journal's tail had when it was read is held here, or is in the data file that its segments name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from lakemq.tables.storage.files import Files

from ...namespace.data_file import file_name
from ...protocol.codec.letter_rows import decode_rows
from ...protocol.values.journal import Step
from ...protocol.values.log import RowsJournaled

MOST_BYTES = 32 << 20
"""Above this, rows are let go that are in their data file by now; a leader lets no more than so many wait for it."""


@dataclass(frozen=True, eq=False)
class HeldPart:
    """The rows of one step: an Arrow stream of `record_count` rows, from row `first_row` of their file on."""

    first_row: int
    record_count: int
    stream: bytes

    @cached_property
    def rows(self) -> pa.Table:
        """Message bodies, without a copy."""
        return decode_rows(memoryview(self.stream))


Held: TypeAlias = Mapping[int, Sequence[HeldPart]]
"""file_id -> its parts, in order."""


class HeldRows:
    """Of one load of the journal's tail, and what was followed since."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._parts: dict[int, list[HeldPart]] = {}
        self._last_steps: dict[int, int] = {}
        self._size_bytes = 0

    def add(self, steps: Iterable[Step]) -> None:
        """Steps of the journal, in order. OSError: the store does not say what is there."""
        for step in steps:
            for record in (one.record for one in step.entries):
                if isinstance(record, RowsJournaled) and step.rows is not None:
                    part = HeldPart(record.first_row, record.record_count, step.rows)
                    self._parts.setdefault(record.file_id, []).append(part)
                    self._last_steps[record.file_id] = step.step
                    self._size_bytes += len(step.rows)
        if self._size_bytes > MOST_BYTES:
            self._let_go()

    def _let_go(self) -> None:
        for file_id in list(self._parts):
            if self._size_bytes <= MOST_BYTES or self._files.size(file_name(file_id)) is None:
                return  # files are written in this order, too
            self._drop(file_id)

    def forget(self, step: int) -> None:
        """The rows of steps up to this one are in their files: it is a watermark."""
        for file_id in [file_id for file_id, last in self._last_steps.items() if last <= step]:
            self._drop(file_id)

    def _drop(self, file_id: int) -> None:
        del self._last_steps[file_id]
        self._size_bytes -= sum(len(part.stream) for part in self._parts.pop(file_id))

    def of(self, segments: pa.Table) -> Held:
        """What is held of the rows of these segments (columns file_id, footer_hash, first_row, record_count)."""
        found: dict[int, dict[int, HeldPart]] = {}
        pending = segments.filter(segments.column("footer_hash").is_null())
        columns = (pending.column(name).to_pylist() for name in ("file_id", "first_row", "record_count"))
        for file_id, first_row, count in zip(*columns, strict=True):
            parts = self._parts.get(file_id, ())
            at = max(0, bisect_right(parts, first_row, key=lambda part: part.first_row) - 1)
            while at < len(parts) and parts[at].first_row < first_row + count:
                found.setdefault(file_id, {})[at] = parts[at]
                at += 1
        return {file_id: [parts[at] for at in sorted(parts)] for file_id, parts in found.items()}
