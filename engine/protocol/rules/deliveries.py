"""Messages of `queue` groups: who acquires them, what became of them, when they are given up.

A message is delivered to the owner of its partition alone, lowest offset first. What that one has is its own until it
says what became of it, or until its assignment ends; then it is delivered again, marked, before anything new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ..errors import (
    FencedMemberEpoch,
    IllegalState,
    InvalidRecordState,
    InvalidRequest,
    NoOffsetForPartition,
    UnknownMemberId,
)
from ..names import check_group, shown
from ..values.assignments import Group, PartitionStatus, Place
from ..values.base import Done, Record
from ..values.deciding import Decision, Given
from ..values.deliveries import (
    MAX_RANGES,
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    Acquire,
    DeathReason,
    Deliveries,
    DeliveryStatus,
    MessagesAcquired,
    MessagesPassed,
    MessagesSettled,
    Outcome,
    Policy,
    Range,
    Settled,
    Stretch,
    Taken,
    Wanted,
    ranges_of,
)
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from .giving_back import died, given_back
from .reconciling import start_of
from .registries import Folds, Rules
from .timers import Timers
from .transactions import joined, open_transaction

# -- acquiring ------------------------------------------------------------------------------------------


def decide_acquire(state: State, request: Acquire, given: Given) -> Decision:
    """What there is for the member, at most as much as it wants; nothing of partitions that are not its own any more.

    Raises InvalidGroupId, UnknownMemberId, IllegalState (the group is no queue), NoOffsetForPartition.
    """
    group = _queue_of(state, request.group, request.member_id)
    bound = 2 * int(group.setting("max.delivered.unacked.msgs.per.flow"))  # a batch ahead is as much again
    has = _held_count(state, group, request.member_id)
    passed: list[Record] = []
    known = {one.place: _known(state, group, one, passed) for one in _owned(state, group, request)}
    wanted = {one.place: one.count for one in request.wanted if one.place in known}
    # a message that stops its consumer is not to take others with it: for the last time it comes alone
    policy = Policy.of(group)
    lasts = [place for place in wanted if known[place].next_is_last(policy, state.now_ms)]
    if lasts:
        wanted = {} if has else {lasts[0]: 1}
    taken: list[Taken] = []
    for place, count in wanted.items():
        end = _readable_end(state, group, place)
        if ranges := known[place].next_ranges(policy, end, min(count, bound - has), state.now_ms):
            taken.append(Taken(*place, ranges))
            has += sum(length for _, length in ranges)
    if taken:
        passed.append(MessagesAcquired(request.group, request.member_id, taken))
    return Decision(Done(), tuple(map(JournalEntry, passed)))


def _owned(state: State, group: Group, request: Acquire) -> list[Wanted]:
    """What is wanted of partitions that the member has and is not to give up."""
    known = ((one, group.assignments.get(one.place)) for one in request.wanted if one.topic_id in state.topics)
    return [
        one
        for one, assigned in known
        if assigned is not None
        and (assigned.owner, assigned.epoch) == (request.member_id, one.epoch)
        and assigned.status is PartitionStatus.READY
    ]


def _queue_of(state: State, name: str, member_id: str) -> Group:
    check_group(name)
    group = state.groups.get(name)
    if group is None or member_id not in group.members:
        raise UnknownMemberId(found=shown(member_id))
    if not group.is_queue:
        raise IllegalState(
            "Messages are acquired and acknowledged in queue groups.", found=group.setting("group.protocol")
        )
    return group


def _held_count(state: State, group: Group, member_id: str) -> int:
    known = state.deliveries.get(group.group, {})
    return sum(known[place].held_count for place in group.owned(member_id) if place in known)


def _known(state: State, group: Group, one: Wanted, entries: list[Record]) -> Deliveries:
    """What is known of the partition, as of its log start: what was deleted before the group came to it is passed."""
    place = one.place
    known = state.deliveries_of(group.group, place)
    if known is None:
        start = start_of(state, group, place, group.assignments[place].owner)
        if start is None:
            raise NoOffsetForPartition(found=f"group {group.group}, {group.assignments[place].topic}-{place[1]}")
        known = Deliveries(start)
    log_start = int(state.topics[place[0]].log_starts[place[1]])
    if known.start < log_start:
        entries.append(MessagesPassed(group.group, *place, log_start))
        known = known.copy()
        known.cut_off(log_start)
    return known


def _readable_end(state: State, group: Group, place: Place) -> int:
    topic = state.topics[place[0]]
    if group.setting("isolation.level") == "read_committed":
        return int(topic.last_stable_offsets[place[1]])
    return int(topic.high_watermarks[place[1]])


# -- what became of them --------------------------------------------------------------------------------


def decide_acknowledge(state: State, request: Acknowledge, given: Given) -> Decision:
    """What the member says of messages that it has; parts that it cannot say are left out.

    To say again that a message is done with is fine, in a transaction not of all of them. Raises InvalidGroupId,
    UnknownMemberId, IllegalState (the group is no queue), InvalidRequest; in a transaction, where it is all or nothing,
    also FencedMemberEpoch, InvalidRecordState, InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    ref = request.transaction
    if ref is not None:
        open_transaction(state, ref)
    group = _queue_of(state, request.group, request.member_id)
    _check_parts(request)
    fenced: list[int] = []
    invalid: list[int] = []
    parts: list[Settled] = []
    for number, one in enumerate(request.parts):
        assigned = group.assignments.get(one.place)
        if assigned is None or (assigned.owner, assigned.epoch) != (request.member_id, one.epoch):
            fenced.append(number)
        elif not _has_all(state, group, one):
            invalid.append(number)
        else:
            parts += _settled(state, group, one, pending=ref is not None)
    if ref is not None and fenced:
        raise FencedMemberEpoch(found=[_shown(group, request.parts[i]) for i in fenced])
    if ref is not None and invalid:
        raise InvalidRecordState(found=[_shown(group, request.parts[i]) for i in invalid])
    if ref is not None and not parts:
        # asked once more after a commit whose answer was lost, it would publish a second time
        raise InvalidRecordState("All of these messages are done with already.", expected="some that are not")
    result = AcknowledgementsJudged(fenced, invalid)
    if not parts:
        return Decision(result)
    settled = MessagesSettled(request.group, "member", parts, ref.transactional_id if ref else None)
    begun = [] if ref is None else joined(state, ref, groups=[request.group])
    return Decision(result, (*begun, JournalEntry(settled)))


