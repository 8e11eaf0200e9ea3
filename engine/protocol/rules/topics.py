"""Topics: create, alter and delete them, end partitions that are drained, and delete records."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import (
    InvalidConfig,
    InvalidPartitions,
    OffsetOutOfRange,
    StaleTopicMetadata,
)
from ..names import check_subscription
from ..parameters import MAX_SCHEMAS, SCHEMA, SCHEMA_TYPE, TOPIC, Value, append_schema, last_version, with_defaults
from ..values.assignments import TopicIdPartition
from ..values.base import Done
from ..values.dead_letters import REDRIVE
from ..values.decision import Decision, DecisionInputs
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
from .delays import decide_delays_of_topic
from .offsets import count_deleted_offsets
from .timers import Folds, Rules, Time, Timer, Timers

# Draining partitions: a topic that gets fewer partitions keeps the last ones until all groups have read them.
#
# Nothing is deleted. Partitions end from the last number down, so that groups always have the first ones.


_DrainedFrom = tuple[int, int]
"""A topic id, and the first of the partitions that end."""


def _find_drained_topics(state: State) -> list[_DrainedFrom]:
    draining = (state.topics[topic_id] for topic_id in sorted(state.draining))
    ended = ((topic, _find_first_to_end(state, topic)) for topic in draining)
    return [(topic.topic_id, first) for topic, first in ended if first < topic.consumed_count]


def _can_end(state: State, key: _DrainedFrom, time: Time) -> bool:
    topic_id, first = key
    topic = state.topics.get(topic_id)
    return topic is not None and _find_first_to_end(state, topic) <= first < topic.consumed_count


def _find_first_to_end(state: State, topic: Topic) -> int:
    """Return the first partition of the run at the end that every group has read; the consumed count without a run."""
    first = topic.consumed_count
    while first > topic.partition_count and _is_read_to_end(state, topic, first - 1):
        first -= 1
    return first


def _is_read_to_end(state: State, topic: Topic, partition: int) -> bool:
    """Return whether no transaction is open in the partition and every group that reads it has reached its end."""
    if partition in topic.open_transactions:
        return False
    end = int(topic.high_watermarks[partition])
    if int(topic.log_starts[partition]) == end:
        return True
    return all(at >= end for at in _find_positions(state, topic.find_partition(partition)))


def _find_positions(state: State, tp: TopicIdPartition) -> Iterator[int]:
    """Yield where groups continue in the partition: at their committed offset, else where they are to start."""
    for committed in state.offsets.values():
        if tp in committed:
            yield committed[tp].offset
    for name, group in state.groups.items():
        assignment = group.assignments.get(tp)
        if assignment is not None and assignment.start_offset is not None and tp not in state.offsets.get(name, {}):
            yield assignment.start_offset


def decide_end_partitions(state: State, key: _DrainedFrom) -> list[JournalEntry]:
    topic_id, first = key
    return [JournalEntry(PartitionsEnded(topic_id, state.topics[topic_id].topic, first))]


# Topics: create, alter and delete them, and delete their records.


_DEAD_LETTER_TOPIC, _CLEANUP_POLICY = "dead.letter.topic", "cleanup.policy"

ROUTING_SETTINGS = (
    "max.message.bytes",
    "delay.mode",
    "delay.levels",
    "delay.levels.overflow",
    "delay.slot.ms",
    _CLEANUP_POLICY,
    SCHEMA,
    SCHEMA_TYPE,
)
"""Settings that publishers use to refuse rows and to compute when they are due. A change makes their metadata stale."""


def decide_create(state: State, request: CreateTopic, inputs: DecisionInputs) -> Decision:
    """Create a topic with empty partitions.

    Raises InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidConfig.
    """
    state.check_new_topic(request.topic)
    _check_partition_count(request.partitions)
    config = _normalize_config({**_filter_defaults(request.topic, inputs.limits.topic_defaults), **request.config})
    _check_dead_letter_topic(state, request.topic, config)
    _check_cleanup_policy(config, inputs)
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


def decide_alter(state: State, request: AlterTopic, inputs: DecisionInputs) -> Decision:
    """Change the topic's settings, subscriptions or number of partitions.

    New partitions get the next numbers. Partitions beyond the new number drain: groups read them to their ends. Raises
    UnknownTopicOrPartition, InvalidPartitions (fewer partitions, unless forced), InvalidConfig, InvalidTopic,
    StaleTopicMetadata (the schema has changed since the client looked).
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
    config = _merge_config(topic, request.config, inputs.limits.topic_defaults)
    if config.get(_CLEANUP_POLICY) != topic.config.get(_CLEANUP_POLICY):
        _check_cleanup_policy(config, inputs)
    if config.get(_DEAD_LETTER_TOPIC) != topic.config.get(_DEAD_LETTER_TOPIC):
        _check_dead_letter_topic(state, topic.topic, config)
    _check_schema_change(topic, config, request.checked_schema)
    record = TopicAltered(topic.topic_id, topic.topic, partitions, config, list(subscriptions))
    return Decision(TopicDone(topic.topic_id, partitions), (JournalEntry(record),))


