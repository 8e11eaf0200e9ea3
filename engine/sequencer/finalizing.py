"""Schedule the writing of messages that become final. A step decides what was written."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from ..maintenance.final_files import STALE_MS
from ..namespace.clock import Clock
from ..protocol.values.log import RangesWritten
from ..protocol.values.state import State
from ..protocol.values.topics import Topic

log = logging.getLogger("lakemq.serve")

_SOON_MS = 20
_MANY_FILES = 50
"""Files that one step decides."""


class Finalizing:
    """The runs of one term. The sequencer's thread calls it; a run writes files in `executor`."""

    def __init__(
        self,
        write: Callable[[Mapping[int, Topic], Callable[[RangesWritten], None]], None],
        executor: Executor,
        clock: Clock,
        interval_ms: int,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        write: takes the topics, writes files, and passes each on when it is written.
        interval_ms: from the beginning of a run to the next. 0: there are none.
        wake: lets the next step begin. A thread calls it when a file is written, and when a run has ended.
        """
        self._write, self._executor, self._clock, self._interval_ms = write, executor, clock, interval_ms
        self._wake = wake
        self._begun_ms = self._due_ms = clock.steady_ms()
        self._running: Future[None] | None = None
        self._written: deque[tuple[float, RangesWritten]] = deque()
        """What a run has passed on, and when: a long run must not wait for its end, when its first files are stale."""

    @property
    def is_working(self) -> bool:
        """Whether a run has files that are not decided yet."""
        return bool(self._written) or (
            self._running is not None and self._clock.steady_ms() < self._begun_ms + STALE_MS
        )

    def due_in_ms(self) -> float | None:
        """Return in how many ms there is work. None: not before `wake`, or never."""
        if self._written:
            return 0
        if self._running is not None:
            return None
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms()) if self._interval_ms else None

    def take_written(self, state: State) -> list[RangesWritten]:
        """Return what the next step must decide, and begin a run when one is due.

        A step decides one file of a topic, so that the steps of its files say in which order they are.
        """
        now_ms = self._clock.steady_ms()
        if self._running is not None and self._running.done():
            self._report_failure(self._running)
            self._running = None
        while self._written and now_ms >= self._written[0][0] + STALE_MS:
            self._written.popleft()
        if self._interval_ms and self._running is None and not self._written and now_ms >= self._due_ms:
            self._begun_ms, self._due_ms = now_ms, now_ms + self._interval_ms
            self._running = self._executor.submit(self._write, state.snapshot().topics, self._put)
            self._running.add_done_callback(lambda _: self._wake())
        batch: dict[int, RangesWritten] = {}
        while self._written and len(batch) < _MANY_FILES and self._written[0][1].topic_id not in batch:
            _, written = self._written.popleft()
            batch[written.topic_id] = written
        return list(batch.values())

    def _put(self, written: RangesWritten) -> None:
        """Take a file from the thread of the run."""
        self._written.append((self._clock.steady_ms(), written))
        self._wake()

    def _report_failure(self, running: Future[None]) -> None:
        error = running.exception()
        if error is not None:  # whatever the store raises: publishing goes on
            is_known = isinstance(error, OSError)
            log.warning("Messages do not become final: %s", error, exc_info=None if is_known else error)