def _check_parts(request: Acknowledge) -> None:
    check_ranges(one.ranges for one in request.parts)
    for one in request.parts:
        if request.transaction is not None and one.outcome is not Outcome.ACCEPT:
            raise InvalidRequest("In a transaction messages are accepted.", found=one.outcome.value)


def check_ranges(listed: Iterable[Sequence[Range]]) -> None:
    """Of each partition of a request. Raises InvalidRequest: they are too many, or not sorted and apart."""
    partitions = list(listed)
    count = sum(map(len, partitions))
    if count > MAX_RANGES:
        raise InvalidRequest("Too many ranges.", found=count, expected=f"at most {MAX_RANGES}")
    for ranges in partitions:
        end = 0
        for first, length in ranges:
            if first < end or length < 1:
                raise InvalidRequest(
                    "The ranges are not sorted and apart.", found=[first, length], expected=f"{end} or more, and 1"
                )
            end = first + length


def _shown(group: Group, one: Acknowledgement) -> str:
    known = group.assignments.get(one.place)
    return f"{known.topic if known else one.topic_id}-{one.partition}"


def _has_all(state: State, group: Group, one: Acknowledgement) -> bool:
    """Whether the owner of the partition has all of these messages; or, of those it accepts, has accepted them."""
    known = state.deliveries_of(group.group, one.place)
    if known is None:
        return False
    found = known.within(one.ranges)
    fine = sum(part.length for part in found if _is_meant(part, one))
    if one.outcome is Outcome.ACCEPT:
        fine += sum(part.length for part in found if part.status is DeliveryStatus.ACKNOWLEDGED)
        fine += sum(max(0, min(first + count, known.start) - first) for first, count in one.ranges)
    return fine == sum(count for _, count in one.ranges)


def _is_meant(part: Stretch, one: Acknowledgement) -> bool:
    """Whether the owner has these, by the delivery that it speaks of."""
    return part.status is DeliveryStatus.ACQUIRED and one.deliveries in (None, part.deliveries)


