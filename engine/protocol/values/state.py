"""The state of a sequencer: always the fold of `evolve` over the journal, starting from a snapshot in the tables.

It holds one entry per topic, partition, producer, transactional id, group's partition, application, client and range of
delayed rows. It holds nothing per segment or message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import UnknownTopicOrPartition
from ..names import shorten, unify_collision_chars
from .assignments import Group
from .clients import Client
from .dead_letters import REDRIVE
from .deliveries import Deliveries
from .log import Application
from .offsets import CommittedOffset
from .producers import ProducerState
from .segments import Segments
from .shards import Shards
from .topics import Topic
from .transactions import Transaction
from .waiting import Delays


@dataclass
class State:
    """The state after `step`. `now_ms` is the time of the last decision.

    topics: existing topics; the id of a deleted one is never used again. ongoing: transactional ids with an open
    transaction. offsets: group -> (topic_id, partition) -> committed offset. deliveries: the same for `queue` groups ->
    the messages past that offset. dying: (group, topic_id, partition) with dying messages; REDRIVE as the group stands
    for dead letters that are to go back. touched_groups: groups that this step has changed, directly or by their
    topics, or that the step before has left unfinished. resumed: (topic_id, partition) -> the offset at which a
    partition continues that this step uses again. shared_topics: ids of topics that a snapshot shares. They must be
    replaced by a copy (`writable_topic`) before they change.

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
    shared_topics: set[int] = field(default_factory=set)
    shards: Shards = field(default_factory=Shards)

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises UnknownTopicOrPartition."""
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition(
                "The topic does not exist. Create it with mq.topics.create() or `lakemq topics create`.",
                found=shorten(name),
            )
        return self.topics[topic_id]

    def add_topic(self, topic: Topic) -> None:
        """Add a new topic."""
        self.topics[topic.topic_id] = topic
        self.topic_ids[topic.topic] = topic.topic_id
        self.unified_names[unify_collision_chars(topic.topic)] = topic.topic
        self.index_draining(topic)
        if topic.subscriptions:
            self.subscribers[topic.topic] = topic.subscriptions

    def remove_topic(self, topic_id: int) -> None:
        """Remove a topic, if it exists."""
        topic = self.topics.pop(topic_id, None)
        if topic is not None:
            self.topic_ids.pop(topic.topic, None)
            self.unified_names.pop(unify_collision_chars(topic.topic), None)
            self.subscribers.pop(topic.topic, None)
        self.shared_topics.discard(topic_id)
        self.draining.discard(topic_id)
        self.dying = {key for key in self.dying if key[1] != topic_id}

    def index_draining(self, topic: Topic) -> None:
        """Update the index of draining topics after a topic's partitions have changed."""
        (self.draining.add if topic.draining_count else self.draining.discard)(topic.topic_id)

    def set_subscriptions(self, topic_id: int, subscriptions: list[str]) -> None:
        """Replace the topic's subscriptions."""
        topic = self.writable_topic(topic_id)
        topic.subscriptions = subscriptions
        self.subscribers.pop(topic.topic, None)
        if subscriptions:
            self.subscribers[topic.topic] = subscriptions

    def writable_topic(self, topic_id: int) -> Topic:
        """Return the topic in order to change it. A topic that a snapshot shares is replaced by a copy first."""
        if topic_id in self.shared_topics:
            self.shared_topics.discard(topic_id)
            self.topics[topic_id] = self.topics[topic_id].copy()
        return self.topics[topic_id]

    def advance_logs(self, segments: Segments) -> None:
        """Move high watermarks to the ends of these segments, which are in the order of their offsets within each
        partition.
        """
        names = ("topic_id", "partition", "last_offset")
        for topic_id, partition, last in zip(*(segments.column(name) for name in names), strict=True):
            self.writable_topic(topic_id).high_watermarks[partition] = last + 1

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
        )

    def without_clients(self, with_groups: bool) -> State:
        """Return the state as a reader loads it, without producers, clients and delays; without groups unless asked
        for.
        """
        reduced = replace(
            self, producers={}, applications={}, clients={}, transactions={}, ongoing=set(), delays=Delays()
        )
        if with_groups:
            return reduced
        reduced = replace(reduced, offsets={}, deliveries={}, dying=set())
        return replace(reduced, groups={}, groups_with_members=set(), waiting_groups=set())

    def begin_step(self) -> None:
        """Reset what belongs to a single step. Unfinished moves of the step before continue."""
        self.touched_groups = self.list_moving_groups()
        self.resumed.clear()
        self.delays.begin_step()

    def list_moving_groups(self) -> set[str]:
        """Return the groups with moves that this step has left to the next one."""
        return {name for name in self.touched_groups if name in self.groups and self.groups[name].is_moving_on}

    def index_group(self, name: str) -> None:
        """Update the indexes of groups after a group has changed."""
        group = self.groups.get(name)
        is_manned, is_waiting = group is not None and bool(group.members), group is not None and group.is_waiting
        (self.groups_with_members.add if is_manned else self.groups_with_members.discard)(name)
        (self.waiting_groups.add if is_waiting else self.waiting_groups.discard)(name)

    def list_groups_with(self, topic_id: int) -> Iterator[str]:
        """Yield the groups that have partitions of this topic."""
        return (name for name, group in self.groups.items() if topic_id in group.partition_counts)

    def list_group_places(self, group: str) -> list[tuple[int, int]]:
        """Return the (topic_id, partition) that the group has committed or owns, sorted."""
        state_of_group = self.groups.get(group)
        return self.existing_places(
            {*self.offsets.get(group, ()), *(state_of_group.assignments if state_of_group else ())}
        )

    def offsets_retention_ms(self, group: str, default_ms: int) -> int:
        """Return how long the group keeps its offsets without members; -1: for good."""
        state_of_group = self.groups.get(group)
        return int(state_of_group.config.get("offsets.retention.ms", default_ms)) if state_of_group else default_ms

    def existing_places(self, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those (topic_id, partition) whose topic still exists, sorted."""
        return sorted(place for place in places if place[0] in self.topics)

    def set_offset(self, group: str, place: tuple[int, int], offset: int, metadata: str | None = None) -> None:
        """Set the committed offset of the group. Its counts of lost messages stay."""
        committed = self.offsets.setdefault(group, {})
        before = committed.get(place)
        counts = (before.deleted_count, before.expired_count) if before else ()
        committed[place] = CommittedOffset(offset, metadata, self.now_ms, *counts)

    def find_deliveries(self, group: str, place: tuple[int, int]) -> Deliveries | None:
        """Return the deliveries of the partition, if there are any. group: a group, or REDRIVE."""
        if group != REDRIVE:
            return self.deliveries.get(group, {}).get(place)
        topic = self.topics.get(place[0])
        return None if topic is None else topic.redrives.get(place[1])

    def forget_deliveries(self, group: str, place: tuple[int, int]) -> None:
        """Forget the deliveries, so that all messages after the committed offset are new."""
        deliveries = self.deliveries.get(group, {})
        deliveries.pop(place, None)
        if not deliveries:
            self.deliveries.pop(group, None)
        self.dying.discard((group, *place))

    def index_dying(self, group: str, place: tuple[int, int]) -> None:
        """Update the index of dying messages after deliveries have changed."""
        deliveries = self.find_deliveries(group, place)
        is_dying = deliveries is not None and deliveries.dying_count > 0
        (self.dying.add if is_dying else self.dying.discard)((group, *place))

    def find_pending_offsets(self, group: str) -> dict[tuple[int, int], str]:
        """Return the partitions of the group that open transactions hold: (topic_id, partition) -> transactional id."""
        return {
            place: name
            for name in sorted(self.ongoing)
            for place in self.transactions[name].list_places(group)
            if place[0] in self.topics
        }
