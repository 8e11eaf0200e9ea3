"""How many offsets of each partition one poll takes, so that no partition starves and no room is wasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def poll_sizes(available: Mapping[K, int], room: int) -> dict[K, int]:
    """Divide the room evenly among partitions.

    Room that a partition cannot use goes to the others. A remainder that does not divide goes to those named first.

    Args:
        available: partition -> offsets that it could use.
        room: offsets to divide.

    Returns:
        Partition -> offsets, also for those that get none.
    """
    sizes = dict.fromkeys(available, 0)
    unsatisfied = [place for place, count in available.items() if count > 0]
    while room >= len(unsatisfied) > 0:
        share = room // len(unsatisfied)
        for place in unsatisfied:
            more = min(share, available[place] - sizes[place])
            sizes[place] += more
            room -= more
        unsatisfied = [place for place in unsatisfied if sizes[place] < available[place]]
    for place in unsatisfied[:room]:
        sizes[place] += 1
    return sizes
