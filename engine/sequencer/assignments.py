"""Assignments beside the steps: find and run assignors, built-in ones and plug-ins, and compute what groups need.

If a plug-in fails or takes too long, a built-in assignor replaces it.

A plug-in is foreign code. All of it runs in a thread of its own: its import, its answer and the logging of its errors.
A thread cannot be ended from outside, so a hanging one is left alone. Its plug-in is not run again until it returns;
otherwise hanging threads would pile up.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import TypeAlias

from ..namespace.process import start_thread
from ..protocol.assignors import BUILT_IN, Assignor, Member, TopicPartition, check_assignment
from ..protocol.errors import UnknownServerError, UnsupportedAssignor
from ..protocol.rules.reconciling import find_groups_without_target
from ..protocol.values.assignments import Group, TopicIdPartition
from ..protocol.values.groups import TargetComputed
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

# Find assignors by name: the built-in ones and those of other packages.


GROUP = "lakemq.assignors"
"""The entry point group of assignors."""

_MAX_LENGTH = 300


def find_assignor(name: str) -> Assignor:
    """Return the assignor of this name. A built-in name always returns the built-in one.

    Loading another one may import its module, whatever that does.

    Raises:
        UnsupportedAssignor: there is none, or several, or it cannot be loaded or called.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        entries = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
        loaded = [entry.load() for entry in entries.values()] if len(entries) == 1 else []
        is_callable = all(map(callable, loaded))
    except BaseException as error:  # SystemExit, too: a module that is imported does what it likes
        raise UnsupportedAssignor(f"It cannot be loaded: {describe_error(error)}.", found=name) from None
    if not is_callable:
        raise UnsupportedAssignor("Its entry point is not a function.", found=name)
    if not loaded:
        text = f"Several packages have one: {', '.join(sorted(entries))}." if entries else ""
        expected = f"{', '.join(BUILT_IN)}, or the name of an entry point in the group {GROUP}"
        raise UnsupportedAssignor(text, found=name, expected=expected)
    assignor: Assignor = loaded[0]
    return assignor


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, whatever its class does when it is converted to text."""
    text = "an error that cannot be shown as text"
    with suppress(BaseException):
        text = shorten_to_line(f"{type(error).__name__}: {error}")
    return text


def shorten_to_line(text: str) -> str:
    """Return the text as one short line without lone surrogates, fit for a table's row."""
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


# Run an assignor: a built-in one at once, a plug-in in a thread of its own.


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


# Compute the target assignments of groups in another thread: which member should have which partition.
#
# A target belongs to one group epoch. If the group has changed meanwhile, the next step drops the target and a new
# computation starts.


class TargetAssignments:
    """The computations of one term. The sequencer's thread calls it."""

    def __init__(self, executor: Executor, threads: PlugInThreads, timeout_s: float) -> None:
        """executor: runs the computations; threads, timeout_s: for plug-ins."""
        self._executor, self._threads, self._timeout_s = executor, threads, timeout_s
        self._running: dict[str, tuple[int, Future[TargetComputed]]] = {}
        self._failed_epochs: dict[str, int] = {}
        """Group -> the epoch whose computation failed. It would fail again."""

    @property
    def is_working(self) -> bool:
        return bool(self._running)

    def take_targets(self) -> list[TargetComputed]:
        """Return the targets that are ready since the last call."""
        finished = []
        for name in [name for name, (_, future) in self._running.items() if future.done()]:
            epoch, future = self._running.pop(name)
            error = future.exception()
            if error is None:
                finished.append(future.result())
            else:
                log.error("The target of the group %s could not be computed: %s", name, error, exc_info=error)
                self._failed_epochs[name] = epoch
        return finished

    def start_missing(self, state: State) -> None:
        """Start the computations that groups need, one per group at a time."""
        for group in find_groups_without_target(state):
            if group.group not in self._running and self._failed_epochs.get(group.group) != group.group_epoch:
                work = self._prepare_computation(state, group)
                self._running[group.group] = group.group_epoch, self._executor.submit(work)

    def _prepare_computation(self, state: State, group: Group) -> partial[TargetComputed]:
        """Copy everything that the computation needs, so that the state can move on."""
        subscribed = {name for member in group.members.values() for name in member.topics}
        topics = {state.topics[i].topic: (i, n) for i, n in group.partition_counts.items() if i in state.topics}
        ids = {name: topic_id for name, (topic_id, _) in topics.items()}
        counts = {name: count for name, (_, count) in topics.items() if name in subscribed}
        shares = group.compute_shares()
        members = {
            member.member_id: Member(
                tuple(name for name in member.topics if name in counts),
                tuple(
                    (state.topics[topic_id].topic, partition)
                    for topic_id, partition in shares[member.member_id]
                    if topic_id in state.topics
                ),
                member.instance_id,
            )
            for member in group.members.values()
        }
        return partial(
            _compute_target, group.group, group.group_epoch, group.chosen_assignor, group.default_assignor, ids,
            counts, members, self._timeout_s, self._threads,
        )  # fmt: skip


def _compute_target(
    name: str,
    group_epoch: int,
    assignor: str,
    default_assignor: str,
    ids: dict[str, int],
    counts: dict[str, int],
    members: dict[str, Member],
    timeout_s: float,
    threads: PlugInThreads,
) -> TargetComputed:
    computed = compute_assignment(assignor, default_assignor, counts, members, timeout_s, threads.run)
    target: dict[str, list[TopicIdPartition]] = {
        member_id: [(ids[topic], partition) for topic, partition in topic_partitions]
        for member_id, topic_partitions in computed.assignment.items()
    }
    return TargetComputed(name, group_epoch, computed.assignor, target, computed.problem)
