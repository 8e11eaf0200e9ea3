"""What the sequencer knows. Always the fold of `evolve` over the journal, from a snapshot in the projections.

It holds one entry per topic, partition, producer, transactional id, group's partition, application, client and range of
rows that wait, and nothing per segment or message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import UnknownTopicOrPartition
from ..names import folded, shown
from .assignments import Group
from .clients import Client
from .dead_letters import REDRIVE
from .delays import Delays
from .deliveries import Deliveries
from .log import Application
from .offsets import CommittedOffset
from .producers import ProducerState
from .segments import Segments
from .topics import Topic
from .transactions import Transaction


@dataclass
class State:
    """`now_ms` is the time of the last decision; `step` the last step folded in.

    topics: those that are there; a deleted one is gone, and its id is never used again. ongoing: transactional ids with
    an open transaction; offsets: group -> (topic_id, partition) -> how far it has come; deliveries: the same of `queue`
    groups, what became of messages past that; dying: (group, topic_id, partition) in which some are dying, also REDRIVE
    for dead letters that are to go back; touched_groups: those in which, or in a topic of which, something has happened
    in this step, or of which the one before has left something to move; resumed: (topic_id, partition) -> where it goes
    on, of those that this step has begun again; lent: topics that a snapshot has as well, to be replaced (`own`) and
    not changed.

    A namespace may have very many topics: no request looks through all of them. So there are, beside their ids by name,
    folded_names: folded name -> the one that a topic has; subscribers: name -> subscriptions, of those that have any;
    draining: ids of those that are given up partitions.
    Nor does a step look through all groups: manned_groups are those with members, waiting_groups those of which
    something waits, for an assignor, for the end of a delay, or for a partition to be given up.
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
    folded_names: dict[str, str] = field(default_factory=dict)
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
    manned_groups: set[str] = field(default_factory=set)
    waiting_groups: set[str] = field(default_factory=set)
    delays: Delays = field(default_factory=Delays)
    lent: set[int] = field(default_factory=set)

    def topic(self, name: str) -> Topic:
        """The topic of this name; raises UnknownTopicOrPartition."""
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition("There is no such topic.", found=shown(name))
        return self.topics[topic_id]

    def add(self, topic: Topic) -> None:
        """A topic that is new."""
        self.topics[topic.topic_id] = topic
        self.topic_ids[topic.topic] = topic.topic_id
        self.folded_names[folded(topic.topic)] = topic.topic
        self.note_draining(topic)
        if topic.subscriptions:
            self.subscribers[topic.topic] = topic.subscriptions

    def remove(self, topic_id: int) -> None:
        """A topic is there no more, if it was."""
        topic = self.topics.pop(topic_id, None)
        if topic is not None:
            self.topic_ids.pop(topic.topic, None)
            self.folded_names.pop(folded(topic.topic), None)
            self.subscribers.pop(topic.topic, None)
        self.lent.discard(topic_id)
        self.draining.discard(topic_id)
        self.dying = {one for one in self.dying if one[1] != topic_id}

    def note_draining(self, topic: Topic) -> None:
        """Its partitions have changed."""
        (self.draining.add if topic.draining_count else self.draining.discard)(topic.topic_id)

    def subscribe(self, topic_id: int, subscriptions: list[str]) -> None:
        """From now on these are the topic's."""
        topic = self.own(topic_id)
        topic.subscriptions = subscriptions
        self.subscribers.pop(topic.topic, None)
        if subscriptions:
            self.subscribers[topic.topic] = subscriptions

    def own(self, topic_id: int) -> Topic:
        """The topic, to be changed: a copy takes its place first where a snapshot has it as well."""
        if topic_id in self.lent:
            self.lent.discard(topic_id)
            self.topics[topic_id] = self.topics[topic_id].copy()
        return self.topics[topic_id]

    def append(self, segments: Segments) -> None:
        """These end the logs that they are of. Of each log they stand in the order of their offsets."""
        names = ("topic_id", "partition", "last_offset")
        for topic_id, partition, last in zip(*(segments.column(name) for name in names), strict=True):
            self.own(topic_id).high_watermarks[partition] = last + 1

    def snapshot(self) -> State:
        """The same, with topics that stay as they are while this one goes on; the rest is shared."""
        self.lent = set(self.topics)
        return replace(
            self,
            topics=dict(self.topics),
            topic_ids=dict(self.topic_ids),
            folded_names=dict(self.folded_names),
            subscribers=dict(self.subscribers),
            draining=set(self.draining),
            lent=set(self.topics),
        )

    def without_clients(self, with_groups: bool) -> State:
        """The same as who decides nothing loads it: what its tail tells of producers, and of groups, is left out."""
        left = replace(self, producers={}, applications={}, clients={}, transactions={}, ongoing=set(), delays=Delays())
        if with_groups:
            return left
        left = replace(left, offsets={}, deliveries={}, dying=set())
        return replace(left, groups={}, manned_groups=set(), waiting_groups=set())

    def begin_step(self) -> None:
        """Nothing has happened in it yet; but what the one before has left to move goes on."""
        self.touched_groups = self.moving_on()
        self.resumed.clear()
        self.delays.begin_step()

    def moving_on(self) -> set[str]:
        """Groups of which the next step moves more than this one could."""
        return {name for name in self.touched_groups if name in self.groups and self.groups[name].is_moving_on}

    def note_group(self, name: str) -> None:
        """Something of this group has changed."""
        group = self.groups.get(name)
        is_manned, is_waiting = group is not None and bool(group.members), group is not None and group.is_waiting
        (self.manned_groups.add if is_manned else self.manned_groups.discard)(name)
        (self.waiting_groups.add if is_waiting else self.waiting_groups.discard)(name)

    def groups_with(self, topic_id: int) -> Iterator[str]:
        """Those that have partitions of this topic."""
        return (name for name, group in self.groups.items() if topic_id in group.partition_counts)

    def group_places(self, group: str) -> list[tuple[int, int]]:
        """(topic_id, partition) in which the group has committed something, or which it has, in order."""
        known = self.groups.get(group)
        return self.there({*self.offsets.get(group, ()), *(known.assignments if known else ())})

    def offsets_retention_ms(self, group: str, default_ms: int) -> int:
        """How long the group keeps what it has committed once it has no members; -1: for good."""
        known = self.groups.get(group)
        return int(known.config.get("offsets.retention.ms", default_ms)) if known else default_ms

    def there(self, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of these (topic_id, partition) those whose topic was not deleted meanwhile, in order."""
        return sorted(place for place in places if place[0] in self.topics)

    def note_offset(self, group: str, place: tuple[int, int], offset: int, metadata: str | None = None) -> None:
        """The group has come so far now."""
        committed = self.offsets.setdefault(group, {})
        before = committed.get(place)
        counts = (before.deleted_count, before.expired_count) if before else ()
        committed[place] = CommittedOffset(offset, metadata, self.now_ms, *counts)

    def deliveries_of(self, group: str, place: tuple[int, int]) -> Deliveries | None:
        """None: nothing was delivered of it yet. group: or REDRIVE."""
        if group != REDRIVE:
            return self.deliveries.get(group, {}).get(place)
        topic = self.topics.get(place[0])
        return None if topic is None else topic.redrives.get(place[1])

    def forget_deliveries(self, group: str, place: tuple[int, int]) -> None:
        """Whatever follows is delivered as if it were new."""
        known = self.deliveries.get(group, {})
        known.pop(place, None)
        if not known:
            self.deliveries.pop(group, None)
        self.dying.discard((group, *place))

    def note_dying(self, group: str, place: tuple[int, int]) -> None:
        """Something of these deliveries has changed."""
        known = self.deliveries_of(group, place)
        is_dying = known is not None and known.dying_count > 0
        (self.dying.add if is_dying else self.dying.discard)((group, *place))

    def pending_offsets(self, group: str) -> dict[tuple[int, int], str]:
        """What open transactions hold back for the group: (topic_id, partition) -> the transactional id."""
        return {
            place: name
            for name in sorted(self.ongoing)
            for place in self.transactions[name].places_of(group)
            if place[0] in self.topics
        }
