"""Find what holds up a group: its members, open transactions, and in queue groups undelivered messages."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ...protocol.codec.beat import FencedMember, OverdueMember
from ...protocol.values.assignments import Group, GroupMember, PartitionStatus, TopicIdPartition
from ...protocol.values.deliveries import MAX_STRETCHES, Deliveries, DeliveryPolicy, DeliveryStatus
from ...protocol.values.state import State
from ...protocol.values.transactions import Transaction
from ..arguments import format_time
from .lag import PartitionLag

StallKind = Literal[
    "instance id",
    "handover",
    "unbound",
    "last delivery",
    "bound",
    "silent",
    "waiting",
    "ranges",
    "no heartbeat",
    "no poll",
    "open transaction",
    "missing topic",
]


@dataclass(frozen=True)
class Stall:
    """Something that holds up a group.

    Attributes:
        kind: in a queue group `last delivery`: a message must come alone, and its member has others. `bound`: the
            member has as many messages as it may. `silent`: it polls and acknowledges nothing. `waiting`: a message
            that was given back waits for its time. `ranges`: too many ranges of messages are in different states. In
            every group `instance id`: two consumers that live use that of the member. `handover`: the member is to give
            up partitions. `unbound`: its partitions wait for it, because it is lost and may return. `no heartbeat`, `no
            poll`: none has come from the member for long. `open transaction`: readers of committed messages have read
            all up to it. `missing topic`: the member subscribes to a topic that does not exist.
        member_id: the member that is in the way; empty for a transaction.
        topic, partition, offset: the message that is in the way; None if it is the member itself.
        found, advice: two sentences: the trouble, and the cure.
        commands: those of `lakemq` that the advice means, each as its words.
        since_ms: in ms since 1970, when the member last acknowledged or got messages of the partition, sent a heartbeat
            or polled, when it was to give up partitions or took over an instance id, when the transaction began, or
            when the member of a missing topic joined.
        patience_ms: how long such a stall may last before it is overdue; None: it ends by itself.
        transactional_id: of the open transaction.
    """

    kind: StallKind
    member_id: str
    topic: str | None
    partition: int | None
    offset: int | None
    found: str
    advice: str
    since_ms: int
    patience_ms: int | None
    transactional_id: str | None = None
    commands: Sequence[Sequence[str]] = ()

    def __str__(self) -> str:
        return f"{self.found} {write_advice(self.advice, self.commands)}"

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether the stall has lasted longer than is usual while work goes on."""
        return self.patience_ms is not None and now_ms - self.since_ms > self.patience_ms


def write_advice(advice: str, commands: Sequence[Sequence[str]], path: str | None = None) -> str:
    """Return an advice with its commands, as one line for a shell. path: of the namespace, to be named in them."""
    start = ["lakemq", "--path", path] if path else ["lakemq"]
    lines = " && ".join(" ".join(map(_quote, [*start, *command])) for command in commands)
    return f"{advice} Command: `{lines}`." if lines else advice


def _quote(word: str) -> str:
    """Return a word as shells read it, those like bash also with characters that a screen would obey."""
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{''.join(c if c.isprintable() else _escape(c) for c in plain)}'"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


class MemberNotes(NamedTuple):
    """What is known of members of all groups beside the state.

    Attributes:
        overdue: the members that the leader has noted as overdue.
        fenced: the members that lived when another one took over their instance id.
        deletions: a sentence for each topic that members subscribe to and that was deleted.
    """

    overdue: Sequence[OverdueMember] = ()
    fenced: Sequence[FencedMember] = ()
    deletions: Mapping[str, str] = {}


NO_NOTES = MemberNotes()


# Find what holds up the deliveries of a queue group: which member, since when, and what to do about it.


_OVERDUE_MS = 60_000
"""Shorter stalls come and go while a group works; `max_poll_interval_ms` of the member, if that is less."""


@dataclass(frozen=True)
class _QueuePartition:
    """A partition of a member with messages that were delivered and are not finished, and what became of them."""

    topic_partition: TopicIdPartition
    name: str
    topic: str
    status: PartitionStatus
    deliveries: Deliveries


