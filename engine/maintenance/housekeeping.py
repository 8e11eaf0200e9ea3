"""Housekeeping of the tables by the leader: checkpoints, merges of small files, removal of old files.

Invariant: a merge changes no row for a reader at or above the floor. A namespace must run for months, so the numbers of
live files, of files on disk and of log entries stay bounded, however often the leader changes.
Rows of docs/architecture.md: publish 14.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL, WATERMARKS, WatermarkRow
from lakemq.tables.specs.messages import DELAYED, FINAL_MESSAGES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.delta.commits import CommitConflict, NewFile, StoredFile
from lakemq.tables.storage.delta.delta_log import DeltaLog
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import TableHandle, select_newest
from lakemq.tables.storage.object_stores.files import Files

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from .final_files import STALE_MS
from .merging import FEW_FILES, SMALL_BYTES, DataFileMerger, write_merged_file, write_merged_pieces
from .removal import TABLES_LOOKED_AT, Handles, StepRemoval
from .retention import RETENTION, LiveState, drop_deleted_segments, is_mostly_old, trim_rows

MANY_BIG_FILES = 8
"""Number of merged files of a changelog at which all are merged once more. By then most of their rows are outdated."""

_MERGED_ROWS = 1 << 17
"""Rows of `delayed` that a merge holds at once, unless an hour has more. That takes about 250 MB, most
of it for row groups that Arrow reads ahead."""

JOURNAL_SMALL_BYTES = 512 << 10
"""Files of the journal below this size are merged. A small step takes 49 bytes in a file and 866 in memory, and a merge
may hold its rows three times: read, joined, sorted. By that count, files of 8 MB would take 400 MB."""

_MOST_ENTRIES = 10_000
"""Entries that the log of `final_messages` keeps. With 100,000 a query of Spark took 28 s more."""

LOAD_MS = 10_000
"""Age of a watermark that no reader begins at any more. Older rows of keys below it may be dropped."""

QUIET_MS = 60_000
"""A table without commits for this long is merged and checkpointed if it has a few. To read these takes more requests
than to read the checkpoint, which takes about eleven.
"""

SWEEP_MS = 3_600_000
"""Time between two searches for unannounced files, left by a process that was killed between a write and its commit.
Also the longest time between two removals of old log entries and replaced files of a table.
"""


@dataclass
class _TableProgress:
    """The maintenance that a table has had.

    version, moved_at_ms: the table's version when it was last seen, and since when it has been at that one.
    removable_at_ms: when what was replaced last is old enough to be removed.
    clean_at_ms: when to look for files and entries to remove. At first at once: an earlier leader may have left some.
    """

    checkpointed_version: int
    version: int = -1
    moved_at_ms: int = 0
    removable_at_ms: int = 0
    clean_at_ms: int = 0
    swept_at_ms: int | None = None


class Housekeeping:
    """Maintains tables during one term, one table at a time, right after a commit of the leader to it.

    Attributes:
        floor: for the next watermark.
    """

    def __init__(
        self,
        files: Files,
        config: EngineConfig,
        clock: Clock,
        watermark: WatermarkRow,
        now_ms: Callable[[], int],
        data_files: DataFileMerger,
        crash_point: crash.CrashPoint = crash.nowhere,
        live: LiveState | None = None,
    ) -> None:
        """Args:
        watermark: the newest one at the beginning of the term.
        now_ms: returns the time of the steps.
        live: the live objects at that watermark, if known.
        """
        self._files, self._config, self._clock, self._crash_point = files, config, clock, crash_point
        self._data_files = data_files
        self._few_files = min(FEW_FILES, config.number("compact.min.files"))
        self._now_ms, self._leftovers = now_ms, Leftovers(files)
        self.floor, self._newest_final_ms = watermark.floor, 0
        age_ms = max(0, now_ms() - watermark.decided_at_ms)
        self._watermarks = deque([(clock.steady_ms() - age_ms, watermark.step)])
        self._step_removal = StepRemoval(files, clock, watermark.step, crash_point)
        self._tables: dict[str, _TableProgress] = {}
        self._living: LiveState | None = None
        self._coming = None if live is None else (clock.steady_ms() - age_ms, watermark.step, live)
        self._settled: tuple[int, LiveState] | None = None
        """A step that no reader begins before, and the live objects at that step."""

    def note_watermark(self, step: int, now: LiveState) -> None:
        """Note that the watermark of this step was just written. now: the live objects at that step."""
        self._living, now_ms = now, self._clock.steady_ms()
        self._watermarks.append((now_ms, step))
        self._step_removal.note_watermark(step)
        if self._coming is not None and now_ms - self._coming[0] >= LOAD_MS:
            self._settled, self._coming = self._coming[1:], None
        if self._coming is None:
            self._coming = now_ms, step, now

    def remove_steps(self) -> None:
        """Remove step objects that no reader needs any more. Raises OSError."""
        self._step_removal.remove_old()

    def maintain(self, handle: TableHandle) -> None:
        """Checkpoint, merge and clean up a table if it is time. Raises CommitConflict."""
        maintained = self._progress_of(handle.spec)
        is_quiet, since = self._is_quiet(handle, maintained), handle.version - maintained.checkpointed_version
        is_due = since >= self._config.number("checkpoint.interval") or (is_quiet and since >= self._few_files)
        is_due |= bool(self._find_wasted_files(handle))
        if is_due:
            if handle.spec.shape != "data":
                self._merge(handle, is_quiet)
            self._checkpoint(handle, maintained)
            version = handle.version
            handle.reopen()
            if handle.version != version:
                raise CommitConflict(f"{handle.spec.name}: version {handle.version} appeared after {version}")
            self.schedule_cleaning(handle.spec)
        if handle.has_committed and self._clock.steady_ms() >= maintained.clean_at_ms:
            self._clean(handle, maintained)

    def list_tables_to_open(self) -> Sequence[str]:
        """Return the tables that `maintain_data_files` needs after this pass; none if it is not time."""
        return TABLES_LOOKED_AT if self._data_files.is_due() else ()

    def maintain_data_files(self, handles: Handles, step: int) -> None:
        """Merge data files, and remove unneeded ones. step: of the watermark. Raises CommitConflict."""
        floor = self.find_settled_step()
        settled = self._settled[1] if self._settled is not None else None
        if self._data_files.maintain(handles, step, floor, settled):
            self.floor = max(self.floor, floor)
            for handle in handles.values():
                self.schedule_cleaning(handle.spec)

    def _is_quiet(self, handle: TableHandle, maintained: _TableProgress) -> bool:
        now_ms = self._clock.steady_ms()
        if handle.version != maintained.version:
            maintained.version, maintained.moved_at_ms = handle.version, now_ms
        return now_ms - maintained.moved_at_ms >= QUIET_MS

    def _merge(self, handle: TableHandle, is_quiet: bool) -> None:
        files, least = handle.files(), self._config.number("compact.min.files")
        small_bytes = JOURNAL_SMALL_BYTES if handle.spec.name == JOURNAL.name else SMALL_BYTES
        chosen = [f for f in files if f.size_bytes < small_bytes]
        wasted = self._find_wasted_files(handle)
        if len(chosen) < (self._few_files if is_quiet else least) and not wasted:
            return
        is_changelog = handle.spec.shape == "changelog"
        if (is_changelog and len(files) - len(chosen) >= MANY_BIG_FILES) or handle.spec is ADMIN_LOG:
            chosen = files  # of `admin_log`, because the number of all its rows is bounded
        now, retention_ms = self._living, self._retention_ms(handle.spec)
        if now is not None:
            chosen = [
                f for f in files if f in chosen or f in wasted or is_mostly_old(handle.spec, f, now, retention_ms)
            ]
        floor = max(self.find_settled_step(), handle.floor()) if is_changelog else 0
        is_whole, history_since_ms = len(chosen) == len(files), self._now_ms() - self._config.ms("delay.history.ms")
        if handle.spec.name == DELAYED.name:
            pieces = (
                _drop_outdated_rows(DELAYED, rows, floor, is_whole, history_since_ms)
                for rows in iterate_by_hours(handle, chosen)
            )
            added = write_merged_pieces(self._files, self._leftovers, DELAYED, pieces, chosen)
            self._swap_files(handle, added, chosen, floor)
            return
        rows = _drop_outdated_rows(handle.spec, handle.read(files=chosen), floor, is_whole)
        if now is not None:
            rows = trim_rows(handle.spec, rows, now, retention_ms, whole=is_whole)
        if handle.spec.name == SEGMENTS.name and self._settled is not None:
            step, settled = self._settled
            count, rows = rows.num_rows, drop_deleted_segments(rows, settled)
            if rows.num_rows < count:
                floor = max(step, handle.floor())  # a reader at an older step would find a gap
        added = write_merged_file(self._files, self._leftovers, handle.spec, rows, chosen)
        self._swap_files(handle, added, chosen, floor)

    def _swap_files(
        self, handle: TableHandle, added: Sequence[NewFile], chosen: Sequence[StoredFile], floor: int
    ) -> None:
        self._crash_point("housekeeping.merged_file_written")
        handle.replace_at(handle.version, added, chosen, handle.last_step() or None, floor or None)
        self._crash_point("housekeeping.files_swapped")
        self.floor = max(self.floor, floor)

    def _find_log_retention_ms(self, handle: TableHandle) -> int:
        """Return how long entries of the table's log stay, and with those of `final_messages` the files they name.

        For `final_messages` their age counts from its newest file, because a stream that has read everything plans its
        last batch again when it restarts. Spark lists all entries at each query, so there is a bound on their number.
        """
        if handle.spec is not FINAL_MESSAGES:
            return handle.spec.log_retention_ms
        times_ms = [file.modified_ms for file in handle.files()]
        self._newest_final_ms = max([self._newest_final_ms, *times_ms])
        removed_ms, interval_ms = self._config.ms("final.removed.ms"), self._config.ms("final.interval.ms")
        age_ms = max(0, self._files.time_ms() - self._newest_final_ms)
        return age_ms + (min(removed_ms, _MOST_ENTRIES * interval_ms) if interval_ms else removed_ms)

    def _retention_ms(self, spec: TableSpec) -> int:
        """Return how long rows of the table stay. 0: age does not matter."""
        return self._config.ms(RETENTION[spec.name]) if spec.name in RETENTION else 0

    def _find_wasted_files(self, handle: TableHandle) -> list[StoredFile]:
        """Return files of the table whose rows are mostly deleted."""
        wasted = self._data_files.wasted if handle.spec.name == SEGMENTS.name else frozenset()
        return [file for file in handle.files() if file.path in wasted] if wasted else []

    def find_settled_step(self) -> int:
        """Return the newest watermark that is at least LOAD_MS old. 0: there is none."""
        horizon_ms = self._clock.steady_ms() - LOAD_MS
        while len(self._watermarks) > 1 and self._watermarks[1][0] <= horizon_ms:
            self._watermarks.popleft()
        written_at_ms, step = self._watermarks[0]
        return step if written_at_ms <= horizon_ms else 0

    def _progress_of(self, spec: TableSpec) -> _TableProgress:
        if spec.name not in self._tables:
            # as stored, so that leaders of a few commits each checkpoint and merge in their turn
            checkpointed_version = DeltaLog(self._files, spec.name).checkpointed_version()
            # an earlier leader may have replaced something just now
            self._tables[spec.name] = _TableProgress(checkpointed_version, removable_at_ms=self._find_removal_ms(spec))
        return self._tables[spec.name]

    def note_rewrite(self, spec: TableSpec, floor: int) -> None:
        """Note that rows of a table were rewritten, and that no reader may begin before this step."""
        self.floor = max(self.floor, floor)
        self.schedule_cleaning(spec)

    def schedule_cleaning(self, spec: TableSpec) -> None:
        """Let what was replaced just now be removed when it is old enough."""
        maintained = self._progress_of(spec)
        maintained.removable_at_ms = self._find_removal_ms(spec)
        maintained.clean_at_ms = min(maintained.clean_at_ms, maintained.removable_at_ms)

    def _find_removal_ms(self, spec: TableSpec) -> int:
        """Return when something that is replaced now may be removed, a second later: stores tell times in seconds."""
        wait_ms = min(spec.log_retention_ms, self._config.ms("reader.grace.ms"))
        return self._clock.steady_ms() + wait_ms + 1_000

    def _checkpoint(self, handle: TableHandle, maintained: _TableProgress) -> None:
        handle.checkpoint()
        maintained.checkpointed_version = handle.version
        self._crash_point("housekeeping.checkpointed")

    def _clean(self, handle: TableHandle, maintained: _TableProgress) -> None:
        """Remove unneeded files and log entries of a table that this leader has committed to.

        On a store each look costs requests. So the next one comes when something may be removed, or in an hour.
        """
        steady_ms, name, grace_ms = self._clock.steady_ms(), handle.spec.name, self._config.ms("reader.grace.ms")
        is_later = maintained.removable_at_ms > steady_ms
        maintained.clean_at_ms = maintained.removable_at_ms if is_later else steady_ms + SWEEP_MS
        retention_ms = self._find_log_retention_ms(handle)
        handle.expire_log(retention_ms)
        if handle.spec is FINAL_MESSAGES:
            # Entries of the log name removed files, and queries read them. New ones come when a pass has their step.
            wait_ms = 2 * STALE_MS + self._config.ms("project.interval.ms")
            kept_ms = max(grace_ms, retention_ms, self._config.ms("merge.grace.ms"), wait_ms)
            self._leftovers.delete(name, kept_ms, handle.open_newest)
        if handle.spec.shape == "data":
            return
        self._leftovers.delete(name, grace_ms, handle.open_newest)
        if maintained.swept_at_ms is None or steady_ms - maintained.swept_at_ms >= SWEEP_MS:
            maintained.swept_at_ms = steady_ms
            self._leftovers.sweep(name, grace_ms, handle.open_newest)


def iterate_by_hours(handle: TableHandle, files: Sequence[StoredFile]) -> Iterator[pa.Table]:
    """Yield the rows of these files of `delayed` in pieces that end with an hour.

    All rows of a key have the same hour, so each piece has whole keys. The table may have millions of rows.
    """
    counts = Counter[int]()
    for file in files:
        for counted in pc.value_counts(handle.read(["due_hour"], files=[file]).column("due_hour")).to_pylist():
            counts[counted["values"]] += counted["counts"]
    hours = sorted(counts)
    first = 0
    while first < len(hours):
        after, count = first, 0
        while after < len(hours) and (after == first or count + counts[hours[after]] <= _MERGED_ROWS):
            count += counts[hours[after]]
            after += 1
        yield handle.read(files=files, due_hour=(hours[first], hours[after - 1]))
        first = after


def _drop_outdated_rows(
    spec: TableSpec, rows: pa.Table, floor: int, whole: bool, history_since_ms: int = 0
) -> pa.Table:
    """Return the rows that a merge keeps.

    These are all rows of a log; of a changelog, the newest per key up to the floor and all later ones.

    Args:
        whole: the rows are the whole table, so that a key removed by the floor needs no row.
    """
    if spec.name == WATERMARKS.name:
        return select_newest(rows.append_column("all", pa.repeat(0, rows.num_rows)), ["all"]).drop_columns("all")
    if spec.shape != "changelog":
        return rows
    settled = select_newest(rows.filter(pc.field("step") <= floor), spec.keys)
    if whole and "removed" in settled.column_names:
        is_shown = pc.field("changed_at_ms") >= history_since_ms if spec.name == DELAYED.name else pc.scalar(False)
        settled = settled.filter(~pc.field("removed") | is_shown)
    return pa.concat_tables([settled, rows.filter(pc.field("step") > floor)])
