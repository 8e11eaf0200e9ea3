"""Finish open work when the interpreter ends: first the producers send, then serving ends.

Why it exists: a script that forgets `close` should not lose its messages, and should not leave a lease behind that
other processes wait for.

Why two stages: an embedded sequencer answers the producers of its own process, so it must end after them. All hooks of
one stage run side by side, each in a daemon thread with a timeout. A hook that hangs is logged and left behind.

Why group members have no hook: a consumer that still polls in another thread would hold up the exit. The leader finds
such a member as it finds one that was killed.

When the hooks run: Python calls them after all non-daemon threads have ended, while daemon threads still run. It calls
none of them after a signal without a handler (SIGTERM, SIGKILL) or after `os._exit`. `multiprocessing` ends its forked
children with `os._exit`; there its own finalizers run the hooks (`_run_after_threads`).
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from lakemq.tables.storage.native_calls import NATIVE_CALLS

log = logging.getLogger("lakemq.exit")

# Hooks that run when the interpreter ends.


_AFTER_OTHER_FINALIZERS = -1_000
"""Priority among the finalizers of multiprocessing. The highest runs first, and its own go down to -100."""


class Stage(IntEnum):
    """The order of hooks. The next stage begins when all hooks of this one have ended or were given up."""

    PRODUCERS = 0
    SERVING = 1


@dataclass(frozen=True, eq=False)
class ExitHook:
    """A call that is made once at exit, unless `cancel` comes first."""

    stage: Stage
    name: str
    call: Callable[[], object]
    timeout_s: float
    registry: ExitHooks

    def cancel(self) -> None:
        """Remove the hook, because its object was closed. May be called again, and in a forked process."""
        self.registry.remove(self)


class ExitHooks:
    """The hooks of one process. Thread-safe. A forked child starts with none: the objects belong to its parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: list[ExitHook] = []
        self.has_ended_serving = False
        """Whether a sequencer of this process has ended with the interpreter."""
        self._has_finalizer = False
        os.register_at_fork(after_in_child=self._forget_all)

    def add(self, stage: Stage, name: str, call: Callable[[], object], timeout_s: float) -> ExitHook:
        """Register a hook.

        Args:
            stage: when it runs; the hooks of one stage run side by side.
            name: what is closed, for the log, such as "The producer of topic 'orders'".
            call: must be safe to call after the object was closed. Its errors are logged.
            timeout_s: after so long the exit goes on without it.
        """
        hook = ExitHook(stage, name, call, timeout_s, self)
        with self._lock:
            self._hooks.append(hook)
            if not self._has_finalizer and _is_child_of_multiprocessing():
                self._add_finalizer()
        return hook

    def _add_finalizer(self) -> None:
        from multiprocessing.util import Finalize  # loaded already in its children, and of no use elsewhere

        Finalize(None, self._run_after_threads, exitpriority=_AFTER_OTHER_FINALIZERS)
        self._has_finalizer = True

    def _run_after_threads(self) -> None:
        """Run the hooks when all non-daemon threads have ended, in a child of multiprocessing.

        Its finalizers run before Python waits for threads, which may still send. Waiting for them here could block
        forever: the threads of a `ThreadPoolExecutor` end only after this point. So a new non-daemon thread waits for
        the others, and Python waits for that thread.
        """
        if not threading.main_thread().is_alive():  # called by atexit: Python has waited for the threads
            self.run()
            return

        def wait_and_run() -> None:
            # each thread may start others while it is waited for
            while other := _find_other_thread():
                other.join()
            self.run()

        threading.Thread(target=wait_and_run, name="lakemq-exit", daemon=False).start()

    def remove(self, hook: ExitHook) -> None:
        with self._lock:
            if hook in self._hooks:
                self._hooks.remove(hook)

    def run(self) -> None:
        """Run every hook once, stage by stage. Ctrl-C gives up the remaining hooks."""
        try:
            for stage in Stage:
                self._run_stage(stage)
        except KeyboardInterrupt:
            log.warning("Interrupted: producers and sequencers that are still open are not closed.")
            self._forget_all()

    def _run_stage(self, stage: Stage) -> None:
        with self._lock:
            hooks = [hook for hook in self._hooks if hook.stage == stage]
            self._hooks = [hook for hook in self._hooks if hook.stage != stage]
        begun_s = time.monotonic()
        self.has_ended_serving |= stage is Stage.SERVING and bool(hooks)
        running = [(hook, thread) for hook in hooks if (thread := _start(hook)) is not None]
        for hook, thread in running:
            # they began together, so each is given its time from the same moment
            thread.join(max(0.0, begun_s + hook.timeout_s - time.monotonic()))
            if thread.is_alive():
                log.error("%s did not end within %g s at exit, and will not be closed.", hook.name, hook.timeout_s)

    def _forget_all(self) -> None:
        # in a forked child the lock may be held by a thread that does not exist there
        self._lock = threading.Lock()
        self._hooks = []
        self.has_ended_serving = self._has_finalizer = False


def _is_child_of_multiprocessing() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _find_other_thread() -> threading.Thread | None:
    """Return a thread that Python waits for at exit, other than the main thread and the calling one."""
    own = threading.main_thread(), threading.current_thread()
    return next((thread for thread in threading.enumerate() if not thread.daemon and thread not in own), None)


def _start(hook: ExitHook) -> threading.Thread | None:
    """Start the hook in a thread that can be left behind. None: no thread could be started, so the hook ran here."""
    # a daemon thread: the interpreter would wait for another one without an end
    thread = threading.Thread(target=_call, args=(hook,), name=f"lakemq-exit-{hook.stage.name.lower()}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no room for a thread, or a Python (3.12.0, 3.12.1) that starts none at exit
        _call(hook)
        return None
    return thread


def _call(hook: ExitHook) -> None:
    try:
        hook.call()
    except BaseException as error:  # whatever fails here, the next hooks must run
        log.error("%s could not be closed at exit: %s: %s", hook.name, type(error).__name__, error)


HOOKS = ExitHooks()
"""The hooks of this process."""

# in the reverse order: producers and sequencers read and write while they end
atexit.register(NATIVE_CALLS.end)
atexit.register(HOOKS.run)
