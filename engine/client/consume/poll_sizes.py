"""How many offsets of each partition one poll takes, so that none starves and none of the room is wasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def poll_sizes(behind: Mapping[K, int], room: int) -> dict[K, int]:
    """Room given out evenly; what a partition cannot use goes to the others, what does not divide to those named first.

    behind: offsets that are there to take.
    """
    given = dict.fromkeys(behind, 0)
    hungry = [place for place, lag in behind.items() if lag > 0]
    while room >= len(hungry) > 0:
        each = room // len(hungry)
        for place in hungry:
            taken = min(each, behind[place] - given[place])
            given[place] += taken
            room -= taken
        hungry = [place for place in hungry if given[place] < behind[place]]
    for place in hungry[:room]:
        given[place] += 1
    return given