def _settled(state: State, group: Group, one: Acknowledgement, pending: bool) -> list[Settled]:
    place = one.place
    known = state.deliveries_of(group.group, place)
    assert known is not None
    parts = [part for part in known.within(one.ranges) if _is_meant(part, one)]
    if not parts:
        return []
    if one.outcome is Outcome.ACCEPT:
        status = DeliveryStatus.PENDING if pending else DeliveryStatus.ACKNOWLEDGED
        return [Settled(*place, status, ranges_of(parts))]
    if one.outcome is Outcome.REJECT:
        return died(place, parts, DeathReason.REJECTED, one.error)
    if one.outcome is Outcome.EXPIRE:
        topic = state.topics.get(one.topic_id)
        if topic is not None and topic.setting("dead.letter.expired"):
            return died(place, parts, DeathReason.EXPIRED, "")
        return [Settled(*place, DeliveryStatus.ACKNOWLEDGED, ranges_of(parts), reason=DeathReason.EXPIRED)]
    if one.outcome is Outcome.UNSEEN:
        return [Settled(*place, DeliveryStatus.AVAILABLE, ranges_of(parts), uncounted=True)]
    settled = given_back(group, place, parts, one.error)
    return [_with_delay(state, group, one, parts, part) for part in settled]


def _with_delay(state: State, group: Group, one: Acknowledgement, parts: Sequence[Stretch], part: Settled) -> Settled:
    """What is given back waits, where it is told to."""
    if part.status is not DeliveryStatus.AVAILABLE:
        return part
    delay_ms = one.delay_ms
    if delay_ms is None:
        first_ms, most_ms = int(group.setting("nack.backoff.ms")), int(group.setting("nack.backoff.max.ms"))
        deliveries = max(stretch.deliveries for stretch in parts)
        delay_ms = min(first_ms << min(deliveries - 1, 40), most_ms)
    if not delay_ms:
        return part
    return Settled(*part.place, DeliveryStatus.WAITING, part.ranges, state.now_ms + delay_ms)


# -- folding --------------------------------------------------------------------------------------------


def evolve_acquired(state: State, record: MessagesAcquired, segments: Segments) -> None:
    known = state.deliveries.setdefault(record.group, {})
    for one in record.taken:
        if one.place not in known:
            known[one.place] = Deliveries(one.ranges[0][0])
        known[one.place].acquire(one.ranges)
        _note(state, record.group, one.place)


def evolve_settled(state: State, record: MessagesSettled, segments: Segments) -> None:
    for one in record.parts:
        known = state.deliveries_of(record.group, one.place)
        if known is None:
            continue
        known.change(one.ranges, partial(_become, one))
        _note(state, record.group, one.place)
        if one.reason is DeathReason.EXPIRED:
            committed = state.offsets[record.group]
            more = committed[one.place].expired_count + sum(count for _, count in one.ranges)
            committed[one.place] = replace(committed[one.place], expired_count=more)
    if record.transactional_id is not None and (transaction := state.transactions.get(record.transactional_id)):
        taken = transaction.acknowledged.setdefault(record.group, [])
        # a group counts once, as with its offsets
        transaction.part_count += not taken and not transaction.offsets.get(record.group)
        taken += [Taken(*one.place, one.ranges) for one in record.parts]


def _become(one: Settled, part: Stretch) -> Stretch:
    if one.status is DeliveryStatus.ACKNOWLEDGED:  # how that came is of no use any more, and would keep them apart
        return Stretch(part.first, part.length, one.status)
    deliveries = part.deliveries - one.uncounted
    return Stretch(part.first, part.length, one.status, deliveries, one.not_before_ms, one.reason, one.error)


def evolve_passed(state: State, record: MessagesPassed, segments: Segments) -> None:
    known = state.deliveries.setdefault(record.group, {}).setdefault(record.place, Deliveries(record.offset))
    known.cut_off(record.offset)
    _note(state, record.group, record.place)


def _note(state: State, group: str, place: Place) -> None:
    """How far the group has come is what is done of it; a partition that is to move may be free now."""
    start = state.deliveries[group][place].start
    committed = state.offsets.get(group, {})
    if place not in committed or committed[place].offset != start:
        state.note_offset(group, place, start)
    known = state.groups.get(group)
    if known is not None and place in known.paused:
        state.touched_groups.add(group)
    state.note_dying(group, place)


DECIDE: Rules = {Acquire: decide_acquire, Acknowledge: decide_acknowledge}
EVOLVE: Folds = {
    MessagesAcquired: evolve_acquired,
    MessagesSettled: evolve_settled,
    MessagesPassed: evolve_passed,
}
TIMERS: Timers = ()
