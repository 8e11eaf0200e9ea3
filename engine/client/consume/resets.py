"""Where a group is to go on: what a caller says, as the request that the sequencer decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from ...protocol.errors import GroupIdNotFound
from ...protocol.names import shown
from ...protocol.values.offsets import ResetOffsets, ResetPlace
from ...protocol.values.state import State
from ..arguments import moment, one_of, place_offsets, refused, topics_and_partitions, whole_number

OffsetsForTimes = Callable[[str, Mapping[int, datetime]], Mapping[int, tuple[int, int] | None]]
"""Topic and partition -> time to partition -> its first (offset, timestamp) not before it."""

_MOST_BACK = timedelta(days=100_000)

Given = list[tuple[str, int | None]] | None
"""Topics and partitions, None: all of the topic; or all that the group has."""


class Resets:
    """Makes the requests of one connection. Thread-safe."""

    def __init__(
        self, state: Callable[[], State], offsets_for_times: OffsetsForTimes, now_ms: Callable[[], int]
    ) -> None:
        """state: as of the newest step, with groups."""
        self._state, self._offsets_for_times, self._now_ms = state, offsets_for_times, now_ms

    def request(self, group: str, topics: Any, to: Any, shift_by: Any, dry_run: bool) -> ResetOffsets:
        """Raises InvalidRequest, InvalidTopic; for a time also UnknownTopicOrPartition, GroupIdNotFound."""
        if (to is None) == (shift_by is None):
            raise refused("to", to, "either to, or shift_by")
        if isinstance(to, Mapping):
            if topics is not None:
                raise refused("topics", topics, "None, as `to` names the partitions")
            named = place_offsets("to", to).items()
            return ResetOffsets(group, "offset", 0, [ResetPlace(*place, at) for place, at in named], dry_run)
        given: Given = None if topics is None else topics_and_partitions("topics", topics)
        if isinstance(to, timedelta):
            if not timedelta() <= to <= _MOST_BACK:
                raise refused("to", to, f"a duration of 0 to {_MOST_BACK.days} days")
            to = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=self._now_ms()) - to
        if isinstance(to, datetime):
            time = moment("to", to)
            assert isinstance(time, datetime)
            return ResetOffsets(group, "offset", 0, self._at_time(group, given, time), dry_run)
        how: Literal["earliest", "latest", "offset", "shift"]
        offset = 0
        if shift_by is not None:
            how, offset = "shift", whole_number("shift_by", shift_by)
        elif isinstance(to, str):
            how = "earliest" if one_of("to", to, ("earliest", "latest")) == "earliest" else "latest"
        else:
            how, offset = "offset", whole_number("to", to, 0)
        places = None if given is None else [ResetPlace(*place) for place in given]
        return ResetOffsets(group, how, offset, places, dry_run)

    def _at_time(self, group: str, given: Given, time: datetime) -> list[ResetPlace]:
        """The first message not before it, or the end of the log as it was looked through: what comes after that look
        is not passed over.
        """
        state = self._state()
        if given is None:
            if group not in state.groups and group not in state.offsets:
                raise GroupIdNotFound(found=shown(group))
            wanted = dict.fromkeys(state.group_places(group))
        else:
            wanted = {place: None for topic, partition in given for place in _places(state, topic, partition)}
        by_topic: dict[int, list[int]] = {}
        for topic_id, partition in wanted:
            by_topic.setdefault(topic_id, []).append(partition)
        places = []
        for topic_id, partitions in by_topic.items():
            topic = state.topics[topic_id]
            found = self._offsets_for_times(topic.topic, dict.fromkeys(partitions, time))
            for partition in partitions:
                at = found[partition]
                offset = int(topic.high_watermarks[partition]) if at is None else at[0]
                places.append(ResetPlace(topic.topic, partition, offset, topic_id))
        return places


def _places(state: State, name: str, partition: int | None) -> list[tuple[int, int]]:
    topic = state.topic(name)
    partitions = range(topic.consumed_count) if partition is None else (partition,)
    return [topic.place(number) for number in partitions]
