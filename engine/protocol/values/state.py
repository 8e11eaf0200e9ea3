"""The state of a sequencer: always the fold of `evolve` over the journal, starting from a snapshot in the tables.

It holds one entry per topic, partition, producer, transactional id, group's partition, application, client and range of
delayed rows. It holds nothing per segment or message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from ..errors import (
    InvalidRequest,
    InvalidTopic,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ..names import check_topic_name, shorten, unify_collision_chars
from .assignments import Assignment, Group, TopicIdPartition
from .clients import Client
from .dead_letters import REDRIVE
from .deliveries import Deliveries
from .log import Application
from .offsets import MAX_OFFSETS, CommittedOffset, OffsetCommit
from .producers import ProducerState
from .schedules import Schedule, ScheduleIndex
from .segments import Segments
from .topics import Topic
from .transactions import Transaction
from .waiting import Delays

# The changes of folds: the keys of the rows that the next projection writes.


class DeletedTopic(NamedTuple):
    """The facts that the last rows of a deleted topic need. log_count: its partitions, including ended ones."""

    topic: str
    log_count: int


@dataclass
class Changes:
    """Key of a row -> the last step that has changed it. One field per table that holds state.

    The methods of State that change a thing, or let a fold change it, note its key here. So no projection needs to know
    which records change its rows. Delayed rows are missing: their rows name the request of each change, which only the
    journal tells.

    appended: segments that have changed their partitions, with the step. To note each partition would slow down a step
    of many segments. deleted_topics: by topic id. removed_partitions: group and partition -> topic, of partitions that
    a group no longer has.
    """

    topics: dict[int, int] = field(default_factory=dict)
    partitions: dict[TopicIdPartition, int] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)
    applications: dict[tuple[str, str], int] = field(default_factory=dict)
    schedules: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicIdPartition], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    members: dict[tuple[str, str], int] = field(default_factory=dict)
    assignments: dict[tuple[str, TopicIdPartition], int] = field(default_factory=dict)
    appended: list[tuple[int, Segments]] = field(default_factory=list)
    deleted_topics: dict[int, DeletedTopic] = field(default_factory=dict)
    removed_partitions: dict[tuple[str, TopicIdPartition], str] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget all changes: the tables hold them."""
        for part in fields(self):
            getattr(self, part.name).clear()


# The state itself, and the methods by which folds change it.


