"""Worker threads that work until the process ends, and never keep it from ending.

The threads of concurrent.futures refuse work once the main thread has ended, even if other threads go on. The
interpreter also waits for them at exit, although the store may have hung one of them for good.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
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
