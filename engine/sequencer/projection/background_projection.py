"""Project decided steps in another thread while the sequencer goes on deciding.

Invariant: a step leaves the tail only when the pass that holds it is complete, including its watermark. If a pass
fails, the next call here raises its error; it is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotDone

from ...maintenance.housekeeping import Housekeeping
from ...namespace.config import EngineConfig
from ...namespace.processes.clock import Clock
from ...protocol.errors import NotLeader, StorageError
from ...protocol.values.journal import Step, is_renewal
from ...protocol.values.state import State
from ..step_log import StepLog
from .pending_file import PASS_DUE_BYTES, CurrentPendingFile
from .projector import Projector, plan_projection

log = logging.getLogger("lakemq.serve")

LONG_TAIL = 1000
"""Steps after which a pass is due whatever project.interval.ms says.

The tail is in memory, and a new leader replays it.
"""


MAX_TAIL = 10_000
"""Steps that may wait for a pass. More would take too much memory, and too long to replay."""

RENEWALS_INTERVAL_MS = 60_000
"""Least time between two passes while steps only renew the lease. On a store a pass costs requests."""

_TURN_S = 0.1


class BackgroundProjection:
    """The projection of one term. The sequencer's thread calls it; passes run in `executor`, one at a time."""

    def __init__(
        self,
        step_log: StepLog,
        pending_file: CurrentPendingFile,
        housekeeping: Housekeeping,
        projector: Projector,
        executor: Executor,
        clock: Clock,
        config: EngineConfig,
        tail: Sequence[Step],
    ) -> None:
        """tail: the steps that landed after the last watermark, in order."""
        self._log, self._pending_file = step_log, pending_file
        self._housekeeping, self._projector = housekeeping, projector
        self._executor, self._clock, self._config = executor, clock, config
        self._tail = list(tail)
        self._running: Future[None] | None = None
        self._steps_in_pass = 0
        self.planned_step = 0
        """The last step whose rows are computed. They are written, or being written."""
        # Steps that an earlier leader has left wait for no interval: they may have waited for this leader for long.
        self._begun_at_ms = clock.steady_ms() - (config.ms("project.interval.ms") if self._tail else 0)

    def add_step(self, step: Step) -> None:
        """Add a step that has landed."""
        self._tail.append(step)

    def finish_if_done(self) -> None:
        """Finish the running pass if it has ended. Raises what it failed with, NotLeader."""
        if self._running is not None and self._running.done():
            self._finish_pass()

    def project_if_due(self, state: State, give_sign_of_life: Callable[[], None]) -> None:
        """Begin a pass if one is due and none is running.

        If passes are slower than steps, the steps wait, so that the tail stays bounded.

        Args:
            state: the fold up to the last step that landed.
            give_sign_of_life: renews the lease if that is due. It is called repeatedly during that wait.

        Raises:
            StorageError: a pass does not end within step.timeout.ms.
        """
        if self._running is not None and len(self._tail) >= MAX_TAIL:
            self._wait_for_pass(self._running, give_sign_of_life)
            self._finish_pass()
        if self._running is None and self._is_due():
            self._begin_pass(state)

    def _wait_for_pass(self, running: Future[None], give_sign_of_life: Callable[[], None]) -> None:
        timeout_ms = self._config.ms("step.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while True:
            try:
                running.exception(_TURN_S)
            except NotDone:
                if self._clock.steady_ms() > deadline_ms:
                    raise StorageError(
                        f"A projection did not end in {timeout_ms} ms.", found=f"{len(self._tail)} steps wait"
                    ) from None
                give_sign_of_life()
            else:
                return

    def drain(self, state: State) -> None:
        """Project all steps that have landed, and wait for it.

        Raises what a pass failed with, NotLeader; StorageError if a pass does not end within step.timeout.ms.
        """
        while self._tail or self._running is not None:
            running = self._begin_pass(state) if self._running is None else self._running
            self._wait_for_pass(running, lambda: None)
            self._finish_pass()

    def abandon(self) -> None:
        """Wait for the running pass, if any, but no longer than step.timeout.ms.

        Its rows were decided, so they are right whoever leads now.
        """
        running, self._running = self._running, None
        if running is None:
            return
        try:
            self._wait_for_pass(running, lambda: None)
        except StorageError as late:
            log.error("Projecting goes on in its thread: %s", late)
            return
        error = running.exception()
        if error is not None and not isinstance(error, NotLeader):
            log.error("Projecting has failed: %s", error, exc_info=None if isinstance(error, OSError) else error)

    def _is_due(self) -> bool:
        since_ms = self._clock.steady_ms() - self._begun_at_ms
        interval_ms = self._config.ms("project.interval.ms")
        is_long = len(self._tail) >= LONG_TAIL or self._pending_file.size_bytes >= PASS_DUE_BYTES
        if not self._tail or (since_ms < RENEWALS_INTERVAL_MS and all(map(is_renewal, self._tail))):
            return False
        return since_ms >= interval_ms or is_long

    def _begin_pass(self, state: State) -> Future[None]:
        self._steps_in_pass = len(self._tail)
        self._pending_file.close()
        self._begun_at_ms = self._clock.steady_ms()
        work = plan_projection(state, self._tail, self._housekeeping.floor)
        self.planned_step = work.step
        self._running = self._executor.submit(self._projector.write, work, self._log.check_continuity)
        return self._running

    def _finish_pass(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        running.result()
        del self._tail[: self._steps_in_pass]
