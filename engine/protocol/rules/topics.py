"""Topics: created, altered, deleted, cut off. Decide, and fold what was decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    TopicAlreadyExists,
)
from ..names import check_subscription, check_topic_name, folded
from ..parameters import TOPIC
from ..values.base import Done
from ..values.dead_letters import REDRIVE
from ..values.deciding import Decision, Given
from ..values.journal import JournalEntry
from ..values.offsets import OffsetsRemoved
from ..values.segments import Segments
from ..values.state import State
from ..values.topics import (
    MAX_PARTITIONS,
    AlterTopic,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    LogOutgrown,
    PartitionsEnded,
    RecordsDeleted,
    Topic,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    TopicDone,
)
from . import draining
from .delays import decide_dropped
from .losing import lose
from .registries import Folds, Rules
from .timers import Timers

_DEAD_LETTER_TOPIC = "dead.letter.topic"

PLACED_BY = (
    "max.message.bytes",
    "message.timestamp.type",
    "delay.mode",
    "delay.levels",
    "delay.levels.overflow",
    "delay.slot.ms",
)
"""Settings by which whoever publishes refuses rows, or says when they are due."""


def decide_create(state: State, request: CreateTopic, given: Given) -> Decision:
    """A new topic with dense, empty partitions.

    Raises InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidConfig.
    """
    check_topic_name(request.topic)
    if request.topic in state.topic_ids:
        raise TopicAlreadyExists(found=request.topic)
    if clash := state.folded_names.get(folded(request.topic)):
        raise InvalidTopic(
            "The name differs from another topic's in '.' against '_' only.",
            found=request.topic,
            expected=f"not to clash with {clash!r}",
        )
    _check_partition_count(request.partitions)
    config = _stored(request.config)
    _check_dead_letter_topic(state, request.topic, config)
    for subscription in request.subscriptions:
        check_subscription(subscription)
    record = TopicCreated(
        state.next_topic_id,
        request.topic,
        request.partitions,
        config,
        request.subscriptions,
    )
    return Decision(TopicDone(record.topic_id, record.partitions), (JournalEntry(record),))


def decide_alter(state: State, request: AlterTopic, given: Given) -> Decision:
    """The topic with other settings, subscriptions, or number of partitions: more take the next numbers, those that
    are too many drain.

    Raises UnknownTopicOrPartition, InvalidPartitions (fewer partitions, unless forced), InvalidConfig, InvalidTopic.
    """
    topic = state.topic(request.topic)
    partitions = topic.partition_count if request.partitions is None else request.partitions
    _check_partition_count(partitions)
    if partitions < topic.partition_count and not request.force:
        raise InvalidPartitions(
            "With fewer partitions most keys go elsewhere, and the last ones are only read to their ends.",
            found=partitions,
            expected=f"at least {topic.partition_count}, or force",
        )
    subscriptions = topic.subscriptions if request.subscriptions is None else request.subscriptions
    for subscription in subscriptions:
        check_subscription(subscription)
    config = _altered_config(topic, request.config)
    if config.get(_DEAD_LETTER_TOPIC) != topic.config.get(_DEAD_LETTER_TOPIC):
        _check_dead_letter_topic(state, topic.topic, config)
    record = TopicAltered(topic.topic_id, topic.topic, partitions, config, list(subscriptions))
    return Decision(TopicDone(topic.topic_id, partitions), (JournalEntry(record),))


def _altered_config(topic: Topic, changes: dict[str, Any]) -> dict[str, Any]:
    for key in changes:
        TOPIC[key]  # unknown keys are refused, also when they are to be reset
    config = {k: v for k, v in topic.config.items() if k not in changes}
    config.update(_stored({k: v for k, v in changes.items() if v is not None}))
    partitioner = config.get("partitioner", TOPIC["partitioner"].default)
    if partitioner != topic.setting("partitioner"):
        raise InvalidConfig(
            "The partitioner of a topic cannot change: keys would move to other partitions.",
            found=partitioner,
            expected=topic.setting("partitioner"),
        )
    return config


def _check_dead_letter_topic(state: State, name: str, config: dict[str, Any]) -> None:
    named = config.get(_DEAD_LETTER_TOPIC)
    if named == name:
        raise InvalidConfig("A topic is not its own dead-letter topic.", found=f"{_DEAD_LETTER_TOPIC}={named}")
    if named and named not in state.topic_ids:
        raise InvalidConfig(
            "There is no such dead-letter topic.",
            found=f"{_DEAD_LETTER_TOPIC}={named}",
            expected="a topic, or nothing: then one is made when it is needed",
        )


def _stored(config: dict[str, Any]) -> dict[str, Any]:
    """The settings as JSON gives them back, which has no tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in TOPIC.parse(config).items()}


def decide_delete(state: State, request: DeleteTopic, given: Given) -> Decision:
    """The topic and all it holds are gone, and what groups have committed of it; its id is never used again.

    Raises UnknownTopicOrPartition.
    """
    topic = state.topic(request.topic)
    removed = [
        JournalEntry(OffsetsRemoved(group, topic.topic_id, topic.topic, sorted(partitions)))
        for group, committed in sorted(state.offsets.items())
        if (partitions := [p for topic_id, p in committed if topic_id == topic.topic_id])
    ]
    removed += decide_dropped(state, topic)
    return Decision(Done(), (*removed, JournalEntry(TopicDeleted(topic.topic_id, topic.topic, topic.log_count))))


