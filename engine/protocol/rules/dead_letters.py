"""Dead letters: what a group gives up goes to another topic, by reference, and back from there when somebody asks.

Invariant: a message that is dying becomes one dead letter, in the decision with which the group is done with it. What
cannot have one stays dying, and is shown so: it is a dead letter itself, or there is no topic to take it. A dead letter
that is to go back does so once, in the decision with which its redrive is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ..errors import LakeMQError, OffsetOutOfRange, UnknownTopicId
from ..names import shown
from ..values.assignments import Place
from ..values.base import Done
from ..values.dead_letters import (
    REDRIVE,
    SUFFIX,
    Cause,
    DeadLettersJudged,
    DeadLettersSettled,
    DyingFound,
    Located,
    MessagesDeadLettered,
    SettleDeadLetters,
    cause_of,
)
from ..values.deciding import Decision, Given
from ..values.deliveries import Deliveries, DeliveryStatus, MessagesSettled, Range, Settled, Stretch, ranges_of
from ..values.journal import JournalEntry
from ..values.segments import NO_SEGMENTS, Segments, segments
from ..values.state import State
from ..values.topics import CreateTopic, Topic, TopicCreated
from .deliveries import check_ranges, evolve_settled
from .registries import Folds, Rules
from .timers import Timers
from .topics import decide_create


class _Target(NamedTuple):
    """The topic that messages go to. created: it is to be made."""

    topic_id: int
    topic: str
    partition_count: int
    is_stamped: bool = False
    created: tuple[JournalEntry, ...] = ()


def decide_found(state: State, found: DyingFound, given: Given) -> Decision:
    """What was found, and is dying still, goes where it is to go. What is no message is done with."""
    topic = state.topics.get(found.topic_id)
    known = state.deliveries_of(found.group, (found.topic_id, found.partition))
    if topic is None or known is None:
        return Decision(Done())
    decide = _redriven if found.group == REDRIVE else _dead_lettered
    return Decision(Done(), tuple(decide(state, topic, known, found)))


def _dead_lettered(state: State, topic: Topic, known: Deliveries, found: DyingFound) -> Iterator[JournalEntry]:
    place = found.topic_id, found.partition
    nothing = [offsets for offsets in found.empty if _is_dying(known, offsets)]
    if nothing:
        parts = [Settled(*place, DeliveryStatus.ACKNOWLEDGED, nothing)]
        yield JournalEntry(MessagesSettled(found.group, "no messages", parts))
    dead = [(rows, part) for rows, part in _dying(known, found) if rows.dead_letter is None]
    target = _dead_letter_topic(state, topic) if dead else None
    if target is not None:
        yield from target.created
        goes = [_dead_letter(state, topic, found, target, *one) for one in dead]
        parts = [Settled(*place, DeliveryStatus.ACKNOWLEDGED, ranges_of([part for _, part in dead]))]
        record = MessagesDeadLettered(found.group, topic.topic, target.topic, parts)
        yield JournalEntry(record, _segments(state, goes))


def _redriven(state: State, topic: Topic, known: Deliveries, found: DyingFound) -> Iterator[JournalEntry]:
    """Where its topic is gone a dead letter stays, until there is one of the name. What is none is done with."""
    done = [offsets for offsets in found.empty if _is_dying(known, offsets)]
    goes: list[dict[str, Any]] = []
    for rows, part in _dying(known, found):
        cause = None if rows.dead_letter is None else cause_of(rows.dead_letter)
        source = state.topics.get(state.topic_ids.get(cause.topic, -1)) if cause is not None else None
        if cause is not None and source is not None:
            to = _Target(source.topic_id, source.topic, source.partition_count, _is_stamped(source))
            goes.append(_segment(state, to, cause.partition, rows, part) | {"origin": "redrive"} | _anew(state, source))
        if cause is None or source is not None:
            done.append((part.first, part.length))
    if done:
        settled = Settled(found.topic_id, found.partition, DeliveryStatus.ACKNOWLEDGED, sorted(done))
        record = DeadLettersSettled(found.topic_id, topic.topic, "redriven", [settled])
        yield JournalEntry(record, _segments(state, goes))


def _anew(state: State, source: Topic) -> dict[str, Any]:
    """Its time to live begins anew; whether the message has one itself only its row tells."""
    return dict(zip(("ttl_from_ms", "ttl_ms"), source.ttl(True, state.now_ms), strict=True))


def _is_dying(known: Deliveries, offsets: Range) -> bool:
    dying = [one for one in known.within([offsets]) if one.status is DeliveryStatus.DYING]
    return sum(one.length for one in dying) == offsets[1]


def _dying(known: Deliveries, found: DyingFound) -> Iterator[tuple[Located, Stretch]]:
    """What is dying still, and where it is."""
    for rows in found.rows:
        for part in known.within([(rows.first, rows.length)]):
            if part.status is DeliveryStatus.DYING:
                yield rows, part


def _dead_letter_topic(state: State, topic: Topic) -> _Target | None:
    """None: there is none, and none can be made."""
    named = topic.setting("dead.letter.topic")
    name = named or topic.topic + SUFFIX
    known = state.topics.get(state.topic_ids.get(name, -1))
    if known is not None:
        # whatever its message.timestamp.type: a dead letter is the message that it was
        return _Target(known.topic_id, name, known.partition_count)
    if named:
        return None
    try:
        created = decide_create(state, CreateTopic(name, topic.partition_count), Given()).entries
    except LakeMQError:  # too long a name, or one that clashes
        return None
    made = created[0].record
    assert isinstance(made, TopicCreated)
    return _Target(made.topic_id, name, made.partitions, created=created)


def _is_stamped(topic: Topic) -> bool:
    return bool(topic.setting("message.timestamp.type") == "LogAppendTime")


def _dead_letter(
    state: State, topic: Topic, found: DyingFound, target: _Target, rows: Located, part: Stretch
) -> dict[str, Any]:
    reason = part.reason.value if part.reason is not None else ""
    cause = Cause(topic.topic, found.partition, found.group, reason, part.error, part.deliveries)
    return {
        **_segment(state, target, found.partition, rows, part),
        "origin": "dead_letter",
        "dead_letter": msgspec.json.encode(cause).decode(),
        "source_offset": part.first,
    }


def _segment(state: State, target: _Target, partition: int, rows: Located, part: Stretch) -> dict[str, Any]:
    """Of another topic, in the partition of this number, modulo their count; but for its offsets and its origin."""
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


def _segments(state: State, rows: list[dict[str, Any]]) -> Segments:
    """At the ends of their partitions, in this order."""
    ends: dict[Place, int] = {}
    for row in rows:
        place = row["topic_id"], row["partition"]
        if place not in ends:
            topic = state.topics.get(place[0])  # one that is made with this has no messages
            ends[place] = 0 if topic is None else int(topic.high_watermarks[place[1]])
        row["base_offset"] = ends[place]
        ends[place] += row["record_count"]
        row["last_offset"] = ends[place] - 1
    names = dict.fromkeys(name for row in rows for name in row)
    return segments(len(rows), **{name: [row[name] for row in rows] for name in names}) if rows else NO_SEGMENTS


def decide_settle(state: State, request: SettleDeadLetters, given: Given) -> Decision:
    """They are to go back, or are done with; what was said of some before stands.

    Raises UnknownTopicOrPartition, UnknownTopicId (what was chosen is gone, whatever has its name now),
    InvalidRequest, OffsetOutOfRange.
    """
    topic = state.topic(request.topic)
    if request.topic_id != topic.topic_id:
        raise UnknownTopicId(found=f"{shown(request.topic)} with id {request.topic_id}")
    parts: list[Settled] = []
    check_ranges(request.ranges.values())
    for partition, ranges in sorted(request.ranges.items()):
        place = topic.place(partition)
        end = sum(ranges[-1]) if ranges else 0
        if end > topic.high_watermarks[partition]:
            expected = f"at most {topic.high_watermarks[partition]}"
            raise OffsetOutOfRange("There are no such dead letters.", found=end, expected=expected)
        known = _redrives(topic, partition).copy()
        known.cover(end)
        may_be = (DeliveryStatus.AVAILABLE, DeliveryStatus.DYING) if request.purge else (DeliveryStatus.AVAILABLE,)
        fresh = ranges_of(part for part in known.within(ranges) if part.status in may_be)
        status = DeliveryStatus.ACKNOWLEDGED if request.purge else DeliveryStatus.DYING
        parts += [Settled(*place, status, fresh)] if fresh else []
    result = DeadLettersJudged(sum(count for part in parts for _, count in part.ranges))
    if not parts:
        return Decision(result)
    reason = "purged" if request.purge else "asked for"
    return Decision(result, (JournalEntry(DeadLettersSettled(topic.topic_id, topic.topic, reason, parts)),))


def _redrives(topic: Topic, partition: int) -> Deliveries:
    return topic.redrives.get(partition) or Deliveries(int(topic.log_starts[partition]))


# -- folding --------------------------------------------------------------------------------------------


def evolve_dead_lettered(state: State, record: MessagesDeadLettered, segments: Segments) -> None:
    state.append(segments)
    evolve_settled(state, MessagesSettled(record.group, "dead letters", record.parts), segments)


def evolve_redriven(state: State, record: DeadLettersSettled, segments: Segments) -> None:
    state.append(segments)
    if record.topic_id not in state.topics:
        return
    topic = state.own(record.topic_id)
    for part in record.parts:
        known = topic.redrives[part.partition] = _redrives(topic, part.partition)
        known.cover(sum(part.ranges[-1]))
        known.change(part.ranges, partial(_become, part.status))
        state.note_dying(REDRIVE, part.place)


def _become(status: DeliveryStatus, part: Stretch) -> Stretch:
    return Stretch(part.first, part.length, status)


DECIDE: Rules = {DyingFound: decide_found, SettleDeadLetters: decide_settle}
EVOLVE: Folds = {MessagesDeadLettered: evolve_dead_lettered, DeadLettersSettled: evolve_redriven}
TIMERS: Timers = ()
