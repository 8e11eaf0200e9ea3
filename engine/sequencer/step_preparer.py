"""Prepare a step: make all requests to the store that its decisions need, many at once.

A store may be slow or not answer at all. So the wait has a time limit, and the lease is renewed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from lakemq.tables.specs.messages import SEQUENCERS_FILES, FileFacts
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.workers import Workers

from ..namespace.data_file import file_name, read_file_facts, write_data_file
from ..protocol.codec.few_rows import Rows, rows_to_table
from ..protocol.codec.step_rows import encode_step_rows, join_step_rows
from ..protocol.errors import StorageError
from ..protocol.values.log import DataFile, FilesAdded, PendingFile, Produce, RowsJournaled
from .letters.intake import OpenedLetter
from .projection.pending_file import CurrentPendingFile

_AT_ONCE = 16
"""Requests to the store at a time."""
_TURN_S = 0.1
"""How often the lease is looked after while requests are under way."""


@dataclass(frozen=True)
class PreparedStep:
    """The facts that a step's decisions need from the store.

    Attributes:
        inline: the one data file for all rows that came in letters.
        added: the record that names that file.
        rows: those rows as encoded for the step, if they go there.
        first_rows: per letter, where its rows begin in the file.
        facts: by file id, what the store has of the files that requests name. None: nothing.
    """

    inline: DataFile | PendingFile | None = None
    added: FilesAdded | RowsJournaled | None = None
    rows: bytes | None = None
    first_rows: tuple[int, ...] = ()
    facts: dict[int, FileFacts | None] = field(default_factory=dict)


class StepPreparer:
    """Belongs to one sequencer, whose thread calls it."""

    def __init__(self, files: Files, new_file_id: Callable[[], int], timeout_ms: int, max_age_ms: int) -> None:
        """Args:
        new_file_id: returns a random id below SEQUENCERS_FILES.
        timeout_ms: for all requests of one step.
        max_age_ms: of a data file that a request names.
        """
        self._files, self._new_file_id, self._timeout_ms = files, new_file_id, timeout_ms
        self._max_age_ms = max_age_ms
        self._pool: Workers | None = None

    def prepare(
        self, taken: Sequence[OpenedLetter], pending_file: CurrentPendingFile, give_sign_of_life: Callable[[], None]
    ) -> PreparedStep:
        """Make the requests of one step. Raises StorageError if the store fails or does not answer in time.

        give_sign_of_life: renews the lease if that is due. It is called repeatedly; its error ends the wait.
        """
        parts = [opened.rows for opened in taken if opened.rows is not None and opened.rows.num_rows]
        rows = join_step_rows(parts)
        goes_into_step = rows is not None and pending_file.has_room_for(rows.nbytes)
        named = sorted(_find_footer_hashes(taken).items())
        work: list[Callable[[], object]] = [partial(self._inspect_file, *named_file) for named_file in named]
        if named:
            work.append(self._files.time_ms)
        if rows is not None and not goes_into_step:
            work.append(partial(self._write_file, rows))
        answers = self._run_all(work, give_sign_of_life)
        # the answers come in the order of `work`: the named files, then the store's time, then the new file
        inspected: Sequence[Any] = answers[: len(named)]
        facts = {
            file_id: self._refuse_if_old(facts_, written_ms, answers[len(named)])
            for (file_id, _), (facts_, written_ms) in zip(named, inspected, strict=True)
        }
        if rows is not None and goes_into_step:
            body = encode_step_rows(rows)
            file, first = pending_file.add_rows(rows.num_rows, len(body))
            journaled = RowsJournaled(file.file_id, first, rows.num_rows)
            return PreparedStep(file, journaled, body, _find_first_rows(taken, first), facts)
        if rows is not None:
            written: Any = answers[-1]
            return PreparedStep(written, FilesAdded([written]), None, _find_first_rows(taken, 0), facts)
        return PreparedStep(first_rows=_find_first_rows(taken, 0), facts=facts)

    def _run_all(self, requests: Sequence[Callable[[], object]], give_sign_of_life: Callable[[], None]) -> list[object]:
        if not requests:
            return []
        self._pool = self._pool or Workers(_AT_ONCE, "lakemq-preparing")
        futures = [self._pool.submit(request) for request in requests]
        for _ in range(max(1, int(self._timeout_ms / 1000 / _TURN_S))):
            if not wait(futures, _TURN_S).not_done:
                return [future.result() for future in futures]
            give_sign_of_life()
        self.close()  # threads of this pool may hang, so the next step gets a new pool
        raise StorageError(f"The store did not answer in {self._timeout_ms} ms.", found=f"{len(requests)} requests")

    def _inspect_file(self, file_id: int, footer_hash: int | None) -> tuple[FileFacts | None, int | None]:
        """Return the facts of a data file, and when it was written."""
        return read_file_facts(self._files, file_id, footer_hash), self._files.modified_ms(file_name(file_id))

    def _refuse_if_old(self, facts: FileFacts | None, written_ms: int | None, now_ms: Any) -> FileFacts | None:
        """Return the facts, with a flaw if the file is so old that it may be about to be removed."""
        if facts is None or written_ms is None or now_ms - written_ms <= self._max_age_ms:
            return facts
        return facts._replace(flaw="written longer ago than publish.max.duration.ms")

    def _write_file(self, rows: Rows) -> DataFile:
        file_id = SEQUENCERS_FILES | self._new_file_id()
        return DataFile(*write_data_file(self._files, file_id, rows_to_table([rows])))

    def close(self) -> None:
        """Give up requests that still hang."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _find_first_rows(taken: Sequence[OpenedLetter], first: int) -> tuple[int, ...]:
    """Return for each letter the row of the file at which its own rows begin. The first one's begin at `first`."""
    counts = (0 if opened.rows is None else opened.rows.num_rows for opened in taken)
    return tuple(accumulate(counts, initial=first))[:-1]


def _find_footer_hashes(taken: Iterable[OpenedLetter]) -> dict[int, int | None]:
    """Return file_id -> hash of its footer, for files that requests name; None: requests say different hashes."""
    footer_hashes: dict[int, int | None] = {}
    for opened in taken:
        for request in opened.letter.requests:
            for file in request.files if isinstance(request, Produce) else ():
                if footer_hashes.setdefault(file.file_id, file.footer_hash) != file.footer_hash:
                    footer_hashes[file.file_id] = None
    return footer_hashes