def find_queue_stalls(state: State, group: Group, member_id: str | None = None) -> list[Stall]:
    """Return what holds up deliveries to the members of a queue group, or to one member; empty for other groups."""
    if not group.is_queue:
        return []
    members = [member for member in group.members.values() if member_id in (None, member.member_id)]
    return [
        stall
        for member in sorted(members, key=lambda member: member.number)
        for stall in _find_member_stalls(state, group, member)
    ]


def _find_member_stalls(state: State, group: Group, member: GroupMember) -> Iterator[Stall]:
    all_deliveries = state.deliveries.get(group.group, {})
    own = group.partitions_by_owner.get(member.member_id, ())
    partitions = [
        _QueuePartition(tp, f"{assignment.topic}-{tp[1]}", assignment.topic, assignment.status, all_deliveries[tp])
        for tp in sorted(tp for tp in own if tp in all_deliveries and all_deliveries[tp].stretches)
        for assignment in (group.assignments[tp],)
    ]
    unfinished = [partition for partition in partitions if partition.deliveries.held_count]
    yield from _find_last_deliveries(group, member, partitions, unfinished)
    yield from _find_bound(group, member, unfinished)
    yield from _find_silent(state, group, member, unfinished)
    for partition in partitions:
        if partition.status is PartitionStatus.READY:
            yield from _find_waiting(state, group, member, partition)
            yield from _find_too_many_ranges(member, partition)


def _find_last_deliveries(
    group: Group, member: GroupMember, partitions: list[_QueuePartition], unfinished: list[_QueuePartition]
) -> Iterator[Stall]:
    """Yield messages that wait for their last delivery, while the member has other messages."""
    policy = DeliveryPolicy.from_group(group)
    if not unfinished:
        return
    oldest = min(unfinished, key=lambda partition: partition.deliveries.silent_since_ms)
    count = sum(partition.deliveries.held_count for partition in unfinished)
    for partition in partitions:
        given_back = (DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING)
        stretch = next((part for part in partition.deliveries.stretches if part.status in given_back), None)
        if partition.status is not PartitionStatus.READY or stretch is None or not policy.is_last(stretch):
            continue
        sentence = (
            f"{partition.name}, offset {stretch.first} waits for its last delivery, which comes alone, and no partition"
            f" of member {member.member_id} gets anything more: the member has {_count_messages(count)} that it has not"
            f" acknowledged, the first is {oldest.name}, offset {oldest.deliveries.first_held}."
        )
        yield _build_stall("last delivery", member, oldest, sentence, "Acknowledge them, or give them back with nack.")


def _find_bound(group: Group, member: GroupMember, unfinished: list[_QueuePartition]) -> Iterator[Stall]:
    """Yield a stall if the member has as many messages as it may."""
    bound = int(group.setting("max.delivered.unacked.msgs.per.flow"))
    count = sum(partition.deliveries.held_count for partition in unfinished)
    if count < bound:
        return
    oldest = min(unfinished, key=lambda partition: partition.deliveries.silent_since_ms)
    sentence = (
        f"Member {member.member_id} has {_count_messages(count)} that it has not acknowledged, and"
        f" max.delivered.unacked.msgs.per.flow is {bound}: the first is {oldest.name}, offset"
        f" {oldest.deliveries.first_held}."
    )
    advice = "Acknowledge them, give them back with nack, or raise max.delivered.unacked.msgs.per.flow."
    yield _build_stall("bound", member, oldest, sentence, advice)


def _find_silent(state: State, group: Group, member: GroupMember, unfinished: list[_QueuePartition]) -> Iterator[Stall]:
    """Yield partitions whose messages the member does not acknowledge. It polls, so the group does not find it lost."""
    for partition in unfinished:
        since_ms = partition.deliveries.silent_since_ms
        if since_ms and state.now_ms - since_ms > member.max_poll_interval_ms:
            count = _count_messages(partition.deliveries.held_count)
            sentence = (
                f"Member {member.member_id} polls, and has acknowledged nothing of {partition.name} since"
                f" {format_time(since_ms)}: it has {count} of it, the first is offset"
                f" {partition.deliveries.first_held}."
            )
            advice = "Acknowledge them or give them back, or restart its process, or remove the member."
            remove = _remove_member(group, member)
            yield replace(_build_stall("silent", member, partition, sentence, advice), commands=remove)