def _filter_defaults(topic: str, defaults: Mapping[str, Value]) -> dict[str, Value]:
    """Return the namespace's defaults. The dead-letter topic itself does not get a dead-letter topic."""
    return {key: value for key, value in defaults.items() if (key, value) != (_DEAD_LETTER_TOPIC, topic)}


def _merge_config(topic: Topic, changes: dict[str, Any], defaults: Mapping[str, Value]) -> dict[str, Any]:
    for key in changes:
        TOPIC[key]  # raises for an unknown key, also if the request resets it
    config = {k: v for k, v in topic.config.items() if k not in changes}
    config.update(_normalize_config(with_defaults(changes, defaults)))
    partitioner = config.get("partitioner", TOPIC["partitioner"].default)
    if partitioner != topic.setting("partitioner"):
        raise InvalidConfig(
            "The partitioner of a topic cannot change: keys would move to other partitions.",
            found=partitioner,
            expected=topic.setting("partitioner"),
        )
    return config


def _check_schema_change(topic: Topic, config: dict[str, Any], checked: int | None) -> None:
    """Refuse a schema that was compared with another version than the newest.

    The client compares schemas, because it takes the validating libraries, which a sequencer may not have. Two clients
    may do so at the same time. Only the first one's comparison is still true.
    """
    if append_schema(topic.schemas, config, 0) == topic.schemas:
        return
    newest = last_version(topic.schemas)
    if checked != newest:
        raise StaleTopicMetadata(
            f"The new schema of {topic.topic} was not compared with the newest one.",
            found=f"a comparison with version {checked}",
            expected=f"version {newest}",
        )
    if len(topic.schemas) >= MAX_SCHEMAS:
        raise InvalidConfig(
            f"The topic {topic.topic} has had too many schemas.",
            found=f"version {newest + 1}",
            expected=f"at most {MAX_SCHEMAS}. Create another topic",
        )


def _check_dead_letter_topic(state: State, name: str, config: dict[str, Any]) -> None:
    named = config.get(_DEAD_LETTER_TOPIC)
    if named == name:
        raise InvalidConfig("A topic cannot be its own dead-letter topic.", found=f"{_DEAD_LETTER_TOPIC}={named}")
    if named and named not in state.topic_ids:
        raise InvalidConfig(
            "The dead-letter topic does not exist.",
            found=f"{_DEAD_LETTER_TOPIC}={named}",
            expected="a topic, or nothing: then one is made when it is needed",
        )


def _check_cleanup_policy(config: Mapping[str, Any], inputs: DecisionInputs) -> None:
    """Refuse compaction where it cannot happen: it takes final messages."""
    policy = config.get(_CLEANUP_POLICY)
    if policy is not None and "compact" in policy and not inputs.limits.makes_final:
        raise InvalidConfig(
            "Only final messages are compacted, and none become final here.",
            found=f"cleanup.policy={policy}",
            expected="the sequencer's setting final.interval.ms, above 0",
        )


def _normalize_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the checked settings in the form that JSON gives back: lists instead of tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in TOPIC.parse(config).items()}


def decide_delete(state: State, request: DeleteTopic, inputs: DecisionInputs) -> Decision:
    """Delete the topic, its messages and the offsets that groups have committed. Its id is never used again.

    Raises UnknownTopicOrPartition.
    """
    topic = state.topic(request.topic)
    removed = [
        JournalEntry(OffsetsRemoved(group, topic.topic_id, topic.topic, sorted(partitions)))
        for group, committed in sorted(state.offsets.items())
        if (partitions := [p for topic_id, p in committed if topic_id == topic.topic_id])
    ]
    removed += decide_delays_of_topic(state, topic)
    return Decision(Done(), (*removed, JournalEntry(TopicDeleted(topic.topic_id, topic.topic, topic.log_count))))


def decide_delete_records(state: State, request: DeleteRecords, inputs: DecisionInputs) -> Decision:
    """Delete the records before the given offsets. The log start never moves back.

    Raises UnknownTopicOrPartition, OffsetOutOfRange (beyond the high watermark).
    """
    topic = state.topic(request.topic)
    log_starts: dict[int, int] = {}
    for partition, before in request.before.items():
        topic.find_partition(partition)
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


