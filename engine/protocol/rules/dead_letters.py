"""Dead letters: messages that a group gives up go to another topic, by reference, and back again on request.

Invariant: a dying message becomes one dead letter, in the same decision in which the group finishes it. If it cannot
become one it stays dying, and is reported: it is a dead letter itself, or no topic can take it. A redriven dead letter
goes back once, in the same decision that finishes its redrive.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ..errors import LakeMQError, OffsetOutOfRange, UnknownTopicId
from ..names import shorten
from ..values.assignments import TopicIdPartition
from ..values.base import Done
from ..values.dead_letters import (
    ASKED_FOR,
    PURGED,
    REDRIVE,
    REDRIVE_TRANSITIONS,
    REDRIVEN,
    SUFFIX,
    Cause,
    DeadLettersJudged,
    DeadLettersSettled,
    DyingFound,
    MessagesDeadLettered,
    RedriveEvent,
    RowLocation,
    SettleDeadLetters,
    decode_cause,
)
from ..values.decision import Decision, DecisionInputs
from ..values.deliveries import (
    DEAD_LETTERS,
    NO_MESSAGES,
    Deliveries,
    DeliveryStatus,
    MessagesSettled,
    Range,
    SettledMessages,
    Stretch,
    stretches_to_ranges,
)
from ..values.journal import JournalEntry
from ..values.log import FilesAdded
from ..values.segments import NO_SEGMENTS, Segments, build_segments
from ..values.state import State
from ..values.topics import CreateTopic, Topic, TopicCreated
from .deliveries import check_ranges, settle_messages
from .timers import Folds, Rules, Timers
from .topics import decide_create


class _TargetTopic(NamedTuple):
    """The topic that receives messages. created: the entries that create it, if it does not exist yet."""

    topic_id: int
    topic: str
    partition_count: int
    is_stamped: bool = False
    created: tuple[JournalEntry, ...] = ()


def decide_dying(state: State, sighting: DyingFound, inputs: DecisionInputs) -> Decision:
    """Move messages that were located and are still dying. Offsets that hold no message are finished."""
    topic = state.topics.get(sighting.topic_id)
    deliveries = state.find_deliveries(sighting.group, (sighting.topic_id, sighting.partition))
    if topic is None or deliveries is None:
        return Decision(Done())
    decide = _redrive if sighting.group == REDRIVE else _move_to_dead_letter_topic
    return Decision(Done(), tuple(decide(state, topic, deliveries, sighting)))


def _move_to_dead_letter_topic(
    state: State, topic: Topic, deliveries: Deliveries, sighting: DyingFound
) -> Iterator[JournalEntry]:
    tp = sighting.topic_id, sighting.partition
    empty = [offsets for offsets in sighting.empty if _is_dying(deliveries, offsets)]
    if empty:
        parts = [SettledMessages(*tp, DeliveryStatus.ACKNOWLEDGED, empty)]
        yield JournalEntry(MessagesSettled(sighting.group, NO_MESSAGES, parts))
    dead = [(rows, part) for rows, part in _find_dying(deliveries, sighting) if rows.dead_letter is None]
    target = _find_dead_letter_topic(state, topic) if dead else None
    if target is not None:
        yield from target.created
        yield from _add_copies(sighting)
        goes = [_build_dead_letter(state, topic, sighting, target, *rows_and_part) for rows_and_part in dead]
        parts = [SettledMessages(*tp, DeliveryStatus.ACKNOWLEDGED, stretches_to_ranges([part for _, part in dead]))]
        record = MessagesDeadLettered(sighting.group, topic.topic, target.topic, parts)
        yield JournalEntry(record, _append_to_logs(state, goes))


def _redrive(state: State, topic: Topic, deliveries: Deliveries, sighting: DyingFound) -> Iterator[JournalEntry]:
    """Send dead letters back to their topics. If a topic is gone, its dead letters stay until the name exists again.

    Messages in a dead-letter topic that are not dead letters are finished.
    """
    done = [offsets for offsets in sighting.empty if _is_dying(deliveries, offsets)]
    goes: list[dict[str, Any]] = []
    for rows, part in _find_dying(deliveries, sighting):
        cause = None if rows.dead_letter is None else decode_cause(rows.dead_letter)
        source = state.topics.get(state.topic_ids.get(cause.topic, -1)) if cause is not None else None
        if cause is not None and source is not None:
            appends = source.setting("message.timestamp.type") == "LogAppendTime"
            to = _TargetTopic(source.topic_id, source.topic, source.partition_count, appends)
            goes.append(
                _build_segment(state, to, cause.partition, rows, part)
                | {"origin": "redrive"}
                | _restart_ttl(state, source)
            )
        if cause is None or source is not None:
            done.append((part.first, part.length))
    if done:
        settled = SettledMessages(sighting.topic_id, sighting.partition, DeliveryStatus.ACKNOWLEDGED, sorted(done))
        record = DeadLettersSettled(sighting.topic_id, topic.topic, REDRIVEN, [settled])
        yield from _add_copies(sighting)
        yield JournalEntry(record, _append_to_logs(state, goes))


def _add_copies(sighting: DyingFound) -> Iterator[JournalEntry]:
    if sighting.copied:
        yield JournalEntry(FilesAdded(sighting.copied))


def _restart_ttl(state: State, source: Topic) -> dict[str, Any]:
    """Return the columns that start a message's time to live again.

    Only the row itself says whether it has a time to live of its own, so the segment says that it may have one.
    """
    return dict(zip(("ttl_from_ms", "ttl_ms"), source.ttl(True, state.now_ms), strict=True))


def _is_dying(deliveries: Deliveries, offsets: Range) -> bool:
    dying = [stretch for stretch in deliveries.find_stretches([offsets]) if stretch.status is DeliveryStatus.DYING]
    return sum(stretch.length for stretch in dying) == offsets[1]


def _find_dying(deliveries: Deliveries, sighting: DyingFound) -> Iterator[tuple[RowLocation, Stretch]]:
    """Yield the stretches that are still dying, with the location of their rows."""
    for rows in sighting.rows:
        for part in deliveries.find_stretches([(rows.first, rows.length)]):
            if part.status is DeliveryStatus.DYING:
                yield rows, part


def _find_dead_letter_topic(state: State, topic: Topic) -> _TargetTopic | None:
    """Return the topic that takes the dead letters of this topic; None if it does not exist and cannot be created."""
    named = topic.setting("dead.letter.topic")
    name = named or topic.topic + SUFFIX
    existing = state.topics.get(state.topic_ids.get(name, -1))
    if existing is not None:
        # its message.timestamp.type does not matter: a dead letter keeps the timestamp of its message
        return _TargetTopic(existing.topic_id, name, existing.partition_count)
    if named:
        return None
    try:
        created = decide_create(state, CreateTopic(name, topic.partition_count), DecisionInputs()).entries
    except LakeMQError:  # too long a name, or one that clashes
        return None
    made = created[0].record
    assert isinstance(made, TopicCreated)
    return _TargetTopic(made.topic_id, name, made.partitions, created=created)


def _build_dead_letter(
    state: State, topic: Topic, sighting: DyingFound, target: _TargetTopic, rows: RowLocation, part: Stretch
) -> dict[str, Any]:
    reason = part.reason.value if part.reason is not None else ""
    cause = Cause(topic.topic, sighting.partition, sighting.group, reason, part.error, part.deliveries)
    return {
        **_build_segment(state, target, sighting.partition, rows, part),
        "origin": "dead_letter",
        "dead_letter": msgspec.json.encode(cause).decode(),
        "source_offset": part.first,
    }


def _build_segment(
    state: State, target: _TargetTopic, partition: int, rows: RowLocation, part: Stretch
) -> dict[str, Any]:
    """Return a segment of the target topic for these rows, without offsets and origin.

    The partition keeps its number, modulo the number of partitions of the target.
    """
    return {
        "kind": "data",
        "topic_id": target.topic_id,
        "topic": target.topic,
        "partition": partition % target.partition_count,
        "record_count": part.length,
        "file_id": rows.file_id,
        "footer_hash": rows.footer_hash,
        "first_row": rows.first_row + part.first - rows.first,
        "file_partition": rows.file_partition,
        "min_timestamp_ms": state.now_ms if target.is_stamped else rows.min_timestamp_ms,
        "max_timestamp_ms": state.now_ms if target.is_stamped else rows.max_timestamp_ms,
        "append_time_ms": state.now_ms if target.is_stamped else rows.append_time_ms,
        "decided_at_ms": state.now_ms,
        "transactional": False,
    }


def _append_to_logs(state: State, rows: list[dict[str, Any]]) -> Segments:
    """Return the segments with offsets at the ends of their partitions, in this order."""
    ends: dict[TopicIdPartition, int] = {}
    for row in rows:
        tp = row["topic_id"], row["partition"]
        if tp not in ends:
            topic = state.topics.get(tp[0])  # a topic that this decision creates is empty
            ends[tp] = 0 if topic is None else int(topic.high_watermarks[tp[1]])
        row["base_offset"] = ends[tp]
        ends[tp] += row["record_count"]
        row["last_offset"] = ends[tp] - 1
    names = dict.fromkeys(name for row in rows for name in row)
    return build_segments(len(rows), **{name: [row[name] for row in rows] for name in names}) if rows else NO_SEGMENTS


def decide_settle(state: State, request: SettleDeadLetters, inputs: DecisionInputs) -> Decision:
    """Mark dead letters for redrive, or purge them. Dead letters that were settled before do not change.

    Raises UnknownTopicOrPartition, UnknownTopicId (the topic was deleted, even if its name exists again),
    InvalidRequest, OffsetOutOfRange.
    """
    topic = state.topic(request.topic)
    if request.topic_id != topic.topic_id:
        raise UnknownTopicId(found=f"{shorten(request.topic)} with id {request.topic_id}")
    parts: list[SettledMessages] = []
    check_ranges(request.ranges.values())
    for partition, ranges in sorted(request.ranges.items()):
        tp = topic.find_partition(partition)
        end = sum(ranges[-1]) if ranges else 0
        if end > topic.high_watermarks[partition]:
            expected = f"at most {topic.high_watermarks[partition]}"
            raise OffsetOutOfRange(
                "The range ends beyond the last dead letter of the partition.", found=end, expected=expected
            )
        deliveries = _find_redrives(topic, partition).copy()
        deliveries.extend_to(end)
        may_be = (DeliveryStatus.AVAILABLE, DeliveryStatus.DYING) if request.purge else (DeliveryStatus.AVAILABLE,)
        fresh = stretches_to_ranges(part for part in deliveries.find_stretches(ranges) if part.status in may_be)
        status = DeliveryStatus.ACKNOWLEDGED if request.purge else DeliveryStatus.DYING
        parts += [SettledMessages(*tp, status, fresh)] if fresh else []
    result = DeadLettersJudged(sum(count for part in parts for _, count in part.ranges))
    if not parts:
        return Decision(result)
    reason = PURGED if request.purge else ASKED_FOR
    return Decision(result, (JournalEntry(DeadLettersSettled(topic.topic_id, topic.topic, reason, parts)),))


def _find_redrives(topic: Topic, partition: int) -> Deliveries:
    return topic.redrives.get(partition) or Deliveries(int(topic.log_starts[partition]))


# -- folding --------------------------------------------------------------------------------------------


def move_to_dead_letters(state: State, record: MessagesDeadLettered, segments: Segments) -> None:
    state.advance_logs(segments)
    settle_messages(state, MessagesSettled(record.group, DEAD_LETTERS, record.parts), segments)


def settle_dead_letters(state: State, record: DeadLettersSettled, segments: Segments) -> None:
    state.advance_logs(segments)
    if record.topic_id not in state.topics:
        return
    for part in record.parts:
        topic = state.change_partition(*part.topic_partition)
        deliveries = topic.redrives[part.partition] = _find_redrives(topic, part.partition)
        deliveries.extend_to(sum(part.ranges[-1]))
        deliveries.change(part.ranges, partial(_settle_stretch, record.event))
        state.note_deliveries(REDRIVE, part.topic_partition)


def _settle_stretch(event: RedriveEvent, stretch: Stretch) -> Stretch:
    return Stretch(stretch.first, stretch.length, REDRIVE_TRANSITIONS.move(stretch.status, event))


DECIDE: Rules = {DyingFound: decide_dying, SettleDeadLetters: decide_settle}
EVOLVE: Folds = {MessagesDeadLettered: move_to_dead_letters, DeadLettersSettled: settle_dead_letters}
TIMERS: Timers = ()
