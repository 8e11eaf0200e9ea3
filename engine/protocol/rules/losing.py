"""What is deleted before a group has had it: it is passed, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..values.assignments import Place
from ..values.state import State


def lose(state: State, topic_id: int, cuts: Mapping[Place, tuple[int, int]]) -> None:
    """Logs of the topic begin at the second offset now, and no more at the first: each group counts what it lacks.

    What a queue group has not acknowledged it lacks, also what somebody has in hand.
    """
    for name, committed in state.offsets.items():
        if committed.keys().isdisjoint(cuts):  # as of most: there may be many groups
            continue
        for place in cuts.keys() & committed.keys():
            (before, after), one, known = cuts[place], committed[place], state.deliveries_of(name, place)
            if known is None:
                lost = after - max(before, one.offset)
            else:
                lost = known.left_count(after) - known.left_count(before)
            if lost > 0:
                committed[place] = replace(one, deleted_count=one.deleted_count + lost)
    for name in state.groups_with(topic_id):
        committed, assignments = state.offsets.get(name, {}), state.groups[name].assignments
        for place in cuts.keys() - committed.keys():
            own, (before, after) = assignments.get(place), cuts[place]
            if own is not None and own.start_offset is not None:
                own.deleted_count += max(0, after - max(before, own.start_offset))
