"""Keep daemon threads out of native libraries when the interpreter ends; and workers that do not keep it from ending.

A daemon thread that returns from a call of delta-rs, Arrow or DuckDB asks for the interpreter's lock. While the
interpreter ends it gets none. Python ends the thread there, its stack is unwound through frames of Rust or C++, which
do not expect that, and the process dies by a signal. So the exit interrupts queries, waits until the calls have
returned, and no daemon thread begins another one. A long call is made of guarded pieces, so that it ends between two.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

log = logging.getLogger("lakemq.exit")

EXIT_TIMEOUT_S = 30.0
"""How long the exit waits for calls that have begun: a store may not answer. A request to it may take as long."""

_INTERRUPT_S = 0.05
"""How often the exit interrupts. An interrupt that comes before a query begins to run has no effect."""

_kept: list[object] = []
"""What could be interrupted at the end. The interpreter frees it with the module, in the main thread."""

P = ParamSpec("P")
T = TypeVar("T")


class Interruptible(Protocol):
    """An object that may run native code, which a Python exception does not reach."""

    def interrupt(self) -> None: ...


class NativeCalls:
    """The calls of native libraries that this process is in. Thread-safe. A forked child starts with none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}
        """Id of a thread -> how many guarded calls it is in, one within the other."""
        self._has_ended = False
        self._interruptible: WeakSet[Interruptible] = WeakSet()
        os.register_at_fork(after_in_child=self._forget_all)

    def guard(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function as a guarded call. After `end` it ends a daemon thread by SystemExit, silently."""

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            thread_id = threading.get_ident()
            with self._changed:
                if self._has_ended and threading.current_thread().daemon:
                    raise SystemExit
                self._depths[thread_id] = self._depths.get(thread_id, 0) + 1
            try:
                return function(*arguments, **options)
            except BaseException:
                if not self.has_ended_for(threading.current_thread()):
                    raise
                # The exit's interrupt. The error is dropped here, while the exit waits: it keeps objects of DuckDB,
                # which give up the interpreter's lock when they are freed.
            finally:
                with self._changed:
                    if (depth := self._depths.pop(thread_id, 1)) > 1:
                        self._depths[thread_id] = depth - 1
                    elif self._has_ended:
                        self._changed.notify_all()
            raise SystemExit

        return call

    def has_ended_for(self, thread: threading.Thread) -> bool:
        """Return whether the thread may begin no call any more."""
        return self._has_ended and thread.daemon

    def add_interruptible(self, target: Interruptible) -> None:
        """Let `interrupt` interrupt this object, as long as it exists."""
        self._interruptible.add(target)

    def interrupt(self) -> None:
        """Interrupt what the objects run now."""
        for target in list(self._interruptible):
            with suppress(Exception):  # a connection that is closed refuses it
                target.interrupt()

    def end(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Let no daemon thread begin a call any more. Interrupt the calls of other threads until all have returned."""
        own_id, ends_s = threading.get_ident(), time.monotonic() + timeout_s
        self._has_ended = True
        while True:
            _kept[:] = self._interruptible
            self.interrupt()
            with self._changed:
                left_s = ends_s - time.monotonic()
                if self._changed.wait_for(lambda: self._depths.keys() <= {own_id}, max(0, min(_INTERRUPT_S, left_s))):
                    return
            if left_s <= 0:
                log.error("Reads in the background did not end within %g s at exit. The process may crash.", timeout_s)
                _kept.clear()  # to free what still runs would wait for it
                return

    def _forget_all(self) -> None:
        # the lock may be held by a thread that does not exist in the child
        self._changed = threading.Condition()
        self._depths, self._has_ended = {}, False


NATIVE_CALLS = NativeCalls()
"""The calls of this process."""


# Worker threads that work until the process ends, and never keep it from ending.
#
# The threads of concurrent.futures refuse work once the main thread has ended, even if other threads go on. The
# interpreter also waits for them at exit, although the store may have hung one of them for good.


_Work = tuple["Future[Any]", Callable[[], Any]]


class Workers(Executor):
    """An executor with at most `count` daemon threads, which start when there is work."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._lock, self._is_shut = threading.Lock(), False
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit work. Raises RuntimeError after a shutdown, or if no thread can be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError(f"{self._name} was shut down")
            if len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._waiting.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish pending work, or cancel it. wait: block until then."""
        with self._lock:
            self._is_shut = True
            threads = list(self._threads)
        while cancel_futures and not self._waiting.empty():
            work = self._waiting.get()
            if work is not None:
                work[0].cancel()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads if wait else ():
            thread.join()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, act = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
