"""Choose the assignor of a group from what its members support, as Kafka's group coordinator does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Preferences = Sequence[Sequence[str]]
"""The list of assignors of each member that has one, the best first, in the order in which the members joined."""


def find_common_assignors(preferences: Preferences) -> list[str]:
    """Return the assignors that stand in every list, in the order of the first list."""
    if not preferences:
        return []
    first, *rest = preferences
    return [name for name in first if all(name in names for names in rest)]


def elect_assignor(preferences: Preferences) -> str | None:
    """Return the common assignor that most members prefer; None where they have none in common.

    Each member votes for the first common one of its list. The earliest vote decides a tie, so that the members that
    were there first keep their assignor.
    """
    common = set(find_common_assignors(preferences))
    if not common:
        return None
    votes = Counter(next(name for name in names if name in common) for names in preferences)
    # a Counter keeps the order of the votes, and max returns the first of equals
    return max(votes, key=votes.__getitem__)
