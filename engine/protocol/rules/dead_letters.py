"""Dead letters: what a group gives up goes to another topic, by reference.

Invariant: a message that is dying becomes one dead letter, in the decision with which the group is done with it. What
cannot have one stays dying, and is shown so: it comes from a dead-letter topic, or there is no topic to take it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ..errors import LakeMQError
from ..values.base import Done
from ..values.dead_letters import SUFFIX, Cause, DyingFound, Located, MessagesDeadLettered
from ..values.deciding import Decision, Given
from ..values.deliveries import Deliveries, DeliveryStatus, MessagesSettled, Range, Settled, Stretch
from ..values.journal import JournalEntry
from ..values.segments import Segments, segments
from ..values.state import State
from ..values.topics import CreateTopic, Topic, TopicCreated
from .deliveries import evolve_settled
from .registries import Folds, Rules
from .timers import Timers
from .topics import decide_create


class _Target(NamedTuple):
    """The dead-letter topic of a topic, and the offset that its next message gets. created: it is to be made."""

    topic_id: int
    topic: str
    partition: int
    offset: int
    is_stamped: bool
    created: tuple[JournalEntry, ...] = ()


def decide_dead_letters(state: State, found: DyingFound, given: Given) -> Decision:
    """What was found, and is dying still, becomes dead letters. What is no message is done with."""
    topic = state.topics.get(found.topic_id)
    known = state.deliveries_of(found.group, (found.topic_id, found.partition))
    if topic is None or known is None:
        return Decision(Done())
    place, entries = (found.topic_id, found.partition), list[JournalEntry]()
    nothing = [range_ for range_ in found.empty if _is_dying(known, range_)]
    if nothing:
        parts = [Settled(*place, DeliveryStatus.ACKNOWLEDGED, nothing)]
        entries.append(JournalEntry(MessagesSettled(found.group, "no messages", parts)))
    dead = list(_dead(known, found))
    target = _target(state, topic, found.partition) if dead else None
    if target is not None:
        parts = [Settled(*place, DeliveryStatus.ACKNOWLEDGED, [(part.first, part.length) for _, part in dead])]
        record = MessagesDeadLettered(found.group, topic.topic, target.topic, parts)
        rows = [_segment(state, topic, found, target, *one) for one in dead]
        entries += [*target.created, JournalEntry(record, _segments(rows, target.offset))]
    return Decision(Done(), tuple(entries))


def _is_dying(known: Deliveries, offsets: Range) -> bool:
    dying = [one for one in known.within([offsets]) if one.status is DeliveryStatus.DYING]
    return sum(one.length for one in dying) == offsets[1]


def _dead(known: Deliveries, found: DyingFound) -> Iterator[tuple[Located, Stretch]]:
    """What is dying still, and where it is."""
    for rows in found.rows:
        if not rows.is_dead_letter:
            for part in known.within([(rows.first, rows.length)]):
                if part.status is DeliveryStatus.DYING:
                    yield rows, part


def _target(state: State, topic: Topic, partition: int) -> _Target | None:
    """None: there is none, and none can be made."""
    named = topic.setting("dead.letter.topic")
    name = named or topic.topic + SUFFIX
    known = state.topics.get(state.topic_ids.get(name, -1))
    if known is not None:
        partition %= known.partition_count
        is_stamped = known.setting("message.timestamp.type") == "LogAppendTime"
        return _Target(known.topic_id, name, partition, int(known.high_watermarks[partition]), is_stamped)
    if named:
        return None
    try:
        created = decide_create(state, CreateTopic(name, topic.partition_count), Given()).entries
    except LakeMQError:  # too long a name, or one that clashes
        return None
    made = created[0].record
    assert isinstance(made, TopicCreated)
    return _Target(made.topic_id, name, partition, 0, False, created)


def _segment(
    state: State, topic: Topic, found: DyingFound, target: _Target, rows: Located, part: Stretch
) -> dict[str, Any]:
    reason = part.reason.value if part.reason is not None else ""
    cause = Cause(topic.topic, found.partition, found.group, reason, part.error, part.deliveries)
    return {
        "kind": "data",
        "topic_id": target.topic_id,
        "topic": target.topic,
        "partition": target.partition,
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
        "origin": "dead_letter",
        "dead_letter": msgspec.json.encode(cause).decode(),
        "source_offset": part.first,
    }


def _segments(rows: list[dict[str, Any]], offset: int) -> Segments:
    for row in rows:
        row["base_offset"] = offset
        offset += row["record_count"]
        row["last_offset"] = offset - 1
    return segments(len(rows), **{name: [row[name] for row in rows] for name in rows[0]})


def evolve_dead_lettered(state: State, record: MessagesDeadLettered, segments: Segments) -> None:
    names = ("topic_id", "partition", "last_offset")
    for topic_id, partition, last in zip(*(segments.column(name) for name in names), strict=True):
        state.own(topic_id).high_watermarks[partition] = last + 1
    evolve_settled(state, MessagesSettled(record.group, "dead letters", record.parts), segments)


DECIDE: Rules = {DyingFound: decide_dead_letters}
EVOLVE: Folds = {MessagesDeadLettered: evolve_dead_lettered}
TIMERS: Timers = ()
