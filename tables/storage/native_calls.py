"""Keep daemon threads out of native libraries when the interpreter ends.

A daemon thread that returns from a call of delta-rs, Arrow or DuckDB asks for the interpreter's lock. While the
interpreter ends it gets none. Python ends the thread there, its stack is unwound through frames of Rust or C++, which
do not expect that, and the process dies by a signal. So the exit waits until the calls have returned, and no daemon
thread begins another one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

log = logging.getLogger("lakemq.exit")

EXIT_TIMEOUT_S = 10.0
"""How long the exit waits for calls that have begun: a store may not answer."""

P = ParamSpec("P")
T = TypeVar("T")


class NativeCalls:
    """The calls of native libraries that this process is in. Thread-safe. A forked child starts with none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}
        """Id of a thread -> how many guarded calls it is in, one within the other."""
        self._has_ended = False
        os.register_at_fork(after_in_child=self._forget_all)

    def guard(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function as a guarded call. After `end` it ends a daemon thread by SystemExit, silently."""

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            thread_id = threading.get_ident()
            self._enter(thread_id)
            try:
                return function(*arguments, **options)
            finally:
                self._leave(thread_id)

        return call

    def _enter(self, thread_id: int) -> None:
        with self._changed:
            depth = self._depths.get(thread_id, 0)
            if self._has_ended and not depth and threading.current_thread().daemon:
                raise SystemExit
            self._depths[thread_id] = depth + 1

    def _leave(self, thread_id: int) -> None:
        with self._changed:
            if (depth := self._depths.pop(thread_id, 1)) > 1:
                self._depths[thread_id] = depth - 1
            elif self._has_ended:
                self._changed.notify_all()

    def end(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Let no daemon thread begin a call any more, and wait until the calls of other threads have returned."""
        own_id = threading.get_ident()
        with self._changed:
            self._has_ended = True
            if not self._changed.wait_for(lambda: self._depths.keys() <= {own_id}, timeout_s):
                log.error("Reads in the background did not end within %g s at exit. The process may crash.", timeout_s)

    def _forget_all(self) -> None:
        # the lock may be held by a thread that does not exist in the child
        self._changed = threading.Condition()
        self._depths, self._has_ended = {}, False


NATIVE_CALLS = NativeCalls()
"""The calls of this process."""
