"""End the producers of this process that are open when the interpreter exits."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ...namespace.at_exit import HOOKS, ExitHook, Stage
from ...namespace.process import INTERRUPT_GRACE_S
from .record_producer import RecordProducer

log = logging.getLogger("lakemq.producer")

# The producers of a connection that are not closed yet, and how they end when the interpreter exits.


EXIT_TIMEOUT_S = 30.0
"""How long the exit waits for messages that were not flushed: as long as request.timeout.ms by default. After Ctrl-C it
waits for INTERRUPT_GRACE_S."""
_ADVICE = "Call flush() or close(), or use the producer in a `with` block, to get the error in your program."

_QUIET_S = 2.0
"""After this time the exit says on stderr what it waits for."""
_SPARE_S = 10.0
"""Extra time for the hook, beyond the wait, to abort open transactions."""


class OpenProducers:
    """Producers that are open. Thread-safe.

    At exit they finish in this order, in one hook for all of them:

    1. If something is left to send, start a sequencer again if this process had one. Otherwise the messages would wait
       for a sequencer that has just ended with the program.
    2. Let all producers end at once, so that their waits overlap, and wait until they have sent their buffers. After
       2 s say on stderr what the exit waits for, so that a program that hangs explains itself.
    3. Name on stderr what was not delivered. No call of the program is left that could raise, and Python ignores
       errors and exit codes of functions that run at exit.
    4. Abort open transactions, last: they are worth no wait, and a timeout aborts them if the time is over.
    """

    def __init__(self, serve: Callable[[], object]) -> None:
        """serve: called at exit if something is left to send. It starts a sequencer again if there was one."""
        self._serve = serve
        self._lock = threading.Lock()
        self._producers: set[RecordProducer] = set()
        self._hook: ExitHook | None = None

    def add(self, producer: RecordProducer) -> None:
        with self._lock:
            self._producers.add(producer)
            if self._hook is None:
                call, timeout_s = self.finish_at_exit, EXIT_TIMEOUT_S + _SPARE_S
                self._hook = HOOKS.add(Stage.PRODUCERS, "The producers of a connection", call, timeout_s)

    def discard(self, producer: RecordProducer) -> None:
        """Forget a closed producer."""
        with self._lock:
            self._producers.discard(producer)
            if self._hook is not None and not self._producers:
                self._hook.cancel()
                self._hook = None

    def give_up(self) -> None:
        """Forget the producers that Ctrl-C left open, and log what they did not deliver."""
        for producer in self:
            self.discard(producer)
            log.warning("Interrupted. %s", producer._describe_losses() or "The producer is still closing.")

    def __iter__(self) -> Iterator[RecordProducer]:
        with self._lock:
            return iter(list(self._producers))

    def __len__(self) -> int:
        return len(self._producers)

    def have_open_work(self) -> bool:
        """Return whether closing them sends something that a sequencer must answer."""
        return any(producer._has_open_work() for producer in self)

    def finish_at_exit(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Send what is left, within `timeout_s`, and say on stderr what was not delivered."""
        if getattr(sys, "last_type", None) is KeyboardInterrupt:  # it was not caught, and ends the program
            timeout_s = INTERRUPT_GRACE_S
        deadline_s = time.monotonic() + timeout_s
        if self.have_open_work():
            self._serve()
        producers = list(self)
        for producer in producers:
            producer._start_ending()
        self._wait(producers, min(deadline_s, time.monotonic() + _QUIET_S))
        waiting = sum(producer._unsettled_count() for producer in producers)
        if waiting and time.monotonic() < deadline_s:
            _print_to_stderr(
                f"waiting up to {timeout_s:g} s for {waiting} messages that were not flushed. Ctrl-C gives them up."
            )
            self._wait(producers, deadline_s)
        for producer in producers:
            if undelivered := producer._describe_losses():
                _print_to_stderr(f"{undelivered} {_ADVICE}")
        for producer in producers:
            producer._end_at_exit()

    @staticmethod
    def _wait(producers: list[RecordProducer], deadline_s: float) -> None:
        for producer in producers:
            producer._wait_for_end(max(0.0, deadline_s - time.monotonic()))


def _print_to_stderr(sentence: str) -> None:
    # not by logging: with a log handler, warnings may go where the user does not see them
    if sys.stderr is not None and not sys.stderr.closed:
        print(f"lakemq: {sentence}", file=sys.stderr, flush=True)
