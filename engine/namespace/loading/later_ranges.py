"""Ranges that are due much later, read by a thread of their own while the sequencer already works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from typing import TypeVar

from lakemq.tables.specs.delayed import HOUR_MS
from lakemq.tables.storage.delta.store import Store

from ...protocol.errors import StorageError
from ...protocol.projection import NEAR_MS, pack_pieces
from ...protocol.values.delayed.waiting import CountedBlock
from ...protocol.values.state import State
from .damage import report_damage
from .waiting_rows import WaitingRows

T = TypeVar("T")

SWITCH_S = 0.0005
"""Time after which a thread gives up the interpreter's lock to one that waits for it, while ranges are read. A step
asks for the lock a dozen times; with Python's 5 ms, the slowest of a hundred took 10 ms longer."""

MIN_ROWS = 1 << 17
"""Fewer rows than this take less than about 0.1 s, so a start waits for them."""

LONGEST_WAIT_S = 1_800.0
"""How long a step waits for these ranges. Ten million take about ten seconds from a disk, longer from a store."""
_TURN_S = 0.2
"""How long to wait at once."""


class LaterRanges:
    """Reads the ranges of one term that are due much later.

    A start with ten million ranges would take seconds. Until they are read, the state expects their blocks, and a
    look-up that may need one of them waits (`PackedRanges`).
    """

    def __init__(self, workers: Executor, now_ms: int) -> None:
        """workers: reads the ranges, and is shut down afterwards. now_ms: the present time."""
        self._workers, self._now_ms = workers, now_ms
        self._future: Future[list[CountedBlock]] | None = None
        self._is_stopped = False
        self.is_added = False
        """Whether the state has the ranges."""

    def start(self, store: Store, rows: WaitingRows, state: State) -> int | None:
        """Start to read, if that is worthwhile. Return the last hour that the caller reads itself; None: all hours."""
        last_hour = (max(state.now_ms, self._now_ms) + NEAR_MS) // HOUR_MS
        # the end of a transaction must find its ranges at once
        if rows.count_rows(last_hour + 1) < MIN_ROWS or rows.has_open(last_hour + 1):
            return None
        self._future = self._workers.submit(self._read, store, rows, last_hour + 1)
        state.delays.expect_blocks((last_hour + 1) * HOUR_MS, self._future.result)
        return last_hour

    @property
    def is_done(self) -> bool:
        return self._future is None or self._future.done()

    def wait_for_all(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all is read. Raises StorageError after LONGEST_WAIT_S.

        meanwhile: called several times in a second.
        """
        for _ in range(int(LONGEST_WAIT_S / _TURN_S)):
            if self._future is None or not wait([self._future], _TURN_S).not_done:
                return
            meanwhile()
        raise StorageError(f"The delayed messages that are due much later were not read in {LONGEST_WAIT_S:g} s.")

    def stop(self) -> None:
        """Stop reading: the term has ended, or all is read."""
        self._is_stopped = True
        self._future = None  # it would hold blocks that the state has merged meanwhile
        self._workers.shutdown(wait=False)

    def _read(self, store: Store, rows: WaitingRows, first_hour: int) -> list[CountedBlock]:
        with report_damage(store), _switch_threads_often():
            return list(pack_pieces(self._until_stopped(rows.read(first_hour))))

    def _until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if self._is_stopped:
                raise OSError("The term has ended.")
            yield item


@contextmanager
def _switch_threads_often() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
