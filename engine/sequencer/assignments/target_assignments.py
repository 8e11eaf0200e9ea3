"""Compute the target assignments of groups in another thread: which member should have which partition.

A target belongs to one group epoch. If the group has changed meanwhile, the next step drops the target and a new
computation starts.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future
from functools import partial

from ...protocol.assignors.assignor import Member
from ...protocol.rules.consuming.reconciling import find_groups_without_target
from ...protocol.values.consuming.assignments import Group, TopicIdPartition
from ...protocol.values.consuming.groups import TargetComputed
from ...protocol.values.state import State
from .assignor_runs import PlugInThreads, compute_assignment

log = logging.getLogger("lakemq.serve")


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