def _find_waiting(state: State, group: Group, member: GroupMember, partition: _QueuePartition) -> Iterator[Stall]:
    """Yield a message that waits for its time while nothing later of the partition may be delivered."""
    waiting = (part for part in partition.deliveries.stretches if part.status is DeliveryStatus.WAITING)
    stretch = next(waiting, None)
    if stretch is None or stretch.not_before_ms <= state.now_ms or not DeliveryPolicy.from_group(group).in_order:
        return
    sentence = (
        f"{partition.name}, offset {stretch.first} was given back and comes again at"
        f" {format_time(stretch.not_before_ms)}; until then nothing later of {partition.name} is delivered"
        f" (nack.order is partition)."
    )
    yield Stall(
        "waiting",
        member.member_id,
        partition.topic,
        partition.topic_partition[1],
        stretch.first,
        sentence,
        "Wait, give back with a shorter delay, or set nack.order to none.",
        stretch.not_before_ms,
        None,
    )


def _find_too_many_ranges(member: GroupMember, partition: _QueuePartition) -> Iterator[Stall]:
    count = len(partition.deliveries.stretches)
    if count < MAX_STRETCHES or not partition.deliveries.held_count:
        return
    sentence = (
        f"{partition.name} has {count} ranges of messages in different states, and gets nothing new: member"
        f" {member.member_id} has not acknowledged offset {partition.deliveries.first_held}."
    )
    yield _build_stall("ranges", member, partition, sentence, "Acknowledge the oldest messages first.")


def _build_stall(kind: StallKind, member: GroupMember, partition: _QueuePartition, trouble: str, advice: str) -> Stall:
    """Return a stall that ends when the member acknowledges messages of this partition."""
    patience_ms = member.max_poll_interval_ms if kind == "silent" else min(_OVERDUE_MS, member.max_poll_interval_ms)
    return Stall(
        kind,
        member.member_id,
        partition.topic,
        partition.topic_partition[1],
        partition.deliveries.first_held or 0,
        trouble,
        advice,
        partition.deliveries.silent_since_ms,
        patience_ms,
    )


def _count_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


# Find what holds up a group: its members, open transactions, and what its deliveries wait for.


_SHORTEST_TRANSACTION_MS = 10_000
"""Most transactions end sooner, and a group waits for them as it should."""
_TRANSACTION_PATIENCE_MS = 60_000
_SHOWN_PARTITIONS = 3
_RESTART = "Restart it, or give its partitions to others now."
_FENCED_MS = 3_600_000
"""How long a group shows that two consumers used one instance id. With a restart of the first it happens again."""


def find_stalls(state: State, name: str, lags: Iterable[PartitionLag], notes: MemberNotes, now_ms: int) -> list[Stall]:
    """Return what holds up a group: first its members, then the transactions that its readers wait for.

    Args:
        state: as of the newest step, with groups and transactions.
        name: of the group.
        lags: of its partitions.
        notes: of members of all groups.
        now_ms: the time of the store.
    """
    group = state.groups.get(name)
    stalls: list[Stall] = []
    if group is not None:
        stalls += _find_shared_instances(group, notes.fenced, now_ms)
        stalls += _find_slow_owners(group)
        stalls += _find_lost_owners(group)
        stalls += _find_overdue_members(group, notes.overdue)
        stalls += _find_missing_topics(state, group, notes.deletions)
        stalls += find_queue_stalls(state, group)
    # A group that has read all before an open transaction has exactly the offsets after that left.
    held_back = [
        (state.topic_ids[lag.topic], lag.partition)
        for lag in lags
        if 0 < lag.lag == lag.high_watermark - lag.last_stable_offset
    ]
    transactions = find_open_transactions(state, held_back, now_ms)
    return [*stalls, *(stall for stall in transactions if now_ms - stall.since_ms > _SHORTEST_TRANSACTION_MS)]


def _find_shared_instances(group: Group, fenced: Iterable[FencedMember], now_ms: int) -> Iterator[Stall]:
    """Yield the instance ids that two consumers used lately while both lived."""
    for member in fenced:
        if member.group != group.group or now_ms - member.fenced_at_ms > _FENCED_MS:
            continue
        first = f"{member.member_id} (process {member.process_id} on {member.host})"
        second = f"{member.successor_id} (process {member.successor_process_id} on {member.successor_host})"
        trouble = (
            f"Two consumers use the instance id {member.instance_id}: {first} lived when"
            f" {second if member.successor_id else 'another one'} took it over at {format_time(member.fenced_at_ms)}."
        )
        advice = (
            "Give each consumer that runs an instance id of its own, such as the name of its host, or end one of them."
        )
        yield Stall("instance id", member.successor_id, None, None, None, trouble, advice, member.fenced_at_ms, 0)


