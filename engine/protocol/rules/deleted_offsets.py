"""Offsets that are deleted before a group has read them: the group skips and counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..values.assignments import Place
from ..values.state import State


def count_deleted_offsets(state: State, topic_id: int, cuts: Mapping[Place, tuple[int, int]]) -> None:
    """Count for each group the offsets that it loses when logs of the topic start later.

    A queue group loses what it has not acknowledged, including messages that a member has at the moment. cuts:
    (topic_id, partition) -> the log start before and after.
    """
    for name, committed in state.offsets.items():
        if committed.keys().isdisjoint(cuts):  # true for most groups, and there may be many
            continue
        for place in cuts.keys() & committed.keys():
            (before, after), commit, deliveries = cuts[place], committed[place], state.find_deliveries(name, place)
            if deliveries is None:
                lost = after - max(before, commit.offset)
            else:
                lost = deliveries.count_remaining(after) - deliveries.count_remaining(before)
            if lost > 0:
                committed[place] = replace(commit, deleted_count=commit.deleted_count + lost)
    for name in state.list_groups_with(topic_id):
        committed, assignments = state.offsets.get(name, {}), state.groups[name].assignments
        for place in cuts.keys() - committed.keys():
            assignment, (before, after) = assignments.get(place), cuts[place]
            if assignment is not None and assignment.start_offset is not None:
                assignment.deleted_count += max(0, after - max(before, assignment.start_offset))
