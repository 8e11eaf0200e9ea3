"""Background: what is decided is projected by another thread, while the step goes on.

Invariant: a step leaves the tail only when the pass that holds it is complete, its watermark included. What a pass
failed with is raised by the next call here, never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait

import pyarrow as pa

from lakemq.tables.storage.commits import StoredFile
from lakemq.tables.storage.store import Store

from ..maintenance.housekeeping import Housekeeping, JournalMerge
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..protocol.errors import NotLeader, StorageError
from ..protocol.values.journal import Step
from ..protocol.values.state import State
from .journal import Journal
from .pending import PASS_BYTES, Pending
from .projector import Projection, Projector, plan_projection

log = logging.getLogger("lakemq.serve")

LONGEST_TAIL = 1000
"""Steps after which a projection is due whatever project.interval.ms says: the tail is in memory, and recovered."""


MOST_IN_TAIL = 10_000
"""Steps that may wait for a pass: memory, and what a new leader would have to replay."""

_TURN_S = 0.1


class Background:
    """Of one term of leadership. Called by the sequencer's thread; a pass runs in `executor`, one at a time."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        pending: Pending,
        housekeeping: Housekeeping,
        projector: Projector,
        executor: Executor,
        clock: Clock,
        config: EngineConfig,
        tail: Sequence[Step],
    ) -> None:
        """tail: the steps that landed after the last watermark, in order."""
        self._store, self._journal, self._pending = store, journal, pending
        self._housekeeping, self._projector = housekeeping, projector
        self._executor, self._clock, self._config = executor, clock, config
        self._tail = list(tail)
        self._running: Future[JournalMerge | None] | None = None
        self._in_pass = 0
        self._begun_at_ms = clock.steady_ms()

    def landed(self, step: Step) -> None:
        """A step to be projected."""
        self._tail.append(step)

    def collect(self) -> None:
        """Take over what the background has finished, if it has. Raises what it failed with, NotLeader."""
        if self._running is not None and self._running.done():
            self._finish()

    def project_if_due(self, state: State, alive: Callable[[], None]) -> None:
        """Begin a pass when it is time and none is running. `state`: the fold up to the last step that landed.

        Where passes are slower than steps, the steps wait, so that the tail has a bound. alive: called meanwhile.
        Raises StorageError when a pass does not end in step.timeout.ms.
        """
        if self._running is not None and len(self._tail) >= MOST_IN_TAIL:
            self._wait(self._running, alive)
            self._finish()
        if self._running is None and self._is_due():
            self._begin(state)

    def _wait(self, running: Future[JournalMerge | None], alive: Callable[[], None]) -> None:
        timeout_ms = self._config.ms("step.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while not wait([running], _TURN_S).done:
            if self._clock.steady_ms() > deadline_ms:
                raise StorageError(
                    f"A projection did not end in {timeout_ms} ms.", found=f"{len(self._tail)} steps wait"
                )
            alive()

    def drain(self, state: State) -> None:
        """Project all that has landed, and see it done. Raises what it failed with, NotLeader."""
        while self._tail or self._running is not None:
            if self._running is None:
                self._begin(state)
            self._finish()

    def abandon(self) -> None:
        """Wait for the running pass, if any; what it wrote was decided, hence is right whoever leads now."""
        running, self._running = self._running, None
        error = None if running is None else running.exception()
        if error is not None and not isinstance(error, NotLeader):
            log.error("Projecting has failed: %s", error, exc_info=None if isinstance(error, OSError) else error)

    def _is_due(self) -> bool:
        since_ms = self._clock.steady_ms() - self._begun_at_ms
        interval_ms = self._config.ms("project.interval.ms")
        is_long = len(self._tail) >= LONGEST_TAIL or self._pending.size_bytes >= PASS_BYTES
        return bool(self._tail) and (since_ms >= interval_ms or is_long)

    def _begin(self, state: State) -> None:
        self._in_pass = len(self._tail)
        self._pending.close()
        self._begun_at_ms = self._clock.steady_ms()
        work = plan_projection(state, self._tail, self._housekeeping.floor, self._housekeeping.journal_start)
        self._running = self._executor.submit(
            self._write,
            work,
            self._journal.lookout(),
            self._journal.version,
            self._journal.files,
            self._journal.kept(),
        )

    def _write(
        self,
        work: Projection,
        look: Callable[[], None],
        version: int,
        files: Sequence[StoredFile],
        kept: Mapping[str, pa.Table],
    ) -> JournalMerge | None:
        """In the background. look, version, files, kept: the journal's when the pass began."""
        self._projector.write(work, look)
        return self._housekeeping.maintain_journal(self._store, version, files, kept, work.step)

    def _finish(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        merge = running.result()
        del self._tail[: self._in_pass]
        if merge is not None:
            self._journal.replace(merge.add, merge.remove)
            self._housekeeping.merged_journal(merge)
