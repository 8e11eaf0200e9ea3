"""Messages of queue groups: members acquire them, settle them, and give them back.

Only the owner of a partition gets its messages, lowest offset first. It keeps them until it settles them or its
assignment ends. Messages that are given back are delivered again, marked as such, before new ones.
"""

from collections import Counter
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
from ..names import check_group, shorten
from ..values.assignments import Group, PartitionStatus, TopicIdPartition
from ..values.base import Done, Record
from ..values.decision import Decision, DecisionInputs
from ..values.deliveries import (
    BY_MEMBER,
    MAX_RANGES,
    Acknowledge,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Acquire,
    DeathReason,
    Deliveries,
    DeliveryPolicy,
    DeliveryStatus,
    MessageRanges,
    MessagesAcquired,
    MessagesPassed,
    MessagesSettled,
    Range,
    SettledMessages,
    Spans,
    Stretch,
    WantedMessages,
    stretches_to_ranges,
)
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from .reconciling import find_start_offset
from .redelivery import give_back, let_die
from .timers import Folds, Rules, Timers
from .transactions import build_join_entries, check_can_join

# -- acquiring ------------------------------------------------------------------------------------------


def decide_acquire(state: State, request: Acquire, inputs: DecisionInputs) -> Decision:
    """Deliver messages to the member, at most as many as it wants. Partitions that it no longer owns are left out.

    Raises InvalidGroupId, UnknownMemberId, IllegalState (not a queue group), NoOffsetForPartition.
    """
    group = _find_queue(state, request.group, request.member_id)
    bound = 2 * int(group.setting("max.delivered.unacked.msgs.per.flow"))  # twice: one batch in use and one prefetched
    held_count = _count_held(state, group, request.member_id)
    passed: list[Record] = []
    deliveries = {
        wish.topic_partition: _find_deliveries(state, group, wish, passed)
        for wish in _select_ready(state, group, request)
    }
    counts = {wish.topic_partition: wish.count for wish in request.wanted if wish.topic_partition in deliveries}
    # A message may crash its consumer. Its last delivery comes alone, so that no other message loses a delivery by it.
    policy = DeliveryPolicy.from_group(group)
    lasts = [tp for tp in counts if deliveries[tp].is_next_last(policy, state.now_ms)]
    if lasts:
        counts = {} if held_count else {lasts[0]: 1}
    acquired: list[MessageRanges] = []
    for tp, count in counts.items():
        end = _find_readable_end(state, group, tp)
        if ranges := deliveries[tp].next_ranges(policy, end, min(count, bound - held_count), state.now_ms):
            acquired.append(MessageRanges(*tp, ranges))
            held_count += sum(length for _, length in ranges)
    if acquired:
        passed.append(MessagesAcquired(request.group, request.member_id, acquired))
    return Decision(Done(), tuple(map(JournalEntry, passed)))


def _select_ready(state: State, group: Group, request: Acquire) -> list[WantedMessages]:
    """Return the wishes for partitions that the member owns and need not give up."""
    wishes = (
        (wish, group.assignments.get(wish.topic_partition)) for wish in request.wanted if wish.topic_id in state.topics
    )
    return [
        wish
        for wish, assigned in wishes
        if assigned is not None
        and (assigned.owner, assigned.epoch) == (request.member_id, wish.epoch)
        and assigned.status is PartitionStatus.READY
    ]


def _find_queue(state: State, name: str, member_id: str) -> Group:
    check_group(name)
    group = state.groups.get(name)
    if group is None or member_id not in group.members:
        raise UnknownMemberId(found=shorten(member_id))
    if not group.is_queue:
        raise IllegalState(
            "Messages are acquired and acknowledged in queue groups.", found=group.setting("group.protocol")
        )
    return group


def _count_held(state: State, group: Group, member_id: str) -> int:
    deliveries = state.deliveries.get(group.group, {})
    return sum(deliveries[tp].held_count for tp in group.list_partitions_of(member_id) if tp in deliveries)


def _find_deliveries(state: State, group: Group, wish: WantedMessages, entries: list[Record]) -> Deliveries:
    """Return the deliveries from the log start on. Adds the record that passes messages deleted before it."""
    tp = wish.topic_partition
    deliveries = state.find_deliveries(group.group, tp)
    if deliveries is None:
        start = find_start_offset(state, group, tp, group.assignments[tp].owner)
        if start is None:
            raise NoOffsetForPartition(found=f"group {group.group}, {group.assignments[tp].topic}-{tp[1]}")
        deliveries = Deliveries(start)
    log_start = int(state.topics[tp[0]].log_starts[tp[1]])
    if deliveries.start < log_start:
        entries.append(MessagesPassed(group.group, *tp, log_start))
        deliveries = deliveries.copy()
        deliveries.advance_start(log_start)
    return deliveries


def _find_readable_end(state: State, group: Group, tp: TopicIdPartition) -> int:
    return int(state.topics[tp[0]].find_ends(group.setting("isolation.level"))[tp[1]])


# -- settling -------------------------------------------------------------------------------------------


