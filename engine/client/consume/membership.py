"""A membership in a group: joining, heartbeats, reading what the group has decided, giving partitions up, leaving."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from lakemq.tables.storage.coordination.beats import Beats

from ...namespace.process import read_own_identity, start_thread
from ...protocol.codec.beat import FencedMember, MemberBeat, encode_beat
from ...protocol.errors import FencedInstanceId, LakeMQError, UnknownMemberId, UnknownServerError
from ...protocol.values.assignments import Group, GroupStatus, PartitionStatus, TopicIdPartition
from ...protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    Acquire,
    Deliveries,
    DeliveryPolicy,
    WantedMessages,
)
from ...protocol.values.groups import Assigned, JoinGroup, LeaveGroup, ReleasePartitions
from ...protocol.values.offsets import CommittedOffset
from ...protocol.values.state import State
from ...protocol.values.topics import Bounds
from ..fetch.plan import Isolation
from ..groups.lag import GroupProgress, read_progress
from ..groups.stalls import Stall, find_queue_stalls
from ..offsets import TopicPartition
from ..requests.requester import Requester
from .open_members import OpenMember, describe_holders
from .options import MemberOptions, Pattern, Subscription, find_beginnings, find_new_topics, log_beginnings

log = logging.getLogger("lakemq.consumer")

# Heartbeats: one thread of a connection sends them for all its group members, to show that the process lives. A
# heartbeat is an object, which any leader finds.


_LOOK_AT_ABANDONED_S = 0.25
"""How often the thread looks for members whose consumers are garbage. The collector may call in a thread that holds any
lock, so nothing can wake it."""


class Heartbeat:
    """The heartbeat of one member."""

    def __init__(self, thread: HeartbeatThread, group: str, member_id: str, interval_ms: int, polls: int) -> None:
        self._thread, self.group, self.member_id, self.interval_ms = thread, group, member_id, interval_ms
        self.polls = polls

    def build_beating(self) -> MemberBeat:
        """Return what the next heartbeat says of the member."""
        return MemberBeat(self.group, self.member_id, self.polls, self.interval_ms)

    def stop(self) -> None:
        """Send no more heartbeats for this member."""
        self._thread.remove(self)


class HeartbeatThread:
    """Sends heartbeats while there are members. Thread-safe. In a forked process it does nothing."""

    def __init__(self, beats: Beats, new_id: Callable[[], str]) -> None:
        self._beats, self._new_id = beats, new_id
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._heartbeats: list[Heartbeat] = []
        self._has_news = False
        self._thread: threading.Thread | None = None
        self._fails = False
        self.abandoned: SimpleQueue[OpenMember] = SimpleQueue()
        """Members whose consumers are garbage. The thread closes them, with its next look or heartbeat."""

    def add(self, group: str, member_id: str, interval_ms: int, polls: int = 0) -> Heartbeat:
        """Send heartbeats for the member from now on.

        Args:
            polls: how often it has polled. A member that joins again under its id must go on counting: the leader
                ignores lower counts than that of an earlier beat.

        Raises:
            UnknownServerError: no thread can be started.
        """
        heartbeat = Heartbeat(self, group, member_id, interval_ms, polls)
        with self._changed:
            self._heartbeats.append(heartbeat)
            self._has_news = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._run, "lakemq-heart")
            self._changed.notify()
        return heartbeat

    def remove(self, heartbeat: Heartbeat) -> None:
        if os.getpid() != self._pid:
            return
        with self._changed:
            if heartbeat in self._heartbeats:
                self._heartbeats.remove(heartbeat)
            self._changed.notify()

    def stop(self) -> None:
        """Send no more heartbeats for any member."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._heartbeats.clear()
            self._changed.notify()

    def note_fence(self, member: FencedMember) -> None:
        """Tell operators that two consumers use one instance id. Without this note they see only the second one."""
        subject = f"{member.group}\0{member.instance_id}"
        self._try_to(self._beats.put_note, subject, member.fenced_at_ms // 1000, encode_beat([member]))

    def _run(self) -> None:
        # the id is of this run alone, so that forgetting it at the end hits no other thread's beats
        beats_id, number = self._new_id(), 0
        while True:
            self._close_abandoned()
            with self._changed:
                beatings = [heartbeat.build_beating() for heartbeat in self._heartbeats]
                self._has_news = False
                if not beatings:
                    self._thread = None
                    break
                interval_s = min(heartbeat.interval_ms for heartbeat in self._heartbeats) / 1000
            number += 1
            self._try_to(self._beats.put, beats_id, number, encode_beat(beatings))
            self._wait(time.monotonic() + interval_s)
        if number:
            self._try_to(self._beats.forget, [beats_id])

    def _close_abandoned(self) -> None:
        while not self.abandoned.empty():
            try:
                start_thread(self.abandoned.get().close_abandoned, "lakemq-close")
            except UnknownServerError as error:
                log.warning("A consumer that is gone keeps its partitions for max_poll_interval_ms: %s", error)

    def _wait(self, until_s: float) -> None:
        """Wait until the next heartbeat is due: at once if a member is new, or if none is left."""
        while (left_s := until_s - time.monotonic()) > 0 and self.abandoned.empty():
            with self._changed:
                most_s = min(left_s, _LOOK_AT_ABANDONED_S)
                if self._changed.wait_for(lambda: self._has_news or not self._heartbeats, most_s):
                    return

    def _try_to(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write, and go on if that fails: the next heartbeat follows. Log the first of several failures."""
        try:
            write(*arguments)
            self._fails = False
        except Exception as error:  # a store of the user may raise anything, and the thread must not end
            if not self._fails:
                log.warning("A heartbeat could not be written. The next one is tried as usual. Error: %s", error)
            self._fails = True


@dataclass(frozen=True)
class OwnedPartition:
    """A partition that the member has.

    Attributes:
        epoch: of its assignment.
        start_offset: where the member begins to read; None: as its `auto_offset_reset` says.
        is_paused: the member is to give the partition up.
        committed: what the group has committed.
        deliveries: in a queue group, what became of the messages after the committed offset.
        since_ms: when the partition came into its status.
    """

    bounds: Bounds
    epoch: int
    start_offset: int | None
    is_paused: bool
    committed: CommittedOffset | None
    deliveries: Deliveries | None = None
    since_ms: int = 0

    @property
    def left_count(self) -> int:
        """Offsets that a queue group is not done with, also those that it cannot see yet."""
        bounds = self.bounds
        return 0 if self.deliveries is None else self.deliveries.count_remaining(bounds.high_watermark, bounds.first)

    @cached_property
    def is_done(self) -> bool:
        """Whether a queue group is done with all offsets, so that there is nothing to deliver or to wait for."""
        return (
            self.deliveries is not None
            and not self.deliveries.stretches
            and self.deliveries.start >= self.bounds.high_watermark
        )


@dataclass(frozen=True)
class QueueSettings:
    """How a queue group delivers.

    Attributes:
        policy: how often and in which order messages are delivered again.
        max_unacknowledged: messages that a user may have without an outcome.
        is_auto_ack: a poll acknowledges what the poll before it brought.
        handoff_ms: how long a partition that is to move waits for its messages. While it is above 0, messages that
            were acquired are still shown.
        isolation: which messages are visible.
        config: the group's settings of which these are.
    """

    policy: DeliveryPolicy
    max_unacknowledged: int
    is_auto_ack: bool
    handoff_ms: int
    isolation: Isolation
    config: Mapping[str, Any]

    @classmethod
    def of(cls, group: Group) -> QueueSettings:
        """Return the settings of a queue group."""
        return cls(
            DeliveryPolicy.from_group(group),
            group.setting("max.delivered.unacked.msgs.per.flow"),
            group.setting("ack.mode") == "auto",
            group.setting("max.handoff.ms"),
            group.setting("isolation.level"),
            group.config,
        )


@dataclass(frozen=True)
class MembershipView:
    """The group's view of a member, as of one step.

    Attributes:
        is_replaced: another process has taken over the member's instance id.
        topics: the topics that the member asks for, as the group knows them.
        owned: the partitions that the member has.
        now_ms: the time of the step.
        queue_settings: None unless the group is a queue group.
        generation: None unless the group is a classic group.
        is_stable: no partition is moving, so a member without partitions will not get any.
        partition_count: partitions of the topics that the member asks for.
    """

    is_member: bool = False
    is_replaced: bool = False
    topics: Sequence[str] = ()
    owned: Mapping[TopicPartition, OwnedPartition] = field(default_factory=dict)
    step: int = 0
    now_ms: int = 0
    queue_settings: QueueSettings | None = None
    generation: int | None = None
    is_stable: bool = False
    partition_count: int = 0


def build_view(
    state: State,
    group_name: str,
    member_id: str,
    instance_id: str | None,
    isolation: Isolation,
    known: QueueSettings | None,
) -> MembershipView:
    """Return the view of a member as of this state.

    instance_id: of a static member. isolation: of the member; a queue group has its own. known: those before.
    """
    group = state.groups.get(group_name)
    if group is None or member_id not in group.members:
        is_replaced = group is not None and instance_id is not None and instance_id in group.instances
        return MembershipView(is_replaced=is_replaced)
    # a change of the settings replaces `config`
    queue = known if known is not None and known.config is group.config else None
    if queue is None and group.is_queue:
        queue = QueueSettings.of(group)
    topics = group.members[member_id].topics
    partitions = group.list_partitions_of(member_id)
    return MembershipView(
        is_member=True,
        topics=topics,
        step=state.step,
        now_ms=state.now_ms,
        queue_settings=queue,
        generation=group.generation if group.is_classic else None,
        is_stable=group.status is GroupStatus.STABLE,
        partition_count=sum(group.partition_counts.get(state.topic_ids.get(topic, -1), 0) for topic in topics),
        owned=_read_partitions(state, group, partitions, queue.isolation if queue else isolation, queue is not None),
    )


def _read_partitions(
    state: State, group: Group, owned_partitions: Iterable[TopicIdPartition], isolation: Isolation, is_queue: bool
) -> dict[TopicPartition, OwnedPartition]:
    committed = state.offsets.get(group.group, {})
    owned = {}
    for topic_id, topic_partitions in groupby(owned_partitions, key=itemgetter(0)):
        topic, partitions = state.topics.get(topic_id), [partition for _, partition in topic_partitions]
        if topic is None:
            continue
        # Only the member's own partitions: a topic may have thousands, and each member does this with each poll.
        for partition, bounds in zip(partitions, topic.read_bounds(isolation, partitions), strict=True):
            assignment = group.assignments[topic_id, partition]
            owned[topic.topic, partition] = OwnedPartition(
                bounds,
                assignment.epoch,
                assignment.start_offset,
                assignment.status is PartitionStatus.PAUSED,
                committed.get((topic_id, partition)),
                _copy_deliveries(state, group, (topic_id, partition)) if is_queue else None,
                assignment.since_ms,
            )
    return owned


def _copy_deliveries(state: State, group: Group, tp: TopicIdPartition) -> Deliveries:
    """Return a copy of the deliveries of a queue group's partition, because later steps change the state."""
    deliveries, committed = state.find_deliveries(group.group, tp), state.offsets.get(group.group, {}).get(tp)
    if deliveries is not None:
        return deliveries.copy()
    start = group.assignments[tp].start_offset if committed is None else committed.offset
    return Deliveries(start or 0)


_RANDOM_DIGITS = 16
"""Of a member's id: 64 bits, beside the host and the process."""
_MAX_HOST = 64
"""Characters of a host name, as Linux allows at most."""

T = TypeVar("T")


class QueryGroups(Protocol):
    """Returns what a function takes from the state as of the newest step, groups included.

    newest: whether to read newer steps first. False: as of the step that was read last.
    """

    def __call__(self, query: Callable[[State], T], /, newest: bool = True) -> T: ...


def read_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()[:_MAX_HOST]


class Membership:
    """The membership of one consumer, which holds its lock for every call."""

    def __init__(
        self,
        requester: Requester,
        heartbeats: HeartbeatThread,
        query_groups: QueryGroups,
        new_id: Callable[[], str],
        group: str,
        isolation: Isolation,
        options: MemberOptions,
        describe_deletion: Callable[[str, int], str] = lambda topic, deleted_topic_count: "",
    ) -> None:
        """describe_deletion: returns when and by whom a topic was deleted, as Fetcher.describe_deletion."""
        self._requester, self._heartbeats, self._new_id = requester, heartbeats, new_id
        self._describe_deletion = describe_deletion
        self._query_groups = query_groups
        self.group, self._isolation, self.options = group, isolation, options
        self._newest: tuple[str, int, MembershipView] | None = None
        """The member, the step, and its view as of it. A poll asks for it several times."""
        self._process = read_own_identity()
        self.member_id = ""
        self.news = threading.Event()
        """Set when a request is answered that the member did not wait for. The consumer's waiter clears it."""
        self._heartbeat: Heartbeat | None = None
        self._is_fence_noted = False
        self._release_request: Future[Any] | None = None
        self._subscription = Subscription(options.topics, options.pattern)
        self._topics_request: Future[Any] | None = None
        self._requested_topics: list[str] = []

    def join(self, reclaimed: Sequence[Assigned] = ()) -> None:
        """Join the group, and send heartbeats.

        Args:
            reclaimed: partitions that a member of a queue group had when it was lost. It joins under its old id and
                gets them back, with their messages, unless other members have them by now. Left out, the member is new.

        Raises:
            LakeMQError: what the request is refused with. No heartbeats are sent then.
        """
        options, member_id = self.options, self.member_id if reclaimed else self._new_member_id()
        if options.pattern is not None:
            self._query_groups(self._subscription.follow)
        polls = 0 if self._heartbeat is None else self._heartbeat.polls
        heartbeat = self._heartbeats.add(self.group, member_id, options.heartbeat_interval_ms, polls)
        try:
            self._ask_and_log_beginnings(lambda: self._build_join_request(member_id, reclaimed))
        except BaseException:
            heartbeat.stop()
            raise
        self._stop_heartbeat()
        self.member_id, self._heartbeat = member_id, heartbeat

    def _new_member_id(self) -> str:
        """Return a unique id that tells people, wherever it is shown, which process the member belongs to."""
        parts = [self.options.client_id, read_host(), str(os.getpid()), self._new_id()[:_RANDOM_DIGITS]]
        return "-".join(part for part in parts if part)

    def subscribe(self, topics: Sequence[str], pattern: Pattern | None) -> None:
        """Ask for these topics instead. A member that was lost asks for them when it joins again.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            And what the request raises. In both cases the member asks for the same topics as before.
        """
        before = self.options, self._subscription
        self.options = replace(self.options, topics=topics, pattern=pattern)
        self._subscription = Subscription(topics, pattern)
        try:
            self._query_groups(self._check_topics)
            if self._heartbeat is not None:
                self._ask_and_log_beginnings(lambda: self._build_join_request(self.member_id, is_member=True))
        except UnknownMemberId:
            pass
        except BaseException:
            self.options, self._subscription = before
            raise

    def _check_topics(self, state: State) -> None:
        """Raise UnknownTopicOrPartition if a topic that the subscription names does not exist."""
        self._subscription.follow(state)
        if self.options.pattern is None:
            for name in self._subscription.topics:
                state.topic(name)

    def _ask_and_log_beginnings(self, build_request: Callable[[], JoinGroup]) -> None:
        """Send the request, and log where the group begins in topics that are new to it."""
        topics = self._subscription.topics
        new_topics = self._query_groups(lambda state: find_new_topics(state, self.group, topics))
        self._requester.ask(build_request())
        if new_topics:
            beginnings = self._query_groups(lambda state: find_beginnings(state, self.group, new_topics))
            log_beginnings(self.group, beginnings)

    def _build_join_request(
        self, member_id: str, reclaimed: Sequence[Assigned] = (), is_member: bool = False
    ) -> JoinGroup:
        options = self.options
        return JoinGroup(
            self.group,
            member_id,
            self._subscription.topics,
            self._subscription.pattern,
            options.instance_id,
            options.session_timeout_ms,
            options.max_poll_interval_ms,
            options.auto_offset_reset,
            # A member matched the group's settings when it joined. They may have been altered since.
            {} if is_member else dict(options.config),
            list(reclaimed),
            is_member,
            options.client_id,
            read_host(),
            os.getpid(),
            list(options.assignors),
            self._process,
        )

    @property
    def topics(self) -> list[str]:
        """The topics that the member asks for; of a pattern, those that matched at the last `read_view`."""
        return list(self._subscription.topics)

    def find_stalls(self) -> list[Stall]:
        """Return what holds up deliveries to this member of a queue group, as of the step that was read last."""

        def find(state: State) -> list[Stall]:
            group = state.groups.get(self.group)
            return [] if group is None else find_queue_stalls(state, group, self.member_id)

        return self._query_groups(find, newest=False)

    def describe_holders(self) -> list[str]:
        """Return a sentence for each other consumer of this process that has partitions of the group."""
        return self._query_groups(lambda state: describe_holders(state, self.group, self.member_id), newest=False)

    def describe_missing_topics(self) -> list[str]:
        """Return a sentence for each topic that the user named and that is not there."""
        if self._subscription.pattern is not None:
            return []
        return self._describe_missing(self._subscription.topics, newest=False)

    def explain_missing_topics(self, names: Collection[str]) -> list[str]:
        """Return a sentence for each of these topics that is not there, for the error of a call that names them.

        The error may come before the step of the deletion, so the newest step is read. Nothing may hide the error.
        """
        try:
            return self._describe_missing(names, newest=True)
        except LakeMQError:
            return []

    def _describe_missing(self, names: Collection[str], newest: bool) -> list[str]:
        missing, deleted_count = self._query_groups(
            lambda state: ([name for name in names if name not in state.topic_ids], state.deleted_topic_count),
            newest=newest,
        )
        return [
            f"Topic {name}, to which the consumer subscribes, does not exist."
            f" {self._describe_deletion(name, deleted_count)}".rstrip()
            for name in missing
        ]

    def note_poll(self) -> None:
        """Show the group with the next heartbeat that the consumer polls: it loses a member that lives but does not."""
        if self._heartbeat is not None:
            self._heartbeat.polls += 1

    def read_view(self, newest: bool = True) -> MembershipView:
        """Return the view of this member, as of the newest step. newest=False: as of the step that was read last.

        If the member's pattern matches other topics than the group knows of, this asks for those, without waiting.
        """
        # Look at the request before the group: a decision between the two is not in the view yet.
        is_answered = self._topics_request is None or self._topics_request.done()
        view = self._query_groups(self._follow, newest)
        has_other_topics = view.is_member and list(view.topics) != self._subscription.topics
        if has_other_topics and is_answered and self._may_request_topics(newest):
            self._requested_topics = self._subscription.topics
            self._topics_request = self._requester.submit(self._build_join_request(self.member_id, is_member=True))
            self._topics_request.add_done_callback(self._note_answer)
        return view

    def _may_request_topics(self, newest: bool) -> bool:
        """Return whether to ask for the topics, now that no request is on its way.

        The same topics are asked for again only if the newest step lacks them, and unless the group refused them for
        good. newest: whether the view is as of the step.
        """
        if self._topics_request is None or self._requested_topics != self._subscription.topics:
            return True
        error = self._topics_request.exception()
        return newest and not (isinstance(error, LakeMQError) and not error.retriable)

    def _follow(self, state: State) -> MembershipView:
        if self.options.pattern is not None:
            self._subscription.follow(state)
        return self._build_view(state)

    def _build_view(self, state: State) -> MembershipView:
        newest = self._newest
        if newest is None or newest[:2] != (self.member_id, state.step):
            known = None if newest is None else newest[2].queue_settings
            view = build_view(state, self.group, self.member_id, self.options.instance_id, self._isolation, known)
            newest = self._newest = self.member_id, state.step, view
        return newest[2]

    def read_progress(self, newest: bool = True) -> GroupProgress:
        """Return how far the group has come in all partitions of the topics that this member asks for.

        newest: as in `read_view`.
        """
        return self._query_groups(
            lambda state: read_progress(state, self.group, self._subscription.topics, self._isolation), newest
        )

    def read_sessions_elsewhere(self) -> dict[str, int]:
        """Return the session timeouts of the members in other processes, as of the step that was read last."""
        own = read_host(), os.getpid()

        def read(state: State) -> dict[str, int]:
            group = state.groups.get(self.group)
            members = () if group is None else group.members.values()
            return {m.member_id: m.session_timeout_ms for m in members if (m.host, m.process_id) != own}

        return self._query_groups(read, newest=False)

    def release(self, revoked: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Give these partitions up, without waiting for the answer. The caller repeats it until the group knows."""
        if self._release_request is not None and not self._release_request.done():
            return
        assigned = [
            Assigned(owned.bounds.topic_id, partition, owned.epoch) for (_, partition), owned in revoked.items()
        ]
        self._release_request = self._requester.submit(ReleasePartitions(self.group, self.member_id, assigned))
        self._release_request.add_done_callback(self._note_answer)

    def submit(
        self, acknowledgements: Sequence[Sequence[Acknowledgement]], wanted: Sequence[WantedMessages]
    ) -> list[Future[Any]]:
        """Send acknowledgements, and then a request for more messages if `wanted` is not empty, without waiting.

        The group decides them in this order, so messages that are acknowledged make room for the requested ones.

        Args:
            acknowledgements: one list per request.
            wanted: messages to acquire.

        Returns:
            A future per request, in this order.
        """
        requests: list[Acknowledge | Acquire] = [
            Acknowledge(self.group, self.member_id, list(parts)) for parts in acknowledgements
        ]
        if wanted:
            requests.append(Acquire(self.group, self.member_id, list(wanted)))
        futures = self._requester.submit_all([(request, None) for request in requests])
        for future in futures:
            future.add_done_callback(self._note_answer)
        return futures

    def _note_answer(self, _: Future[Any]) -> None:
        self.news.set()

    def leave(self, for_good: bool) -> None:
        """Stop the heartbeats; for_good: also tell the group, so that it need not wait for the session to end.

        A static member that does not leave for good is expected back.
        """
        self._stop_heartbeat()
        if for_good:
            with suppress(LakeMQError):  # without an answer the group finds out when the heartbeats are missing
                self._requester.ask(LeaveGroup(self.group, [self.member_id]))

    def is_replaced(self) -> bool:
        """Return whether another process has taken over the instance id. Any thread may call this."""
        return self._query_groups(self._build_view).is_replaced

    def fenced_error(self) -> FencedInstanceId:
        """Return the error that says so, and names the other member. Leave a note for operators, too."""
        fenced = self._query_groups(self._describe_fence, newest=False)
        if not self._is_fence_noted:
            self._heartbeats.note_fence(fenced)
            self._is_fence_noted = True
        process = f"process {fenced.successor_process_id}, {fenced.successor_host}"
        successor = f", of member {fenced.successor_id} ({process})" if fenced.successor_id else ""
        return FencedInstanceId(
            found=f"{fenced.instance_id}{successor}",
            expected="an instance id of its own for each consumer that runs",
        )

    def _describe_fence(self, state: State) -> FencedMember:
        group, instance_id = state.groups.get(self.group), self.options.instance_id or ""
        successor = None if group is None else group.members.get(group.instances.get(instance_id, ""))
        return FencedMember(
            group=self.group,
            member_id=self.member_id,
            polls=0,
            instance_id=instance_id,
            fenced_at_ms=state.now_ms,
            host=read_host(),
            process_id=os.getpid(),
            successor_id="" if successor is None else successor.member_id,
            successor_host=None if successor is None else successor.host,
            successor_process_id=None if successor is None else successor.process_id,
        )

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
