"""Remove what nothing needs any more: data files, and old steps.

How the removal of a data file is safe: the leader first commits to every table that may come to name the file
(`claim`). A leader that was stopped just before naming it can then no longer commit. Only then does the leader look for
names of the file: in waiting letters, in the steps after the watermark and in all tables, in this order, because a step
names a letter's file before the letter is deleted. Rows of docs/architecture.md: publish 14.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from threading import Lock

import pyarrow.compute as pc

from lakemq.tables.specs.messages import DELAYED, MESSAGES, SEQUENCERS_FILES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.mailbox import Mailbox
from lakemq.tables.storage.coordination.step_objects import KEPT_MS, list_steps, step_name
from lakemq.tables.storage.delta.leftovers import ExpiredLists, Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle, select_newest
from lakemq.tables.storage.object_stores.files import Files

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.step_reader import StepReader
from ..namespace.waiting_rows import WaitingRows
from ..protocol.codec.letter import decode_letter
from ..protocol.rows.log import find_named_files
from ..protocol.values.log import Produce

UNLISTED_MS = 300_000
"""Age at which a leftover file leaves the table. No query opens `messages` so long after `segments`."""
_WAIT_S = 2
"""How long a removal waits for the lock. Where messages keep dying, a search holds it most of the time."""

POINTING = tuple(spec.name for spec in TABLES if spec.shape != "data" and "file_id" in spec.stored_schema.names)
"""The tables whose rows point at message rows."""

TABLES_LOOKED_AT = (MESSAGES.name, *POINTING)

Handles = Mapping[str, TableHandle]
"""The leader's own, each at the version of its last commit."""


