"""Preparing a step: all that the store must do before it can be decided, many requests at once, while the leader lives.

A store may be slow, or not answer at all: these waits have an end, and are spent in turns with signs of life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa

from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts
from lakemq.tables.storage.files import Files
from lakemq.tables.storage.workers import Workers

from ..namespace.data_file import file_name, look, write_data_file
from ..protocol.codec.few_rows import table_of
from ..protocol.codec.letter_rows import encode_rows
from ..protocol.errors import StorageError
from ..protocol.values.log import DataFile, FilesAdded, PendingFile, Produce, RowsJournaled
from .intake import OpenedLetter
from .pending import Pending

_AT_ONCE = 16
_TURN_S = 0.1


@dataclass(frozen=True)
class PreparedStep:
    """inline: the one data file for all rows that ride in letters; first_rows: per letter where its own begin in it.

    added: what the step says of that file; rows: those that ride on in the journal; facts: what the store has of the
    files that requests name, None where there is nothing.
    """

    inline: DataFile | PendingFile | None = None
    added: FilesAdded | RowsJournaled | None = None
    rows: bytes | None = None
    first_rows: tuple[int, ...] = ()
    facts: dict[int, FileFacts | None] = field(default_factory=dict)


class Preparing:
    """Of one sequencer, whose thread calls it."""

    def __init__(self, files: Files, new_file_id: Callable[[], int], timeout_ms: int, max_age_ms: int) -> None:
        """new_file_id: random, below SEQUENCERS_FILES; timeout_ms: of all that one step asks of the store; max_age_ms:
        of a data file that a request names.
        """
        self._files, self._new_file_id, self._timeout_ms = files, new_file_id, timeout_ms
        self._max_age_ms = max_age_ms
        self._pool: Workers | None = None

    def prepare(self, taken: Sequence[OpenedLetter], pending: Pending, alive: Callable[[], None]) -> PreparedStep:
        """Raises StorageError when the store does not answer in time, and what it fails with.

        alive: called again and again meanwhile; what it raises ends the wait.
        """
        parts = [one.rows for one in taken if one.rows is not None and one.rows.num_rows]
        rows = table_of(parts) if parts else None
        rides = rows is not None and pending.takes(rows.nbytes)
        named = sorted(_files_named(taken))
        asked: list[Callable[[], object]] = [partial(self._look, file_id) for file_id in named]
        if named:
            asked.append(self._files.time_ms)
        if rides and not pending.is_named:
            asked.append(pending.name)
        elif rows is not None and not rides:
            asked.append(partial(self._write, rows))
        answers = self._all(asked, alive)
        found: Sequence[Any] = answers[: len(named)]
        facts = {
            file_id: self._fresh(there, written_ms, answers[len(named)])
            for file_id, (there, written_ms) in zip(named, found, strict=True)
        }
        if rows is not None and rides:
            stream = encode_rows(rows)
            file, first = pending.add(rows.num_rows, len(stream))
            journaled = RowsJournaled(file.file_id, first, rows.num_rows)
            return PreparedStep(file, journaled, stream, _first_rows(taken, first), facts)
        if rows is not None:
            written: Any = answers[-1]
            return PreparedStep(written, FilesAdded([written]), None, _first_rows(taken, 0), facts)
        return PreparedStep(first_rows=_first_rows(taken, 0), facts=facts)

    def _all(self, asked: Sequence[Callable[[], object]], alive: Callable[[], None]) -> list[object]:
        if not asked:
            return []
        self._pool = self._pool or Workers(_AT_ONCE, "lakemq-preparing")
        futures = [self._pool.submit(one) for one in asked]
        for _ in range(max(1, int(self._timeout_ms / 1000 / _TURN_S))):
            if not wait(futures, _TURN_S).not_done:
                return [future.result() for future in futures]
            alive()
        self.close()  # whatever hangs in it, the next step has a pool of its own
        raise StorageError(f"The store did not answer in {self._timeout_ms} ms.", found=f"{len(asked)} requests")

    def _look(self, file_id: int) -> tuple[FileFacts | None, int | None]:
        """What is there, and when it was written."""
        return look(self._files, file_id), self._files.modified_ms(file_name(file_id))

    def _fresh(self, facts: FileFacts | None, written_ms: int | None, now_ms: Any) -> FileFacts | None:
        """The facts, where the file is not so old that it may be about to go."""
        if facts is None or written_ms is None or now_ms - written_ms <= self._max_age_ms:
            return facts
        return facts._replace(flaw="written longer ago than publish.max.duration.ms")

    def _write(self, rows: pa.Table) -> DataFile:
        return DataFile(*write_data_file(self._files, SEQUENCERS_FILES | self._new_file_id(), rows))

    def close(self) -> None:
        """What still hangs is left to itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _first_rows(taken: Sequence[OpenedLetter], first: int) -> tuple[int, ...]:
    """Per letter the row of the file at which its own begin, the first one's at `first`."""
    counts = (0 if one.rows is None else one.rows.num_rows for one in taken)
    return tuple(accumulate(counts, initial=first))[:-1]


def _files_named(taken: Iterable[OpenedLetter]) -> set[int]:
    return {
        file.file_id
        for one in taken
        for request in one.letter.requests
        if isinstance(request, Produce)
        for file in request.files
    }