def decide_acknowledge(state: State, request: Acknowledge, inputs: DecisionInputs) -> Decision:
    """Settle messages that the member has, and refuse the others. Each message is judged on its own.

    If parts name a message twice, the first one settles it. Accepting a message again is fine; in a transaction, at
    least one message must be new. Raises InvalidGroupId, UnknownMemberId, IllegalState (not a queue group),
    InvalidRequest. A transaction takes all or nothing: it also raises FencedMemberEpoch, InvalidRecordState,
    InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    ref = request.transaction
    if ref is not None:
        check_can_join(state, ref)
    group = _find_queue(state, request.group, request.member_id)
    _check_parts(request)
    fenced: list[int] = []
    invalid: list[int] = []
    refused: list[list[Range]] = []
    parts: list[SettledMessages] = []
    copies = _copy_for_repeats(state, request)
    for number, part in enumerate(request.parts):
        assigned = group.assignments.get(part.topic_partition)
        if assigned is None or (assigned.owner, assigned.epoch) != (request.member_id, part.epoch):
            fenced.append(number)
            continue
        deliveries = copies.get(part.topic_partition) or state.find_deliveries(request.group, part.topic_partition)
        if not_held := _find_refused_ranges(deliveries, part):
            invalid.append(number)
            refused.append(not_held)
        settled_part = [] if deliveries is None else _settle(state, group, deliveries, part, pending=ref is not None)
        if part.topic_partition in copies:
            _apply_settlement(copies[part.topic_partition], settled_part)
        parts += settled_part
    if ref is not None and fenced:
        raise FencedMemberEpoch(found=[_format_partition(group, request.parts[i]) for i in fenced])
    if ref is not None and invalid:
        raise InvalidRecordState(found=[_format_partition(group, request.parts[i]) for i in invalid])
    if ref is not None and not parts:
        # A repeat after a commit whose answer was lost. If it succeeded, the application would publish a second time.
        raise InvalidRecordState("All of these messages are settled already.", expected="some that are not")
    result = AcknowledgementsJudged(fenced, invalid, refused)
    if not parts:
        return Decision(result)
    settled = MessagesSettled(request.group, BY_MEMBER, parts, ref.transactional_id if ref else None)
    begun = [] if ref is None else build_join_entries(state, ref, groups=[request.group])
    return Decision(result, (*begun, JournalEntry(settled)))


def _copy_for_repeats(state: State, request: Acknowledge) -> dict[TopicIdPartition, Deliveries]:
    """Return copies of the deliveries of partitions that several parts name.

    All parts are judged before any is folded. So each part must see in the copy what the parts before it settle.
    """
    counts = Counter(part.topic_partition for part in request.parts)
    repeated = ((tp, state.find_deliveries(request.group, tp)) for tp, count in counts.items() if count > 1)
    return {tp: deliveries.copy() for tp, deliveries in repeated if deliveries is not None}


def _apply_settlement(deliveries: Deliveries, settled: Iterable[SettledMessages]) -> None:
    """Change the copy as the fold will. Messages of the transaction count as accepted, so a part may repeat them."""
    for part in settled:
        status = DeliveryStatus.ACKNOWLEDGED if part.status is DeliveryStatus.PENDING else part.status
        deliveries.change(part.ranges, partial(Stretch._replace, status=status))


def _check_parts(request: Acknowledge) -> None:
    check_ranges(part.ranges for part in request.parts)
    for part in request.parts:
        if request.transaction is not None and part.outcome is not AckOutcome.ACK:
            raise InvalidRequest("Inside a transaction, messages can only be accepted.", found=part.outcome.value)


def check_ranges(listed: Iterable[Sequence[Range]]) -> None:
    """Raise InvalidRequest if the ranges are too many, or those of a partition are not sorted and disjoint."""
    partitions = list(listed)
    count = sum(map(len, partitions))
    if count > MAX_RANGES:
        raise InvalidRequest("Too many ranges.", found=count, expected=f"at most {MAX_RANGES}")
    for ranges in partitions:
        end = 0
        for first, length in ranges:
            if first < end or length < 1:
                raise InvalidRequest(
                    "The ranges are not sorted and disjoint.",
                    found=[first, length],
                    expected=f"a first offset of at least {end}, and a length of at least 1",
                )
            end = first + length


def _format_partition(group: Group, part: Acknowledgement) -> str:
    assignment = group.assignments.get(part.topic_partition)
    return f"{assignment.topic if assignment else part.topic_id}-{part.partition}"


def _find_refused_ranges(deliveries: Deliveries | None, part: Acknowledgement) -> list[Range]:
    """Return the messages that the owner does not have, and, if it accepts them, has not accepted before."""
    if deliveries is None:
        return list(part.ranges)
    is_ack = part.outcome is AckOutcome.ACK
    valid = [
        stretch.span
        for stretch in deliveries.find_stretches(part.ranges)
        if _matches_delivery(stretch, part) or (is_ack and stretch.status is DeliveryStatus.ACKNOWLEDGED)
    ]
    if is_ack:  # everything before the start is acknowledged, and has no stretch any more
        valid = [
            (first, min(first + count, deliveries.start)) for first, count in part.ranges if first < deliveries.start
        ] + valid
    if sum(end - first for first, end in valid) == sum(count for _, count in part.ranges):
        return []
    known = Spans(valid)
    return [(gap, end - gap) for first, count in part.ranges for gap, end in known.missing(first, first + count)]


def _matches_delivery(stretch: Stretch, part: Acknowledgement) -> bool:
    """Return whether the owner has these messages by the delivery that the acknowledgement names."""
    return stretch.status is DeliveryStatus.ACQUIRED and part.deliveries in (None, stretch.deliveries)


def _settle(
    state: State, group: Group, deliveries: Deliveries, part: Acknowledgement, pending: bool
) -> list[SettledMessages]:
    tp = part.topic_partition
    stretches = [stretch for stretch in deliveries.find_stretches(part.ranges) if _matches_delivery(stretch, part)]
    if not stretches:
        return []
    if part.outcome is AckOutcome.ACK:
        status = DeliveryStatus.PENDING if pending else DeliveryStatus.ACKNOWLEDGED
        return [SettledMessages(*tp, status, stretches_to_ranges(stretches))]
    if part.outcome is AckOutcome.REJECT:
        return let_die(tp, stretches, DeathReason.REJECTED, part.error)
    if part.outcome is AckOutcome.EXPIRE:
        topic = state.topics.get(part.topic_id)
        if topic is not None and topic.setting("dead.letter.expired"):
            return let_die(tp, stretches, DeathReason.EXPIRED, "")
        return [
            SettledMessages(
                *tp, DeliveryStatus.ACKNOWLEDGED, stretches_to_ranges(stretches), reason=DeathReason.EXPIRED
            )
        ]
    if part.outcome is AckOutcome.UNSEEN:
        return [SettledMessages(*tp, DeliveryStatus.AVAILABLE, stretches_to_ranges(stretches), uncounted=True)]
    settled = give_back(group, tp, stretches, part.error)
    return [_add_backoff(state, group, part, stretches, stretch) for stretch in settled]


def _add_backoff(
    state: State, group: Group, part: Acknowledgement, stretches: Sequence[Stretch], settled: SettledMessages
) -> SettledMessages:
    """Return the settlement with the delay before redelivery: the member's, else the group's backoff."""
    if settled.status is not DeliveryStatus.AVAILABLE:
        return settled
    delay_ms = part.delay_ms
    if delay_ms is None:
        first_ms, most_ms = int(group.setting("nack.backoff.ms")), int(group.setting("nack.backoff.max.ms"))
        deliveries = max(stretch.deliveries for stretch in stretches)
        delay_ms = min(first_ms << min(deliveries - 1, 40), most_ms)
    if not delay_ms:
        return settled
    return SettledMessages(*settled.topic_partition, DeliveryStatus.WAITING, settled.ranges, state.now_ms + delay_ms)


# -- folding --------------------------------------------------------------------------------------------


def acquire_messages(state: State, record: MessagesAcquired, segments: Segments) -> None:
    by_partition = state.deliveries.setdefault(record.group, {})
    for part in record.taken:
        tp = part.topic_id, part.partition
        if tp not in by_partition:
            by_partition[tp] = Deliveries(part.ranges[0][0])
        deliveries = by_partition[tp]
        if not deliveries.held_count:
            deliveries.silent_since_ms = state.now_ms
        deliveries.acquire(part.ranges)
        state.note_progress(record.group, tp)


def settle_messages(state: State, record: MessagesSettled, segments: Segments) -> None:
    for part in record.parts:
        tp = part.topic_id, part.partition
        deliveries = state.find_deliveries(record.group, tp)
        if deliveries is None:
            continue
        deliveries.settle(part, record.find_event(part))
        deliveries.silent_since_ms = state.now_ms if deliveries.held_count else 0
        state.note_progress(record.group, tp)
        if part.reason is DeathReason.EXPIRED:
            committed = state.offsets[record.group][tp]
            more = committed.expired_count + sum(count for _, count in part.ranges)
            state.replace_offset(record.group, tp, replace(committed, expired_count=more))
    if record.transactional_id is not None and (transaction := state.change_transaction(record.transactional_id)):
        parts = transaction.acknowledged.setdefault(record.group, [])
        # a group is one part of the transaction, as with offsets
        transaction.part_count += not parts and not transaction.offsets.get(record.group)
        parts += [MessageRanges(*part.topic_partition, part.ranges) for part in record.parts]


def pass_messages(state: State, record: MessagesPassed, segments: Segments) -> None:
    deliveries = state.deliveries.setdefault(record.group, {}).setdefault(
        record.topic_partition, Deliveries(record.offset)
    )
    deliveries.advance_start(record.offset)
    if not deliveries.held_count:
        deliveries.silent_since_ms = 0
    state.note_progress(record.group, record.topic_partition)


DECIDE: Rules = {Acquire: decide_acquire, Acknowledge: decide_acknowledge}
EVOLVE: Folds = {
    MessagesAcquired: acquire_messages,
    MessagesSettled: settle_messages,
    MessagesPassed: pass_messages,
}
TIMERS: Timers = ()