@dataclass(slots=True)
class State:
    """The state after `step`. `now_ms` is the time of the last decision.

    topics: existing topics; the id of a deleted one is never used again. ongoing: transactional ids with an open
    transaction. offsets: group -> (topic_id, partition) -> committed offset. deliveries: the same for `queue` groups ->
    the messages past that offset. dying: (group, topic_id, partition) with dying messages; REDRIVE as the group stands
    for dead letters that are to go back. touched_groups: groups that this step has changed, directly or by their
    topics, or that the step before has left unfinished. resumed: (topic_id, partition) -> the offset at which a
    partition continues that this step uses again. shared_topics: ids of topics that a snapshot shares. They must be
    replaced by a copy before they change. changes: the rows that folds have changed since the last projection.
    has_transactions: false for a reader, which does not load them.

    Folds change things only by the methods below, which note the change: `change_topic`, `change_partition`,
    `set_producer` and the like.

    A namespace may have very many topics, and no request walks through all of them. Hence the indexes: topic_ids (name
    -> id), unified_names (name without the difference of `.` and `_` -> name), subscribers (name -> its subscriptions,
    if any), draining (ids of topics with draining partitions). In the same way no step walks through all groups:
    groups_with_members and waiting_groups, which wait for an assignor, a delay, or the release of a partition.
    """

    step: int = 0
    now_ms: int = 0
    leader: str = ""
    leader_epoch: int = 0
    lease_ms: int = 0
    next_topic_id: int = 1
    next_producer_id: int = 0
    routing_step: int = 0
    topics: dict[int, Topic] = field(default_factory=dict)
    topic_ids: dict[str, int] = field(default_factory=dict)
    unified_names: dict[str, str] = field(default_factory=dict)
    subscribers: dict[str, list[str]] = field(default_factory=dict)
    draining: set[int] = field(default_factory=set)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    applications: dict[tuple[str, str], Application] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    ongoing: set[str] = field(default_factory=set)
    offsets: dict[str, dict[tuple[int, int], CommittedOffset]] = field(default_factory=dict)
    deliveries: dict[str, dict[tuple[int, int], Deliveries]] = field(default_factory=dict)
    dying: set[tuple[str, int, int]] = field(default_factory=set)
    groups: dict[str, Group] = field(default_factory=dict)
    touched_groups: set[str] = field(default_factory=set)
    resumed: dict[tuple[int, int], int] = field(default_factory=dict)
    groups_with_members: set[str] = field(default_factory=set)
    waiting_groups: set[str] = field(default_factory=set)
    delays: Delays = field(default_factory=Delays)
    schedules: ScheduleIndex = field(default_factory=ScheduleIndex)
    shared_topics: set[int] = field(default_factory=set)
    changes: Changes = field(default_factory=Changes)
    has_transactions: bool = True

    @property
    def deleted_topic_count(self) -> int:
        """The number of topics that were deleted so far."""
        return self.next_topic_id - 1 - len(self.topics)

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises UnknownTopicOrPartition."""
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition(
                "The topic does not exist. Create it with mq.topics.create() or `lakemq topics create`.",
                found=shorten(name),
            )
        return self.topics[topic_id]

    def check_new_topic(self, name: str) -> None:
        """Raise InvalidTopic or TopicAlreadyExists unless a topic of this name can be created."""
        check_topic_name(name)
        if name in self.topic_ids:
            raise TopicAlreadyExists(found=name)
        if clash := self.unified_names.get(unify_collision_chars(name)):
            raise InvalidTopic(
                "The name differs from that of another topic only in '.' and '_'.",
                found=name,
                expected=f"not to clash with {clash!r}",
            )

    def add_topic(self, topic: Topic) -> None:
        """Add a new topic."""
        self.topics[topic.topic_id] = topic
        self.changes.topics[topic.topic_id] = self.step
        self.topic_ids[topic.topic] = topic.topic_id
        self.unified_names[unify_collision_chars(topic.topic)] = topic.topic
        self.index_draining(topic)
        if topic.subscriptions:
            self.subscribers[topic.topic] = topic.subscriptions

    def remove_topic(self, topic_id: int) -> None:
        """Remove a topic with its schedules, if it exists."""
        topic = self.topics.pop(topic_id, None)
        if topic is not None:
            self.changes.topics[topic_id] = self.step
            self.changes.deleted_topics[topic_id] = DeletedTopic(topic.topic, topic.log_count)
            self.topic_ids.pop(topic.topic, None)
            self.unified_names.pop(unify_collision_chars(topic.topic), None)
            self.subscribers.pop(topic.topic, None)
        for name in [schedule.name for schedule in self.schedules if schedule.topic_id == topic_id]:
            self.remove_schedule(name)
        self.shared_topics.discard(topic_id)
        self.draining.discard(topic_id)
        self.dying = {key for key in self.dying if key[1] != topic_id}

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace a schedule."""
        self.schedules.put(schedule)
        self.changes.schedules[schedule.name] = self.step

    def remove_schedule(self, name: str) -> None:
        """Remove a schedule, if it exists."""
        self.schedules.remove(name)
        self.changes.schedules[name] = self.step

    def index_draining(self, topic: Topic) -> None:
        """Update the index of draining topics after a topic's partitions have changed."""
        (self.draining.add if topic.draining_count else self.draining.discard)(topic.topic_id)

    def set_subscriptions(self, topic_id: int, subscriptions: list[str]) -> None:
        """Replace the topic's subscriptions."""
        topic = self.change_topic(topic_id)
        topic.subscriptions = subscriptions
        self.subscribers.pop(topic.topic, None)
        if subscriptions:
            self.subscribers[topic.topic] = subscriptions

    def change_topic(self, topic_id: int) -> Topic:
        """Return the topic in order to change it: its settings, or which partitions it has."""
        self.changes.topics[topic_id] = self.step
        return self._own_topic(topic_id)

    def change_partition(self, topic_id: int, partition: int) -> Topic:
        """Return the topic in order to change this partition."""
        self.changes.partitions[topic_id, partition] = self.step
        return self._own_topic(topic_id)

    def change_partitions(self, segments: Segments) -> None:
        """Let `topics` be changed in the partitions of these segments."""
        if len(segments):
            self.changes.appended.append((self.step, segments))
        if self.shared_topics:
            for topic_id in set(segments.column("topic_id")):
                self._own_topic(topic_id)

    def _own_topic(self, topic_id: int) -> Topic:
        """Return the topic. If a snapshot shares it, replace it by a copy first."""
        if topic_id in self.shared_topics:
            self.shared_topics.discard(topic_id)
            self.topics[topic_id] = self.topics[topic_id].copy()
        return self.topics[topic_id]

    def advance_logs(self, segments: Segments) -> None:
        """Move high watermarks to the ends of these segments, which are in the order of their offsets within each
        partition.
        """
        self.change_partitions(segments)
        names = ("topic_id", "partition", "last_offset")
        for topic_id, partition, last in zip(*(segments.column(name) for name in names), strict=True):
            self.topics[topic_id].high_watermarks[partition] = last + 1

    def find_topic_name(self, topic_id: int) -> str:
        """Return the name of a topic that exists, or that was deleted since the last projection."""
        topic = self.topics.get(topic_id) or self.changes.deleted_topics[topic_id]
        return topic.topic

    def set_producer(self, producer_id: int, producer: ProducerState) -> None:
        """Add or replace a producer."""
        self.producers[producer_id] = producer
        self.changes.producers[producer_id] = self.step

    def remove_producer(self, producer_id: int) -> None:
        """Remove a producer, if it exists."""
        self.producers.pop(producer_id, None)
        self.changes.producers[producer_id] = self.step

    def change_producer(self, producer_id: int) -> ProducerState | None:
        """Return the producer, if it exists, in order to change it."""
        producer = self.producers.get(producer_id)
        if producer is not None:
            self.changes.producers[producer_id] = self.step
        return producer

    def set_application(self, txn_app_id: str, target: str, application: Application) -> None:
        """Set the last version that the application has published to the target."""
        self.applications[txn_app_id, target] = application
        self.changes.applications[txn_app_id, target] = self.step

    def set_client(self, client_id: str, client: Client) -> None:
        """Add or replace a client."""
        self.clients[client_id] = client
        self.changes.clients[client_id] = self.step

    def remove_client(self, client_id: str) -> None:
        """Remove a client, if it exists."""
        self.clients.pop(client_id, None)
        self.changes.clients[client_id] = self.step

    def set_transaction(self, transactional_id: str, transaction: Transaction) -> None:
        """Add or replace the transaction of this id."""
        self.transactions[transactional_id] = transaction
        self.changes.transactions[transactional_id] = self.step

    def remove_transaction(self, transactional_id: str) -> None:
        """Remove a transactional id, if it exists."""
        self.transactions.pop(transactional_id, None)
        self.changes.transactions[transactional_id] = self.step

    def change_transaction(self, transactional_id: str) -> Transaction | None:
        """Return the transaction of this id, if it exists, in order to change it. A reader knows no transactions."""
        transaction = self.transactions.get(transactional_id)
        if transaction is not None:
            self.changes.transactions[transactional_id] = self.step
        return transaction

    def snapshot(self) -> State:
        """Return a state whose topics do not change when this one does. Everything else is shared."""
        self.shared_topics = set(self.topics)
        return replace(
            self,
            topics=dict(self.topics),
            topic_ids=dict(self.topic_ids),
            unified_names=dict(self.unified_names),
            subscribers=dict(self.subscribers),
            draining=set(self.draining),
            shared_topics=set(self.topics),
            changes=Changes(),
        )

    def without_clients(self, with_groups: bool) -> State:
        """Return the state as a reader loads it, without producers, clients, delays and schedules; without groups
        unless asked for.

        The versions of applications stay: the last steps may be in no table yet, and `find_last_version` reads both.
        """
        reduced = replace(self, producers={}, clients={}, transactions={}, ongoing=set())
        reduced = replace(
            reduced, delays=Delays(), schedules=ScheduleIndex(), changes=Changes(), has_transactions=False
        )
        if with_groups:
            return reduced
        reduced = replace(reduced, offsets={}, deliveries={}, dying=set())
        return replace(reduced, groups={}, groups_with_members=set(), waiting_groups=set())

    def begin_step(self) -> None:
        """Reset what belongs to a single step. Unfinished moves of the step before continue."""
        self.touched_groups = self.list_moving_groups()
        self.resumed.clear()
        self.delays.ready.clear()
        self.delays.published = 0

    def list_moving_groups(self) -> set[str]:
        """Return the groups with moves that this step has left to the next one."""
        return {name for name in self.touched_groups if name in self.groups and self.groups[name].is_moving_on}

    def index_group(self, name: str) -> None:
        """Note that a group has changed, and update the indexes of groups."""
        self.changes.groups[name] = self.step
        group = self.groups.get(name)
        is_manned, is_waiting = group is not None and bool(group.members), group is not None and group.is_waiting
        (self.groups_with_members.add if is_manned else self.groups_with_members.discard)(name)
        (self.waiting_groups.add if is_waiting else self.waiting_groups.discard)(name)

    def note_member(self, group: str, member_id: str) -> None:
        """Note that a member has joined, changed or left."""
        self.changes.members[group, member_id] = self.step

    def change_assignment(self, group: Group, tp: TopicIdPartition) -> Assignment | None:
        """Return the group's assignment of a partition, if it has the partition, in order to change it."""
        assignment = group.assignments.get(tp)
        if assignment is not None:
            self.changes.assignments[group.group, tp] = self.step
        return assignment

    def add_assignment(self, group: Group, tp: TopicIdPartition, assignment: Assignment) -> None:
        """Add a partition to the group."""
        group.add_partition(tp, assignment)
        self.changes.assignments[group.group, tp] = self.step

    def remove_assignments(self, group: Group, topic_id: int, first: int) -> None:
        """Remove the topic's partitions from this number on from the group."""
        for tp, assignment in group.remove_partitions(topic_id, first):
            self.changes.assignments[group.group, tp] = self.step
            self.changes.removed_partitions[group.group, tp] = assignment.topic

    def list_groups_with(self, topic_id: int) -> Iterator[str]:
        """Yield the groups that have partitions of this topic."""
        return (name for name, group in self.groups.items() if topic_id in group.partition_counts)

    def list_group_partitions(self, group: str) -> list[tuple[int, int]]:
        """Return the (topic_id, partition) that the group has committed or owns, sorted."""
        state_of_group = self.groups.get(group)
        return self.existing_partitions(
            {*self.offsets.get(group, ()), *(state_of_group.assignments if state_of_group else ())}
        )

    def offsets_retention_ms(self, group: str, default_ms: int) -> int:
        """Return how long the group keeps its offsets without members; -1: for good."""
        state_of_group = self.groups.get(group)
        return int(state_of_group.config.get("offsets.retention.ms", default_ms)) if state_of_group else default_ms

    def existing_partitions(self, topic_partitions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those (topic_id, partition) whose topic still exists, sorted."""
        return sorted([tp for tp in topic_partitions if tp[0] in self.topics])

    def set_offset(self, group: str, tp: tuple[int, int], offset: int, metadata: str | None = None) -> None:
        """Set the committed offset of the group. Its counts of lost messages stay."""
        committed = self.offsets.setdefault(group, {})
        before = committed.get(tp)
        counts = (before.deleted_count, before.expired_count) if before else ()
        committed[tp] = CommittedOffset(offset, metadata, self.now_ms, *counts)
        self.changes.offsets[group, tp] = self.step

    def replace_offset(self, group: str, tp: tuple[int, int], committed: CommittedOffset) -> None:
        """Replace a committed offset of the group, which exists."""
        self.offsets[group][tp] = committed
        self.changes.offsets[group, tp] = self.step

    def remove_offset(self, group: str, tp: tuple[int, int]) -> None:
        """Remove a committed offset of the group, if it exists, and the deliveries after it."""
        committed = self.offsets.get(group, {})
        committed.pop(tp, None)
        if not committed:
            self.offsets.pop(group, None)
        self.forget_deliveries(group, tp)

    def find_deliveries(self, group: str, tp: tuple[int, int]) -> Deliveries | None:
        """Return the deliveries of the partition, if there are any. group: a group, or REDRIVE."""
        if group != REDRIVE:
            return self.deliveries.get(group, {}).get(tp)
        topic = self.topics.get(tp[0])
        return None if topic is None else topic.redrives.get(tp[1])

    def forget_deliveries(self, group: str, tp: tuple[int, int]) -> None:
        """Forget the deliveries, so that all messages after the committed offset are new."""
        deliveries = self.deliveries.get(group, {})
        deliveries.pop(tp, None)
        if not deliveries:
            self.deliveries.pop(group, None)
        self.changes.offsets[group, tp] = self.step
        self.dying.discard((group, *tp))

    def note_progress(self, group: str, tp: tuple[int, int]) -> None:
        """Update what follows from the deliveries: the committed offset, the indexes, and a paused partition."""
        start, committed = self.deliveries[group][tp].start, self.offsets.get(group, {})
        if tp not in committed or committed[tp].offset != start:
            self.set_offset(group, tp, start)
        if group in self.groups and tp in self.groups[group].paused:
            self.touched_groups.add(group)
        self.note_deliveries(group, tp)

    def note_deliveries(self, group: str, tp: tuple[int, int]) -> None:
        """Note that deliveries have changed, and update the index of dying messages. group: a group, or REDRIVE."""
        if group == REDRIVE:
            self.changes.partitions[tp] = self.step
        else:
            self.changes.offsets[group, tp] = self.step
        deliveries = self.find_deliveries(group, tp)
        is_dying = deliveries is not None and deliveries.dying_count > 0
        (self.dying.add if is_dying else self.dying.discard)((group, *tp))

    def find_pending_offsets(self, group: str) -> dict[tuple[int, int], str]:
        """Return the partitions of the group that open transactions hold: (topic_id, partition) -> transactional id."""
        return {
            tp: name
            for name in sorted(self.ongoing)
            for tp in self.transactions[name].list_partitions(group)
            if tp[0] in self.topics
        }


# Checks of offsets against the log, for the rule that decides and for the client that sends them.


MAX_METADATA = 4096
"""Characters of the metadata of an offset."""


def check_commits(state: State, commits: Sequence[OffsetCommit]) -> list[int]:
    """Return the topic id of each commit.

    Raises UnknownTopicOrPartition, UnknownTopicId (the topic is deleted, even if its name exists again),
    OffsetOutOfRange (beyond the high watermark), OffsetMetadataTooLarge, InvalidRequest (too many).
    """
    if len(commits) > MAX_OFFSETS:
        raise InvalidRequest("Too many offsets.", found=len(commits), expected=f"at most {MAX_OFFSETS}")
    return [_check_commit(state, commit) for commit in commits]


def _check_commit(state: State, commit: OffsetCommit) -> int:
    topic = state.topic(commit.topic) if commit.topic_id is None else state.topics.get(commit.topic_id)
    if topic is None:
        raise UnknownTopicId(found=f"{shorten(commit.topic)} with id {commit.topic_id}")
    topic_id, partition = topic.find_partition(commit.partition)
    high_watermark = int(topic.high_watermarks[partition])
    if not 0 <= commit.offset <= high_watermark:
        raise OffsetOutOfRange(
            f"{commit.topic}-{partition} does not reach this offset.",
            found=commit.offset,
            expected=f"0 to {high_watermark}",
        )
    if commit.metadata is not None and len(commit.metadata) > MAX_METADATA:
        raise OffsetMetadataTooLarge(
            found=f"{len(commit.metadata)} characters", expected=f"at most {MAX_METADATA} characters"
        )
    return topic_id