def _find_slow_owners(group: Group) -> Iterator[Stall]:
    """Yield the members that are to give up partitions, and have not yet."""
    paused_by_owner: dict[str, list[TopicIdPartition]] = {}
    for tp in sorted(group.paused):
        paused_by_owner.setdefault(group.assignments[tp].owner or "", []).append(tp)
    for member in sorted(group.members.values(), key=lambda member: member.number):
        paused = paused_by_owner.get(member.member_id, [])
        if not paused:
            continue
        since_ms = min(group.assignments[tp].since_ms for tp in paused)
        bound = (
            f"max.handoff.ms ({group.setting('max.handoff.ms')})"
            if group.is_queue
            else f"max_poll_interval_ms ({member.max_poll_interval_ms})"
        )
        trouble = (
            f"Member {_describe_member(member)} has been asked at {format_time(since_ms)} to give up"
            f" {_shorten_list([f'{group.assignments[tp].topic}-{tp[1]}' for tp in paused])}, and has not yet."
        )
        step = "acknowledge what it has of them" if group.is_queue else "poll"
        advice = f"It has to {step}; after {bound} it loses them."
        yield Stall("handover", member.member_id, None, None, None, trouble, advice, since_ms, None)


def _find_lost_owners(group: Group) -> Iterator[Stall]:
    """Yield the lost members for which their partitions wait."""
    unbound_by_owner: dict[str, list[TopicIdPartition]] = {}
    for tp, assignment in sorted(group.assignments.items()):
        if assignment.status is PartitionStatus.UNBOUND:
            unbound_by_owner.setdefault(assignment.lost_by or "", []).append(tp)
    for member_id, unbound in unbound_by_owner.items():
        since_ms = min(group.assignments[tp].since_ms for tp in unbound)
        names = _shorten_list([f"{group.assignments[tp].topic}-{tp[1]}" for tp in unbound])
        trouble = (
            f"{names} wait{'s' if len(unbound) == 1 else ''} for member {member_id}, which was lost at"
            f" {format_time(since_ms)} and may return until {format_time(group.not_before_ms)}"
            f" ({group.rebalance_delay_setting})."
        )
        advice = "Start it again, or wait: then other members get them."
        yield Stall("unbound", member_id, None, None, None, trouble, advice, since_ms, None)


def list_missing_topics(state: State, group: Group) -> dict[str, list[GroupMember]]:
    """Return the topics that members name and that do not exist, each with these members."""
    members_by_topic: dict[str, list[GroupMember]] = {}
    for member in sorted(group.members.values(), key=lambda member: member.number):
        for topic in () if member.pattern is not None else member.topics:
            if topic not in state.topic_ids:
                members_by_topic.setdefault(topic, []).append(member)
    return members_by_topic


def _find_missing_topics(state: State, group: Group, deletions: Mapping[str, str]) -> Iterator[Stall]:
    for topic, members in list_missing_topics(state, group).items():
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        trouble = (
            f"Topic {topic}, to which member {_describe_member(members[0])}{more} subscribe{'' if more else 's'}, does"
            f" not exist. {deletions.get(topic, '')}"
        ).rstrip()
        first, advice, create = members[0], "Start the members without it, or create it.", [["topics", "create", topic]]
        yield Stall(
            "missing topic", first.member_id, topic, None, None, trouble, advice, first.joined_at_ms, 0, None, create
        )


def _find_overdue_members(group: Group, overdue: Iterable[OverdueMember]) -> Iterator[Stall]:
    for note in overdue:
        member = group.members.get(note.member_id) if note.group == group.group else None
        if member is None:
            continue
        if note.heard_ms is not None:
            yield _describe_silent_member(group, member, note.heard_ms)
        elif note.polled_ms is not None:
            yield _describe_idle_member(group, member, note.polled_ms)


