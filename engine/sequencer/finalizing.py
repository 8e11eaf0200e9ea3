"""Final messages: schedule the writing of those that are due, and bring their table to the decided state.

A step decides what was written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import FINAL_MESSAGES, final_file_path, parse_final_file_id
from lakemq.tables.specs.topics import FINAL_PENDING
from lakemq.tables.storage.delta.commits import NewFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import TableHandle
from lakemq.tables.storage.object_stores.files import Files

from ..maintenance.retention import LiveState, mask_deleted_segments
from ..namespace.clock import Clock
from ..namespace.data_file import read_footer
from ..protocol.values.log import RangesWritten
from ..protocol.values.state import State
from ..protocol.values.topics import Topic

log = logging.getLogger("lakemq.serve")

_SOON_MS = 20
_MANY_FILES = 50
"""Files that one step decides."""
STALE_MS = 300_000
"""Age at which written files are given up. Later they may be deleted as left over."""


class Finalizing:
    """The runs of one term. The sequencer's thread calls it; a run writes files in `executor`."""

    def __init__(
        self,
        write: Callable[[Mapping[int, Topic]], list[RangesWritten]],
        executor: Executor,
        clock: Clock,
        interval_ms: int,
    ) -> None:
        """interval_ms: from the beginning of a run to the next. 0: there are none."""
        self._write, self._executor, self._clock, self._interval_ms = write, executor, clock, interval_ms
        self._begun_ms = self._due_ms = clock.steady_ms()
        self._running: Future[list[RangesWritten]] | None = None
        self._written: deque[RangesWritten] = deque()

    @property
    def is_working(self) -> bool:
        """Whether a run has files that are not decided yet."""
        return bool(self._written) or (
            self._running is not None and self._clock.steady_ms() < self._begun_ms + STALE_MS
        )

    def due_in_ms(self) -> float | None:
        """Return in how many ms there is work. None: never."""
        if self.is_working:
            return _SOON_MS
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms()) if self._interval_ms else None

    def take_written(self, state: State) -> list[RangesWritten]:
        """Return what the next step must decide, and begin a run when one is due."""
        now_ms = self._clock.steady_ms()
        if self._running is not None and self._running.done():
            self._take_result(self._running)
            self._running = None
        if now_ms >= self._begun_ms + STALE_MS:
            self._written.clear()
        if self._interval_ms and self._running is None and not self._written and now_ms >= self._due_ms:
            self._begun_ms, self._due_ms = now_ms, now_ms + self._interval_ms
            self._running = self._executor.submit(self._write, state.snapshot().topics)
        return [self._written.popleft() for _ in range(min(_MANY_FILES, len(self._written)))]

    def _take_result(self, running: Future[list[RangesWritten]]) -> None:
        error = running.exception()
        if error is None:
            self._written.extend(running.result())
        else:  # whatever the store raises: publishing goes on
            is_known = isinstance(error, OSError)
            log.warning("Messages do not become final: %s", error, exc_info=None if is_known else error)


# Make the files of `final_messages` those that `segments` names. One function for adding, deletion and recovery.


_BOUNDED = ("topic_id", "partition", "offset", "timestamp")
"""Columns whose bounds let readers skip files."""


def sync_final_messages(files: Files, final: TableHandle, segments: TableHandle, live: LiveState) -> None:
    """Add the files that rows of `segments` name, and remove the others.

    A file that lies whole below the log starts, or whose topic is gone, is not named any more. Added rows are new for
    a stream that reads the table. Removed ones have been read, so streams skip them.

    Raises CommitConflict: another sequencer has committed.
    """
    named = _read_named_files(segments, live)
    stored = {parse_final_file_id(file.path): file for file in final.files()}
    added = [file for id_, row in named.items() if id_ not in stored and (file := _find_file(files, id_, row))]
    if added:
        final.replace_at(final.version, added)
    removed = [file for id_, file in stored.items() if id_ not in named]
    if removed:
        Leftovers(files).announce(FINAL_MESSAGES.name, [file.path for file in removed])
        final.replace_at(final.version, [], removed)


def _read_named_files(segments: TableHandle, live: LiveState) -> dict[int, dict[str, Any]]:
    """Return for each file that is named a row that names it."""
    columns = ("topic_id", "topic", "partition", "last_offset", "step", "file_id", "footer_hash")
    rows = segments.read(columns, (pc.field("kind") == FINAL_PENDING) & pc.field("file_id").is_valid())
    is_there = pc.is_in(rows.column("topic_id"), pa.array(sorted(live.topics), pa.int64())).to_numpy()
    rows = rows.filter(pa.array(is_there & ~mask_deleted_segments(rows, live)))
    return {row["file_id"]: row for row in rows.to_pylist()}


def find_damaged_files(files: Files, segments: TableHandle, live: LiveState) -> dict[str, str]:
    """Return the files that `segments` names and that are not there as they were written: name -> what was found."""
    damaged: dict[str, str] = {}
    for file_id, row in _read_named_files(segments, live).items():
        name = _name_file(file_id, row)
        try:
            _read_metadata(files, name, row)
        except (OSError, ValueError) as error:
            damaged[name] = " ".join(str(error).split())
    return damaged


def _find_file(files: Files, file_id: int, row: Mapping[str, Any]) -> NewFile | None:
    """Return the file for a commit; None, with a line in the log, if it is not there as it was written."""
    name = _name_file(file_id, row)
    try:
        size_bytes, metadata = _read_metadata(files, name, row)
    except (FileNotFoundError, ValueError) as error:
        log.error(
            "TABLE_DAMAGED: %s cannot be read: %s. Its messages are missing in final_messages, and fetches have them."
            " Restore the file from a backup.",
            name,
            error,
        )
        return None
    partition = {"topic": row["topic"], "step": row["step"]}
    path = final_file_path(row["topic"], file_id)
    return NewFile(path, size_bytes, files.modified_ms(name) or 0, _read_statistics(metadata), partition)


def _name_file(file_id: int, row: Mapping[str, Any]) -> str:
    return f"{FINAL_MESSAGES.name}/{final_file_path(row['topic'], file_id)}"


def _read_metadata(files: Files, name: str, row: Mapping[str, Any]) -> tuple[int, pq.FileMetaData]:
    """Return the size of a file and its footer. Raises FileNotFoundError, ValueError: another file, or none."""
    with files.open_input(name) as source:
        footer = read_footer(source)
    if footer.is_other_than(row["footer_hash"]):
        raise ValueError("rewritten or damaged")
    return footer.size_bytes, footer.parse()


def _read_statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file from its footer."""
    names = metadata.schema.names
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name in _BOUNDED:
        column = names.index(name)
        found = [metadata.row_group(i).column(column).statistics for i in range(metadata.num_row_groups)]
        low, high = min(part.min for part in found), max(part.max for part in found)
        if isinstance(low, datetime):  # Delta knows milliseconds: the upper bound is rounded up
            low, high = _format_time(low), _format_time(high + timedelta(microseconds=999))
        least[name], most[name] = low, high
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": dict.fromkeys(least, 0),
    }


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def needs_sync(live: LiveState) -> bool:
    """Return whether `final_messages` may have files, as far as the topics show."""
    return any(bool(np.any(topic.final_offsets > topic.log_starts)) for topic in live.topics.values())
