"""Find what holds up a group: its members, open transactions, and in queue groups undelivered messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...protocol.codec.beat import FencedMember
from ...protocol.codec.overdue_member import OverdueMember
from ...protocol.values.consuming.assignments import Group, GroupMember, PartitionStatus, TopicIdPartition
from ...protocol.values.state import State
from ...protocol.values.transactions import Transaction
from ..arguments import format_time
from .partition_lag import PartitionLag
from .queue_stalls import find_queue_stalls
from .stall import MemberNotes, Stall

_SHORTEST_TRANSACTION_MS = 10_000
"""Most transactions end sooner, and a group waits for them as it should."""
_TRANSACTION_PATIENCE_MS = 60_000
_SHOWN_PARTITIONS = 3
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
    # A group that has read all before an open transaction has exactly the offsets behind that left.
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
        found = (
            f"Two consumers use the instance id {member.instance_id}: {first} lived when"
            f" {second if member.successor_id else 'another one'} took it over at {format_time(member.fenced_at_ms)}."
        )
        advice = (
            "Give each consumer that runs an instance id of its own, such as the name of its host, or end one of them."
        )
        yield Stall("instance id", member.successor_id, None, None, None, found, advice, member.fenced_at_ms, 0)


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
        found = (
            f"Member {_describe_member(member)} has been asked at {format_time(since_ms)} to give up"
            f" {_shorten_list([f'{group.assignments[tp].topic}-{tp[1]}' for tp in paused])}, and has not yet."
        )
        step = "acknowledge what it has of them" if group.is_queue else "poll"
        advice = f"It has to {step}; after {bound} it loses them."
        yield Stall("handover", member.member_id, None, None, None, found, advice, since_ms, None)


def _find_lost_owners(group: Group) -> Iterator[Stall]:
    """Yield the lost members for which their partitions wait."""
    unbound_by_owner: dict[str, list[TopicIdPartition]] = {}
    for tp, assignment in sorted(group.assignments.items()):
        if assignment.status is PartitionStatus.UNBOUND:
            unbound_by_owner.setdefault(assignment.lost_by or "", []).append(tp)
    for member_id, unbound in unbound_by_owner.items():
        since_ms = min(group.assignments[tp].since_ms for tp in unbound)
        names = _shorten_list([f"{group.assignments[tp].topic}-{tp[1]}" for tp in unbound])
        found = (
            f"{names} wait{'s' if len(unbound) == 1 else ''} for member {member_id}, which was lost at"
            f" {format_time(since_ms)} and may return until {format_time(group.not_before_ms)}"
            f" ({group.rebalance_delay_setting})."
        )
        advice = "Start it again, or wait: then other members get them."
        yield Stall("unbound", member_id, None, None, None, found, advice, since_ms, None)


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
        found = (
            f"Topic {topic}, to which member {_describe_member(members[0])}{more} subscribe{'' if more else 's'}, does"
            f" not exist. {deletions.get(topic, '')}"
        ).rstrip()
        advice = f"Create it, or start the members without it: `lakemq topics create {topic}`."
        yield Stall("missing topic", members[0].member_id, topic, None, None, found, advice, members[0].joined_at_ms, 0)


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
    found = (
        f"Member {_describe_member(member)} has sent no heartbeat since {format_time(heard_ms)}. It keeps"
        f" {_count_partitions(group, member)} until its session ends at"
        f" {format_time(heard_ms + member.session_timeout_ms)}."
    )
    advice = f"Its process is stopped, or cut off. {_advise_removal(group, member)}"
    return Stall("no heartbeat", member.member_id, None, None, None, found, advice, heard_ms, 0)


def _describe_idle_member(group: Group, member: GroupMember, polled_ms: int) -> Stall:
    found = (
        f"Member {_describe_member(member)} lives, and has not polled since {format_time(polled_ms)}. It keeps"
        f" {_count_partitions(group, member)} until {format_time(polled_ms + member.max_poll_interval_ms)}"
        f" (max_poll_interval_ms).{_describe_successor(group, member)}"
    )
    advice = f"It still works on its last messages, or hangs. {_advise_removal(group, member)}"
    return Stall("no poll", member.member_id, None, None, None, found, advice, polled_ms, 0)


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


def _advise_removal(group: Group, member: GroupMember) -> str:
    command = f"lakemq groups remove-members {group.group} --member {member.member_id}"
    return f"Restart it, or give its partitions to others now: `{command}`."


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
    found = (
        f"Readers of committed messages have read {shown} up to transaction {name}, which is open for"
        f" {(now_ms - began_ms) // 1000} s, since {format_time(began_ms)} (transaction_timeout_ms is"
        f" {transaction.timeout_ms})."
    )
    advice = f"Restart its program, or abort it: `lakemq transactions abort {name}`."
    topic = state.topics[held_back[0][0]]
    return Stall(
        "open transaction",
        "",
        topic.topic,
        held_back[0][1],
        int(topic.last_stable_offsets[held_back[0][1]]),
        found,
        advice,
        began_ms,
        _TRANSACTION_PATIENCE_MS,
        name,
    )
