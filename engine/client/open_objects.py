"""Track the open sequencers, producers and group members of a connection, and close them with it, or at exit."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from ..namespace import process
from ..namespace.at_exit import HOOKS, ExitHook, Stage
from ..namespace.process import INTERRUPT_GRACE_S, OwnLock, end_block
from ..protocol.errors import IllegalState
from .consume.open_members import OpenMember
from .producer.record_producer import RecordProducer

if TYPE_CHECKING:
    from ..sequencer.serving import Serving

log = logging.getLogger("lakemq.producer")

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
    3. Name on stderr the messages not delivered. No call of the program is left that could raise, and Python ignores
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


Closable = TypeVar("Closable", "RecordProducer", "Serving", "OpenMember")


class OpenObjects:
    """The objects that are open on a connection. Thread-safe.

    They belong to the process that made them. A forked process gets IllegalState.
    """

    def __init__(self, start_serving: Callable[[], Serving]) -> None:
        """start_serving: starts a sequencer, also while the connection closes."""
        self._start_serving = start_serving
        self._pid = os.getpid()
        self._lock = OwnLock("This connection")
        self._is_closed = False
        self.serving: list[Serving] = []
        self.producers = OpenProducers(self._serve_again)
        self.members: WeakSet[OpenMember] = WeakSet()
        """Each is kept by its consumer, and by what closes it if that is garbage."""

    def check_process(self) -> None:
        """Raise IllegalState in a forked process."""
        if process.current_id != self._pid:
            raise process.build_fork_error("This connection")

    def check_open(self) -> None:
        """Raise IllegalState if the connection is closed, or in a forked process."""
        self.check_process()
        if self._is_closed:
            raise IllegalState("This connection is closed.")

    def register(self, closable: Closable, keep: Callable[[Closable], None]) -> Closable:
        """Close the object with the connection; now, with IllegalState, if that is closed already."""
        with self._lock.own:
            if not self._is_closed:
                keep(closable)
                return closable
        closable.close()
        raise IllegalState("This connection is closed.")

    def close(self, shared: Sequence[Callable[[], object]]) -> None:
        """Close members and producers, then what they share, then the sequencers.

        If this process served before, but members or producers still need answers, a sequencer runs until they have
        them. An error of one object does not keep the others from being closed. After Ctrl-C the others close in a
        daemon thread.

        Raises:
            IllegalState: the call comes from a callback of a producer. Nothing is closed.
            LakeMQError: the first error of the closed objects.
        """
        if os.getpid() != self._pid:
            return  # everything belongs to the parent process
        with self._lock.own:
            if self._is_closed:
                return
            producers = list(self.producers)
            for producer in producers:
                producer._check_can_wait()
            self._is_closed = True
        for producer in producers:
            producer._stop_accepting()
        members = list(self.members)
        if any(member.has_to_leave for member in members) or self.producers.have_open_work():
            self._serve_again()
        calls = iter(
            (
                *(member.close for member in members),
                *(producer.close for producer in producers),
                *shared,
                *(serving.close for serving in self.serving),
            )
        )
        try:
            _close_each(calls)
        except KeyboardInterrupt as interrupt:  # the calls that are left would wait, too, each for its own Ctrl-C
            end_block(type(interrupt), lambda: _close_each(calls))
            self.producers.give_up()
            raise

    def _serve_again(self) -> None:
        """Serve until the connection is closed, if it has served before and does not serve any more.

        In `with connect() as mq, mq.serving():` the sequencer ends first. Requests that the closing connection sends
        would then wait for their timeouts, because there may be no other sequencer.
        """
        if self.serving and all(serving.is_closed for serving in self.serving):
            self.serving.append(self._start_serving())


def _close_each(calls: Iterator[Callable[[], object]]) -> None:
    """Make these calls, and raise their first error at the end. KeyboardInterrupt is raised at once."""
    errors: list[BaseException] = []
    for close in calls:
        try:
            close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]
