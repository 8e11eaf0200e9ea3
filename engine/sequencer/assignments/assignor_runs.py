"""Run an assignor. If a plug-in fails or takes too long, a built-in assignor replaces it.

A plug-in is foreign code. All of it runs in a thread of its own: its import, its answer and the logging of its errors.
A thread cannot be ended from outside, so a hanging one is left alone. Its plug-in is not run again until it returns;
otherwise hanging threads would pile up.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from ...namespace.processes.process import start_thread
from ...protocol.assignors.assignor import Member, TopicPartition, check_assignment
from ...protocol.assignors.registry import BUILT_IN
from ...protocol.errors import UnknownServerError, UnsupportedAssignor
from .plugins import describe_error, find_assignor, shorten_to_line

log = logging.getLogger("lakemq.serve")

Assignment: TypeAlias = dict[str, list[TopicPartition]]


class PlugInFailed(Exception):
    """The plug-in gave no assignment; the text says why, in one line."""


@dataclass(frozen=True)
class ComputedAssignment:
    """An assignment of all members.

    assignor: its name, which differs from the requested one if there was a problem.
    """

    assignment: Mapping[str, list[TopicPartition]]
    assignor: str
    problem: str | None = None


class PlugInThreads:
    """The plug-in threads of one sequencer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging_threads: dict[str, list[threading.Thread]] = {}

    def run(self, name: str, work: Callable[[], Assignment], timeout_s: float) -> Assignment:
        """Run the work in a thread and return its result.

        Raises:
            PlugInFailed: it failed, took longer than timeout_s, or hangs since an earlier call.
        """
        self._refuse_hanging(name)
        future: Future[Assignment] = Future()
        try:
            thread = start_thread(lambda: _run_into_future(future, name, work), f"assignor-{name}")
        except UnknownServerError as error:
            raise PlugInFailed(str(error)) from None
        try:
            return future.result(timeout_s)
        except NotDone:
            with self._lock:
                self._hanging_threads.setdefault(name, []).append(thread)
            raise PlugInFailed(f"it took longer than {timeout_s:g} s") from None

    def _refuse_hanging(self, name: str) -> None:
        with self._lock:
            hanging = [thread for thread in self._hanging_threads.pop(name, ()) if thread.is_alive()]
            if hanging:
                self._hanging_threads[name] = hanging
                raise PlugInFailed("it was not run: a call before still hangs")


def compute_assignment(
    assignor_name: str,
    fallback_name: str,
    partition_counts: Mapping[str, int],
    members: Mapping[str, Member],
    timeout_s: float,
    run: Callable[[str, Callable[[], Assignment], float], Assignment],
) -> ComputedAssignment:
    """Return the assignment by the assignor, or by the fallback, which is built in.

    Blocks up to timeout_s for a plug-in, so the deciding thread must not call it. A built-in assignor runs here without
    a timeout: its replacement would not be quicker.

    Args:
        run: `PlugInThreads.run`.
    """
    if assignor_name in BUILT_IN:
        return ComputedAssignment(_compute_built_in(assignor_name, partition_counts, members), assignor_name)
    counts, member_copies = dict(partition_counts), dict(members)  # also when a thread that was given up is still at it

    def work() -> Assignment:
        try:
            assignor = find_assignor(assignor_name)
        except UnsupportedAssignor as unsupported:
            raise PlugInFailed(str(unsupported)) from None
        assignment = assignor(dict(counts), dict(member_copies))
        try:
            return check_assignment(assignment, counts, member_copies)
        except ValueError as nonsense:
            raise PlugInFailed(f"its assignment is invalid: {nonsense}") from None

    try:
        return ComputedAssignment(run(assignor_name, work, timeout_s), assignor_name)
    except PlugInFailed as failed:
        problem = shorten_to_line(f"{fallback_name} stands in for the assignor {assignor_name}: {failed}")
    return ComputedAssignment(_compute_built_in(fallback_name, partition_counts, members), fallback_name, problem)


def _compute_built_in(name: str, partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
    assignment = BUILT_IN[name](partition_counts, members)
    return {member_id: list(assignment[member_id]) for member_id in sorted(members)}


def _run_into_future(future: Future[Assignment], name: str, work: Callable[[], Assignment]) -> None:
    """Run the work, and put its result or a PlugInFailed into the future.

    No other exception, and no object of the plug-in, leaves.
    """
    try:
        future.set_result(work())
    except PlugInFailed as failed:
        future.set_exception(failed)
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too: they are meant for the plug-in alone
        future.set_exception(PlugInFailed(f"it raises {describe_error(error)}"))
        with suppress(BaseException):
            # log in this thread, as a handler may hang; and escape the text, as a file may not take a lone surrogate
            trace = traceback.format_exc().encode(errors="backslashreplace").decode()
            log.warning("The assignor %s raises: %s", name, trace)
