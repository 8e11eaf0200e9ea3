"""Reset the offsets of groups: build the request from the arguments of a caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from ...protocol.errors import GroupIdNotFound
from ...protocol.names import shorten
from ...protocol.values.consuming.offsets import ResetOffsets, ResetPartition
from ...protocol.values.state import State
from ..arguments import (
    invalid_argument,
    parse_choice,
    parse_partition_offsets,
    parse_timestamp,
    parse_topics_and_partitions,
    parse_whole_number,
)

OffsetsForTimes = Callable[[str, Mapping[int, datetime]], Mapping[int, tuple[int, int] | None]]
"""Topic, partition -> time; returns partition -> (offset, timestamp) of its first message not before that time."""

_LONGEST_AGO = timedelta(days=100_000)

NamedPartitions = list[tuple[str, int | None]] | None
"""Topics and partitions; a partition of None stands for the whole topic, a list of None for all that the group has."""


class OffsetResets:
    """Builds the reset requests of one connection. Thread-safe."""

    def __init__(
        self, state: Callable[[], State], offsets_for_times: OffsetsForTimes, now_ms: Callable[[], int]
    ) -> None:
        """state: returns the state as of the newest step, with groups."""
        self._state, self._offsets_for_times, self._now_ms = state, offsets_for_times, now_ms

    def build_request(self, group: str, topics: Any, to: Any, shift_by: Any, dry_run: bool) -> ResetOffsets:
        """Return the request for the arguments of `Groups.reset_offsets`.

        Raises:
            InvalidRequest, InvalidTopic: an argument is not valid.
            UnknownTopicOrPartition, GroupIdNotFound: only if `to` is a time.
        """
        if (to is None) == (shift_by is None):
            raise invalid_argument("to", to, "either to, or shift_by")
        if isinstance(to, Mapping):
            if topics is not None:
                raise invalid_argument("topics", topics, "None, as `to` names the partitions")
            offsets = parse_partition_offsets("to", to).items()
            return ResetOffsets(group, "offset", 0, [ResetPartition(*tp, offset) for tp, offset in offsets], dry_run)
        named: NamedPartitions = None if topics is None else parse_topics_and_partitions("topics", topics)
        if isinstance(to, timedelta):
            if not timedelta() <= to <= _LONGEST_AGO:
                raise invalid_argument("to", to, f"a duration of 0 to {_LONGEST_AGO.days} days")
            to = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=self._now_ms()) - to
        if isinstance(to, datetime):
            time = parse_timestamp("to", to)
            assert isinstance(time, datetime)
            return ResetOffsets(group, "offset", 0, self._find_offsets_at(group, named, time), dry_run)
        how: Literal["earliest", "latest", "offset", "shift"]
        offset = 0
        if shift_by is not None:
            how, offset = "shift", parse_whole_number("shift_by", shift_by)
        elif isinstance(to, str):
            how = "earliest" if parse_choice("to", to, ("earliest", "latest")) == "earliest" else "latest"
        else:
            how, offset = "offset", parse_whole_number("to", to, 0)
        topic_partitions = None if named is None else [ResetPartition(*tp) for tp in named]
        return ResetOffsets(group, how, offset, topic_partitions, dry_run)

    def _find_offsets_at(self, group: str, named: NamedPartitions, time: datetime) -> list[ResetPartition]:
        """Return the first message not before the time per partition, else the end of the log.

        The end is taken from the state before the search, so messages that come meanwhile are not skipped.
        """
        state = self._state()
        if named is None:
            if group not in state.groups and group not in state.offsets:
                raise GroupIdNotFound(found=shorten(group))
            topic_partitions = dict.fromkeys(state.list_group_partitions(group))
        else:
            topic_partitions = {tp: None for topic, partition in named for tp in _expand(state, topic, partition)}
        partitions_by_topic: dict[int, list[int]] = {}
        for topic_id, partition in topic_partitions:
            partitions_by_topic.setdefault(topic_id, []).append(partition)
        resets = []
        for topic_id, partitions in partitions_by_topic.items():
            topic = state.topics[topic_id]
            first_messages = self._offsets_for_times(topic.topic, dict.fromkeys(partitions, time))
            for partition in partitions:
                first_message = first_messages[partition]
                offset = int(topic.high_watermarks[partition]) if first_message is None else first_message[0]
                resets.append(ResetPartition(topic.topic, partition, offset, topic_id))
        return resets


def _expand(state: State, name: str, partition: int | None) -> list[tuple[int, int]]:
    """Return one partition of a topic, or all of them."""
    topic = state.topic(name)
    partitions = range(topic.consumed_count) if partition is None else (partition,)
    return [topic.find_partition(number) for number in partitions]