def _describe_silent_member(group: Group, member: GroupMember, heard_ms: int) -> Stall:
    trouble = (
        f"Member {_describe_member(member)} has sent no heartbeat since {format_time(heard_ms)}. It keeps"
        f" {_count_partitions(group, member)} until its session ends at"
        f" {format_time(heard_ms + member.session_timeout_ms)}."
    )
    advice = f"Its process is stopped, or cut off. {_RESTART}"
    remove = _remove_member(group, member)
    return Stall("no heartbeat", member.member_id, None, None, None, trouble, advice, heard_ms, 0, commands=remove)


def _describe_idle_member(group: Group, member: GroupMember, polled_ms: int) -> Stall:
    trouble = (
        f"Member {_describe_member(member)} lives, and has not polled since {format_time(polled_ms)}. It keeps"
        f" {_count_partitions(group, member)} until {format_time(polled_ms + member.max_poll_interval_ms)}"
        f" (max_poll_interval_ms).{_describe_successor(group, member)}"
    )
    advice = f"It still works on its last messages, or hangs. {_RESTART}"
    remove = _remove_member(group, member)
    return Stall("no poll", member.member_id, None, None, None, trouble, advice, polled_ms, 0, commands=remove)


def _describe_successor(group: Group, member: GroupMember) -> str:
    """Return a sentence if the program may have forgotten this consumer, because it has made another one since."""
    later = [
        other.member_id
        for other in group.members.values()
        if other.process_id == member.process_id is not None
        and other.host == member.host
        and other.number > member.number
    ]
    return f" The same process has joined again since, as member {later[-1]}: close the first." if later else ""


def _describe_member(member: GroupMember) -> str:
    return f"{member.member_id} (process {member.process_id or 'unknown'} on {member.host or 'an unknown machine'})"


def _count_partitions(group: Group, member: GroupMember) -> str:
    count = len(list(group.list_partitions_of(member.member_id)))
    return "1 partition" if count == 1 else f"{count} partitions"


def _shorten_list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_PARTITIONS} more partitions" if len(names) > _SHOWN_PARTITIONS else ""
    return f"{', '.join(names[:_SHOWN_PARTITIONS])}{more}"


def _remove_member(group: Group, member: GroupMember) -> list[list[str]]:
    return [["groups", "remove-members", group.group, "--member", member.member_id]]


def find_open_transactions(state: State, partitions: Iterable[TopicIdPartition], now_ms: int) -> Iterator[Stall]:
    """Yield the transactions that begin at the last stable offset of one of these partitions, the oldest first."""
    held_back_by_id: dict[str, list[TopicIdPartition]] = {}
    for tp in partitions:
        transactional_id = _find_holder(state, tp)
        if transactional_id is not None:
            held_back_by_id.setdefault(transactional_id, []).append(tp)
    for name in sorted(held_back_by_id, key=lambda name: state.transactions[name].started_at_ms or now_ms):
        yield _describe_transaction(state, state.transactions[name], name, held_back_by_id[name], now_ms)


def _find_holder(state: State, tp: TopicIdPartition) -> str | None:
    """Return the id of the transaction that begins at the last stable offset; None if it has just ended."""
    topic = state.topics.get(tp[0])
    if topic is None:
        return None
    firsts = topic.open_transactions.get(tp[1], {})
    holders = (producer_id for producer_id, first in firsts.items() if first == topic.last_stable_offsets[tp[1]])
    producer = state.producers.get(next(holders, -1))
    name = None if producer is None else producer.transactional_id
    return name if name in state.transactions else None


def _describe_transaction(
    state: State, transaction: Transaction, name: str, held_back: list[TopicIdPartition], now_ms: int
) -> Stall:
    shown = _shorten_list([f"{state.topics[tp[0]].topic}-{tp[1]}" for tp in held_back])
    began_ms = transaction.started_at_ms or now_ms
    trouble = (
        f"Readers of committed messages have read {shown} up to transaction {name}, which is open for"
        f" {(now_ms - began_ms) // 1000} s, since {format_time(began_ms)} (transaction_timeout_ms is"
        f" {transaction.timeout_ms})."
    )
    topic = state.topics[held_back[0][0]]
    return Stall(
        "open transaction",
        "",
        topic.topic,
        held_back[0][1],
        int(topic.last_stable_offsets[held_back[0][1]]),
        trouble,
        "Restart its program, or abort it.",
        began_ms,
        _TRANSACTION_PATIENCE_MS,
        name,
        [["transactions", "abort", name]],
    )
