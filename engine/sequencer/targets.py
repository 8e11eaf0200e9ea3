"""Targets: who is to have which partition, computed beside the steps for groups that have changed.

A target is of one group epoch; where the group has moved on meanwhile, the next step drops it and asks again.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future
from functools import partial

from ..protocol.assignors.assignor import Member
from ..protocol.rules.reconciling import wanting_target
from ..protocol.values.assignments import Group, Place
from ..protocol.values.groups import TargetComputed
from ..protocol.values.state import State
from .assigning import PlugInThreads, compute

log = logging.getLogger("lakemq.serve")


class Targets:
    """Of one term of leadership; called by the sequencer's thread."""

    def __init__(self, executor: Executor, threads: PlugInThreads, timeout_s: float) -> None:
        """executor: computes; threads, timeout_s: for what plug-ins do."""
        self._executor, self._threads, self._timeout_s = executor, threads, timeout_s
        self._running: dict[str, tuple[int, Future[TargetComputed]]] = {}
        self._given_up: dict[str, int] = {}
        """Group -> the epoch for which it failed, and would again."""

    @property
    def is_working(self) -> bool:
        return bool(self._running)

    def computed(self) -> list[TargetComputed]:
        """What has become ready since the last call."""
        found = []
        for name in [name for name, (_, future) in self._running.items() if future.done()]:
            epoch, future = self._running.pop(name)
            error = future.exception()
            if error is None:
                found.append(future.result())
            else:
                log.error("The target of the group %s could not be computed: %s", name, error, exc_info=error)
                self._given_up[name] = epoch
        return found

    def ask(self, state: State) -> None:
        """Have computed what is wanted, of each group one at a time."""
        for group in wanting_target(state):
            if group.group not in self._running and self._given_up.get(group.group) != group.group_epoch:
                work = self._work(state, group)
                self._running[group.group] = group.group_epoch, self._executor.submit(work)

    def _work(self, state: State, group: Group) -> partial[TargetComputed]:
        """All that is to be known, so that the state may go on."""
        subscribed = {name for member in group.members.values() for name in member.topics}
        known = {state.topics[i].topic: (i, n) for i, n in group.partition_counts.items() if i in state.topics}
        ids = {name: topic_id for name, (topic_id, _) in known.items()}
        counts = {name: count for name, (_, count) in known.items() if name in subscribed}
        shares = group.shares()
        members = {
            one.member_id: Member(
                tuple(name for name in one.topics if name in counts),
                tuple(
                    (state.topics[topic_id].topic, partition)
                    for topic_id, partition in shares[one.member_id]
                    if topic_id in state.topics
                ),
                one.instance_id,
            )
            for one in group.members.values()
        }
        return partial(
            _computed, group.group, group.group_epoch, group.setting("group.assignor"), group.default_assignor, ids,
            counts, members, self._timeout_s, self._threads,
        )  # fmt: skip


def _computed(
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
    found = compute(assignor, default_assignor, counts, members, timeout_s, threads.run)
    target: dict[str, list[Place]] = {
        member_id: [(ids[topic], partition) for topic, partition in places]
        for member_id, places in found.assignment.items()
    }
    return TargetComputed(name, group_epoch, found.assignor, target, found.problem)
