"""What is deleted before a group has had it: it is passed, and counted."""

from __future__ import annotations

from dataclasses import replace

from ..values.assignments import Place
from ..values.state import State


def lose(state: State, place: Place, before: int, after: int) -> None:
    """The log of the partition begins at `after` now, and no more at `before`: each group counts what it lacks of it.

    What a queue group has not acknowledged it lacks, also what somebody has in hand.
    """
    for name, committed in state.offsets.items():
        if (one := committed.get(place)) is not None:
            known = state.deliveries_of(name, place)
            if known is None:
                lost = after - max(before, one.offset)
            else:
                lost = known.left_count(after) - known.left_count(before)
            if lost > 0:
                committed[place] = replace(one, deleted_count=one.deleted_count + lost)
    for name, group in state.groups.items():
        own = group.assignments.get(place)
        if own is not None and own.start_offset is not None and place not in state.offsets.get(name, {}):
            own.deleted_count += max(0, after - max(before, own.start_offset))