def decide_retention(state: State, sighting: LogOutgrown, inputs: DecisionInputs) -> Decision:
    """Delete messages that are too old or too large in sum, except those that an open transaction or a group needs.

    A sighting that was made under other settings than the topic has now changes nothing.
    """
    topic = state.topics.get(sighting.topic_id)
    if topic is None:
        return Decision(Done())
    settings = {"retention.ms": sighting.retention_ms, "retention.bytes": sighting.retention_bytes}
    retained = _find_retained_offsets(state, topic, {*sighting.by_age, *sighting.by_size})
    stable = topic.last_stable_offsets
    log_starts = topic.log_starts.copy()
    entries = []
    for reason, cuts in (("retention.ms", sighting.by_age), ("retention.bytes", sighting.by_size)):
        moved: dict[int, int] = {}
        for partition, offset in cuts.items() if topic.setting(reason) == settings[reason] else ():
            start = min(offset, int(stable[partition]), retained.get(partition, offset))
            if start > log_starts[partition]:
                log_starts[partition] = moved[partition] = start
        if moved:
            entries.append(JournalEntry(RecordsDeleted(topic.topic_id, topic.topic, moved, reason)))
    return Decision(Done(), tuple(entries))


def _find_retained_offsets(state: State, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
    """Return the lowest committed offset per partition, if the topic retains messages for its groups."""
    retained: dict[int, int] = {}
    if topic.setting("retention.waits.for.groups"):
        for committed in state.offsets.values():
            for partition in partitions:
                if (commit := committed.get((topic.topic_id, partition))) is not None:
                    retained[partition] = min(commit.offset, retained.get(partition, commit.offset))
    return retained


def _check_partition_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitions(
            "The number of partitions is out of range.", found=partitions, expected=f"1 to {MAX_PARTITIONS}"
        )


def add_topic(state: State, record: TopicCreated, segments: Segments) -> None:
    zeros = np.zeros(record.partitions, np.int64)
    topic = Topic(record.topic_id, record.topic, record.config, record.subscriptions, zeros, zeros.copy(), zeros.copy())
    topic.schemas = append_schema((), record.config, state.step)
    state.add_topic(topic)
    state.next_topic_id = max(state.next_topic_id, record.topic_id + 1)
    # groups with members may have subscribed to it already; other groups look for it when a member joins
    state.touched_groups |= state.groups_with_members
    # messages to this name may have gone to subscribing topics only: clients must compute their routes again
    if state.subscribers:
        state.routing_step = state.step


def alter_topic(state: State, record: TopicAltered, segments: Segments) -> None:
    topic = state.change_topic(record.topic_id)
    state.touched_groups.update(state.list_groups_with(record.topic_id))
    for partition in topic.set_partition_count(record.partitions):
        state.resumed[topic.topic_id, partition] = int(topic.high_watermarks[partition])
    state.index_draining(topic)
    before = [topic.subscriptions, *(topic.setting(key) for key in ROUTING_SETTINGS)]
    topic.config = record.config
    topic.schemas = append_schema(topic.schemas, record.config, state.step)
    state.set_subscriptions(record.topic_id, record.subscriptions)
    if before != [topic.subscriptions, *(topic.setting(key) for key in ROUTING_SETTINGS)]:
        state.routing_step = state.step


def end_partitions(state: State, record: PartitionsEnded, segments: Segments) -> None:
    topic = state.change_topic(record.topic_id)
    topic.end_partitions(record.first)
    state.index_draining(topic)
    state.touched_groups.update(state.list_groups_with(record.topic_id))


def remove_topic(state: State, record: TopicDeleted, segments: Segments) -> None:
    # an open transaction may still name the topic: ending one leaves out topics that no longer exist
    state.touched_groups.update(state.list_groups_with(record.topic_id))
    state.remove_topic(record.topic_id)


def delete_records(state: State, record: RecordsDeleted, segments: Segments) -> None:
    topic = state.topics[record.topic_id]
    starts = topic.log_starts
    further = {partition: offset for partition, offset in record.log_starts.items() if offset > starts[partition]}
    count_deleted_offsets(
        state, topic.topic_id, {topic.find_partition(p): (int(starts[p]), offset) for p, offset in further.items()}
    )
    for partition, offset in further.items():
        topic = state.change_partition(record.topic_id, partition)
        topic.log_starts[partition] = offset
        topic.final_offsets[partition] = max(topic.final_offsets[partition], offset)
        if (redrive := topic.redrives.get(partition)) is not None:
            redrive.advance_start(offset)
            state.note_deliveries(REDRIVE, (record.topic_id, partition))


DECIDE: Rules = {
    CreateTopic: decide_create,
    AlterTopic: decide_alter,
    DeleteTopic: decide_delete,
    DeleteRecords: decide_delete_records,
    LogOutgrown: decide_retention,
}
EVOLVE: Folds = {
    TopicCreated: add_topic,
    TopicAltered: alter_topic,
    PartitionsEnded: end_partitions,
    TopicDeleted: remove_topic,
    RecordsDeleted: delete_records,
}

# A step may have many commits. Looking through all groups in each would be slow, so this runs as rarely as expiries.
TIMERS: Timers = (Timer(_find_drained_topics, _can_end, decide_end_partitions, is_expiry=True),)