def decide_delete_records(state: State, request: DeleteRecords, given: Given) -> Decision:
    """Offsets before the ones named are gone; the log start never moves back.

    Raises UnknownTopicOrPartition, OffsetOutOfRange (beyond the high watermark).
    """
    topic = state.topic(request.topic)
    log_starts: dict[int, int] = {}
    for partition, before in request.before.items():
        topic.place(partition)
        high_watermark = int(topic.high_watermarks[partition])
        offset = high_watermark if before == -1 else before
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRange(
                f"Cannot delete records of {topic.topic}-{partition} before this offset.",
                found=before,
                expected=f"-1, or 0 to {high_watermark}",
            )
        if offset > topic.log_starts[partition]:
            log_starts[partition] = offset
    if not log_starts:
        return Decision(Done())
    return Decision(Done(), (JournalEntry(RecordsDeleted(topic.topic_id, topic.topic, log_starts)),))


def decide_outgrown(state: State, found: LogOutgrown, given: Given) -> Decision:
    """What is too old or too much is gone, but for what an open transaction or a group that is waited for holds.

    What was found by settings that the topic does not have any more changes nothing.
    """
    topic = state.topics.get(found.topic_id)
    if topic is None:
        return Decision(Done())
    looked_by = {"retention.ms": found.retention_ms, "retention.bytes": found.retention_bytes}
    held = _held_by_groups(state, topic, {*found.by_age, *found.by_size})
    stable = topic.last_stable_offsets
    log_starts = topic.log_starts.copy()
    entries = []
    for reason, cuts in (("retention.ms", found.by_age), ("retention.bytes", found.by_size)):
        moved: dict[int, int] = {}
        for partition, offset in cuts.items() if topic.setting(reason) == looked_by[reason] else ():
            start = min(offset, int(stable[partition]), held.get(partition, offset))
            if start > log_starts[partition]:
                log_starts[partition] = moved[partition] = start
        if moved:
            entries.append(JournalEntry(RecordsDeleted(topic.topic_id, topic.topic, moved, reason)))
    return Decision(Done(), tuple(entries))


def _held_by_groups(state: State, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
    """Partition -> the lowest offset that a group has committed, if the topic waits for groups."""
    held: dict[int, int] = {}
    if topic.setting("retention.waits.for.groups"):
        for committed in state.offsets.values():
            for partition in partitions:
                if (one := committed.get((topic.topic_id, partition))) is not None:
                    held[partition] = min(one.offset, held.get(partition, one.offset))
    return held


def _check_partition_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitions(
            "The number of partitions is out of range.", found=partitions, expected=f"1 to {MAX_PARTITIONS}"
        )


def evolve_created(state: State, record: TopicCreated, segments: Segments) -> None:
    zeros = np.zeros(record.partitions, np.int64)
    state.add(Topic(record.topic_id, record.topic, record.config, record.subscriptions, zeros, zeros.copy()))
    state.next_topic_id = max(state.next_topic_id, record.topic_id + 1)
    # who is there may have asked for it; others ask when they come
    state.touched_groups |= state.manned_groups
    # its name is a destination now, which others may have reached by their subscriptions
    if state.subscribers:
        state.routing_step = state.step


def evolve_altered(state: State, record: TopicAltered, segments: Segments) -> None:
    topic = state.own(record.topic_id)
    state.touched_groups.update(state.groups_with(record.topic_id))
    for partition in topic.give_partitions(record.partitions):
        state.resumed[topic.topic_id, partition] = int(topic.high_watermarks[partition])
    state.note_draining(topic)
    before = [topic.subscriptions, *(topic.setting(key) for key in PLACED_BY)]
    topic.config = record.config
    state.subscribe(record.topic_id, record.subscriptions)
    if before != [topic.subscriptions, *(topic.setting(key) for key in PLACED_BY)]:
        state.routing_step = state.step


def evolve_ended(state: State, record: PartitionsEnded, segments: Segments) -> None:
    topic = state.own(record.topic_id)
    topic.end_from(record.first)
    state.note_draining(topic)
    state.touched_groups.update(state.groups_with(record.topic_id))


def evolve_deleted(state: State, record: TopicDeleted, segments: Segments) -> None:
    # an open transaction may name it still: whoever ends that one asks what is there
    state.touched_groups.update(state.groups_with(record.topic_id))
    state.remove(record.topic_id)


def evolve_records_deleted(state: State, record: RecordsDeleted, segments: Segments) -> None:
    topic = state.own(record.topic_id)
    starts = topic.log_starts
    further = {partition: offset for partition, offset in record.log_starts.items() if offset > starts[partition]}
    lose(state, topic.topic_id, {topic.place(p): (int(starts[p]), offset) for p, offset in further.items()})
    for partition, offset in further.items():
        starts[partition] = offset
        if (known := topic.redrives.get(partition)) is not None:
            known.cut_off(offset)
            state.note_dying(REDRIVE, (record.topic_id, partition))


DECIDE: Rules = {
    CreateTopic: decide_create,
    AlterTopic: decide_alter,
    DeleteTopic: decide_delete,
    DeleteRecords: decide_delete_records,
    LogOutgrown: decide_outgrown,
}
EVOLVE: Folds = {
    TopicCreated: evolve_created,
    TopicAltered: evolve_altered,
    PartitionsEnded: evolve_ended,
    TopicDeleted: evolve_deleted,
    RecordsDeleted: evolve_records_deleted,
}
TIMERS: Timers = draining.TIMERS
