"""Assigning: an assignor is run, and where a plug-in does not answer well and in time, a built-in one stands in for it.

A plug-in is somebody else's code. It runs in a thread of its own, all of it: its import, its answer's reading, its
error's telling. A thread cannot be ended from outside, so that one that hangs is left to itself; and its plug-in is
left alone until it is back, else such threads would pile up.
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

from ..namespace.process import started_thread
from ..protocol.assignors.assignor import Member, TopicPartition, check
from ..protocol.assignors.registry import BUILT_IN
from ..protocol.errors import UnknownServerError, UnsupportedAssignor
from .plugins import find_assignor, one_line, told

log = logging.getLogger("lakemq.serve")

Assignment: TypeAlias = dict[str, list[TopicPartition]]


class PlugInFailed(Exception):
    """There is no assignment of it; the text says why, in one line."""


@dataclass(frozen=True)
class Computed:
    """An assignment of all members, and whose: assignor differs from what was asked for if there was a problem."""

    assignment: Mapping[str, list[TopicPartition]]
    assignor: str
    problem: str | None = None


class PlugInThreads:
    """Of one sequencer. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging: dict[str, list[threading.Thread]] = {}

    def run(self, name: str, work: Callable[[], Assignment], timeout_s: float) -> Assignment:
        """What the work returns. Raises PlugInFailed: it raises, takes longer, or hangs since a call before."""
        self._refuse_hanging(name)
        future: Future[Assignment] = Future()
        try:
            thread = started_thread(lambda: _finish(future, name, work), f"assignor-{name}")
        except UnknownServerError as error:
            raise PlugInFailed(str(error)) from None
        try:
            return future.result(timeout_s)
        except NotDone:
            with self._lock:
                self._hanging.setdefault(name, []).append(thread)
            raise PlugInFailed(f"it took longer than {timeout_s:g} s") from None

    def _refuse_hanging(self, name: str) -> None:
        with self._lock:
            hanging = [thread for thread in self._hanging.pop(name, ()) if thread.is_alive()]
            if hanging:
                self._hanging[name] = hanging
                raise PlugInFailed("it was not run: a call before still hangs")


def compute(
    assignor_name: str,
    fallback_name: str,
    partition_counts: Mapping[str, int],
    members: Mapping[str, Member],
    timeout_s: float,
    run: Callable[[str, Callable[[], Assignment], float], Assignment],
) -> Computed:
    """The assignment by the assignor, or by the fallback, which is a built-in one.

    Blocks, for a plug-in as long as timeout_s: it is not for the thread that decides. run: that of `PlugInThreads`.
    A built-in assignor is run here and has no end: what would stand in for it is no quicker.
    """
    if assignor_name in BUILT_IN:
        return Computed(_built_in(assignor_name, partition_counts, members), assignor_name)
    counts, known = dict(partition_counts), dict(members)  # also when a thread that was given up is still at it

    def work() -> Assignment:
        try:
            assignor = find_assignor(assignor_name)
        except UnsupportedAssignor as unsupported:
            raise PlugInFailed(str(unsupported)) from None
        assignment = assignor(dict(counts), dict(known))
        try:
            return check(assignment, counts, known)
        except ValueError as nonsense:
            raise PlugInFailed(f"its assignment is none: {nonsense}") from None

    try:
        return Computed(run(assignor_name, work, timeout_s), assignor_name)
    except PlugInFailed as failed:
        problem = one_line(f"{fallback_name} stands in for the assignor {assignor_name}: {failed}")
    return Computed(_built_in(fallback_name, partition_counts, members), fallback_name, problem)


def _built_in(name: str, partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
    assignment = BUILT_IN[name](partition_counts, members)
    return {member_id: list(assignment[member_id]) for member_id in sorted(members)}


def _finish(future: Future[Assignment], name: str, work: Callable[[], Assignment]) -> None:
    """Nothing gets out but by the future, and no object of the plug-in's does."""
    try:
        future.set_result(work())
    except PlugInFailed as failed:
        future.set_exception(failed)
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too: they are not meant for us
        future.set_exception(PlugInFailed(f"it raises {told(error)}"))
        with suppress(BaseException):
            # here: what hangs in a log's handler holds up all who log; and not every file takes a lone surrogate
            trace = traceback.format_exc().encode(errors="backslashreplace").decode()
            log.warning("The assignor %s raises: %s", name, trace)