class DataFileRemover:
    """The removals of one term of leadership. It works between two passes, with the handles of the passes."""

    def __init__(
        self,
        store: Store,
        leftovers: Leftovers,
        clock: Clock,
        grace_ms: int,
        removing: Lock,
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """Args:
        grace_ms: merge.grace.ms. Younger leftovers stay.
        removing: held while files are removed. A search for dying messages holds it while its findings name files.
        """
        self._store, self._leftovers, self._clock = store, leftovers, clock
        self._grace_ms, self._removing, self._crash_point = grace_ms, removing, crash_point
        self._looked_at_ms: int | None = None
        self._named: set[str] = set()
        """Files of the table that were listed as left over when they were still named: they are not looked for."""

    def remove(self, handles: Handles, step: int) -> None:
        """Remove files that were replaced, or written in vain, and that nothing names.

        They leave the table after UNLISTED_MS, so that queries do not read them in vain, and the store after the grace.
        On a store each look costs requests, so there is none before something new can be old enough.
        """
        graces_ms = (min(UNLISTED_MS, self._grace_ms), self._grace_ms)
        now_ms, looked_at_ms = self._clock.steady_ms(), self._looked_at_ms
        if looked_at_ms is not None and now_ms - looked_at_ms < graces_ms[0]:
            return
        unlisted, expired = self._leftovers.find_expired_lists(MESSAGES.name, *graces_ms)
        listed = {file.path for file in handles[MESSAGES.name].files()} & unlisted.paths
        if not (listed - self._named or expired.lists):
            self._looked_at_ms = now_ms
            return
        if not self._removing.acquire(timeout=_WAIT_S):
            return  # the next pass tries again
        try:
            for name in TABLES_LOOKED_AT:
                handles[name].claim()
            unnamed = self._find_unnamed_files(unlisted, handles, step)
            self._named = listed - unnamed
            self._unlist_files(handles[MESSAGES.name], unnamed)
            self._delete_files(expired, unnamed & expired.paths)
        finally:
            self._removing.release()

    def _unlist_files(self, messages: TableHandle, unnamed: set[str]) -> None:
        listed = [file for file in messages.files() if file.path in unnamed]
        if listed:
            messages.replace_at(messages.version, [], listed)
            self._crash_point("housekeeping.old_removed")

    def _delete_files(self, expired: ExpiredLists, unnamed: set[str]) -> None:
        if self._leftovers.delete_expired_files(expired, MESSAGES.name, unnamed) and unnamed:
            self._crash_point("housekeeping.old_deleted")

    def _find_unnamed_files(self, leftover: ExpiredLists, handles: Handles, step: int) -> set[str]:
        """Return the files of the lists that nothing names.

        The order of looking matters. A name only moves from letters to steps, and from there to the tables, and
        is in the next place before it leaves the one before. So no name escapes a look in this order.
        """
        is_publishers = any(parse_file_id(path) < SEQUENCERS_FILES for path in leftover.paths)
        named = {-1, *(self._read_file_ids_in_letters() if is_publishers else ())}
        named |= find_named_files(StepReader(self._store, step, self._clock.steady_ms).read())
        named = named.union(*(read_named_file_ids(handles[name]) for name in POINTING))
        return {path for path in leftover.paths if parse_file_id(path) not in named}

    def _read_file_ids_in_letters(self) -> Iterator[int]:
        """Yield the ids of files that waiting letters name.

        Skip unreadable letters: a request with so old a file is refused.
        """
        mailbox = Mailbox(self._store.files)
        for name in mailbox.iterate_letters():
            try:
                body = mailbox.read(name)
                requests = [] if body is None else decode_letter(body)[0].requests
            except (OSError, ValueError):
                continue
            for request in requests:
                if isinstance(request, Produce):
                    yield from (file.file_id for file in request.files)


_NAME = re.compile(r"([0-9a-f]{16})\.parquet")


def parse_file_id(path: str) -> int:
    """Return the id of a data file, or -1 for a foreign file, which is never touched."""
    name = _NAME.fullmatch(path)
    return int(name[1], 16) if name else -1


def read_named_file_ids(handle: TableHandle) -> set[int]:
    """Return the ids of all files that rows of the table point at.

    In a changelog, only rows of keys that still exist count.
    """
    if handle.spec.shape != "changelog":
        return set(handle.read(["file_id"]).column("file_id").unique().drop_null().to_pylist())
    if handle.spec.name == DELAYED.name:  # it may have millions of rows
        return WaitingRows(handle).read_file_ids()
    rows = select_newest(handle.read(["step", "removed", *handle.spec.keys]), handle.spec.keys)
    return set(rows.filter(~pc.field("removed")).column("file_id").to_pylist())


# Remove old step objects, one after the other in ascending order.
#
# Invariant: a step is removed only if a later watermark has been durable for KEPT_MS, by this process's steady clock.
# So every reader that has begun at an older watermark has noticed by then (see `step_objects`), and the newest step
# stays.


_MOST_MS = 500
"""Time that one call may take, because a pass waits for it. What is left is removed after the next pass."""


class StepRemoval:
    """Removes old step objects during one term. Not thread-safe."""

    def __init__(
        self, files: Files, clock: Clock, watermark_step: int, crash_point: crash.CrashPoint = crash.nowhere
    ) -> None:
        """watermark_step: of the newest watermark. It counts as written now, whenever that was."""
        self._files, self._clock, self._crash_point = files, clock, crash_point
        self._watermarks = deque([(clock.steady_ms(), watermark_step)])
        self._waiting: deque[int] | None = None
        self._end = 0

    def note_watermark(self, step: int) -> None:
        """Note that the watermark of this step has just been written durably."""
        self._watermarks.append((self._clock.steady_ms(), step))

    def remove_old(self) -> None:
        """Remove the steps before the newest watermark that is KEPT_MS old. Raises OSError; go on at the next call."""
        begun_ms = self._clock.steady_ms()
        while len(self._watermarks) > 1 and self._watermarks[1][0] <= begun_ms - KEPT_MS:
            self._watermarks.popleft()
        written_ms, end = self._watermarks[0]
        if written_ms > begun_ms - KEPT_MS:
            return
        if self._waiting is None:  # earlier leaders may have left some
            self._waiting = deque(step for step in list_steps(self._files) if step < end)
        else:
            self._waiting.extend(range(self._end, end))
        self._end = max(end, self._end)
        while self._waiting and self._clock.steady_ms() - begun_ms <= _MOST_MS:
            self._files.delete([step_name(self._waiting[0])])
            self._waiting.popleft()
            self._crash_point("housekeeping.step_removed")
