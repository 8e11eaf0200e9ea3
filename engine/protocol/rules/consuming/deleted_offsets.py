"""Offsets that are deleted before a group has read them: the group skips and counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...values.consuming.assignments import TopicIdPartition
from ...values.state import State


def count_deleted_offsets(state: State, topic_id: int, cuts: Mapping[TopicIdPartition, tuple[int, int]]) -> None:
    """Count for each group the offsets that it loses when logs of the topic start later.

    A queue group loses what it has not acknowledged, including messages that a member has at the moment. cuts:
    (topic_id, partition) -> the log start before and after.
    """
    for name, committed in state.offsets.items():
        if committed.keys().isdisjoint(cuts):  # true for most groups, and there may be many
            continue
        for tp in cuts.keys() & committed.keys():
            (before, after), commit, deliveries = cuts[tp], committed[tp], state.find_deliveries(name, tp)
            if deliveries is None:
                lost = after - max(before, commit.offset)
            else:
                lost = deliveries.count_remaining(after) - deliveries.count_remaining(before)
            if lost > 0:
                state.replace_offset(name, tp, replace(commit, deleted_count=commit.deleted_count + lost))
    for name in state.list_groups_with(topic_id):
        committed, group = state.offsets.get(name, {}), state.groups[name]
        for tp in cuts.keys() - committed.keys():
            (before, after), assignment = cuts[tp], group.assignments.get(tp)
            if assignment is None or assignment.start_offset is None:
                continue
            lost = after - max(before, assignment.start_offset)
            if lost > 0 and (assignment := state.change_assignment(group, tp)):
                assignment.deleted_count += lost
