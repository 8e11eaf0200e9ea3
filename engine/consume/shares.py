"""How many offsets of each partition one poll takes, so that none starves and none of the room is wasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def shares(behind: Mapping[K, int], room: int) -> dict[K, int]:
    """Room given out evenly; what a partition cannot use goes to the others. behind: offsets that are there to take."""
    given: dict[K, int] = {}
    for left, (place, lag) in zip(
        range(len(behind), 0, -1), sorted(behind.items(), key=lambda item: item[1]), strict=True
    ):
        given[place] = min(lag, -(-room // left))
        room -= given[place]
    return given
