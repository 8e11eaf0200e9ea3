"""Sets of offsets that mostly follow one another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

Span = tuple[int, int]
"""First offset, and the one after the last."""


class Spans:
    """Offsets as spans that are sorted and apart."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in spans:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def remove(self, first: int, end: int) -> None:
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low >= high:
            return
        left = [(self._firsts[low], first)] if self._firsts[low] < first else []
        right = [(end, self._ends[high - 1])] if end < self._ends[high - 1] else []
        kept = [*left, *right]
        self._firsts[low:high], self._ends[low:high] = [one for one, _ in kept], [one for _, one in kept]

    def within(self, first: int, end: int) -> Iterator[Span]:
        """Those of these offsets that are in the set."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        for at in range(low, high):
            yield max(first, self._firsts[at]), min(end, self._ends[at])

    def missing(self, first: int, end: int) -> Iterator[Span]:
        """Those of these offsets that are not."""
        for begin, until in self.within(first, end):
            if first < begin:
                yield first, begin
            first = until
        if first < end:
            yield first, end

    def has_all(self, first: int, end: int) -> bool:
        return next(self.missing(first, end), None) is None

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    def __len__(self) -> int:
        """Number of offsets."""
        return sum(self._ends) - sum(self._firsts)


def spans_of(offsets: Iterable[int]) -> list[Span]:
    """Of offsets in any order. Raises ValueError: one is no whole number of 64 bits."""
    listed = list(offsets)
    if not listed:
        return []
    try:
        array = np.array(listed)
    except (TypeError, OverflowError) as error:
        raise ValueError("not a whole number") from error
    if array.dtype.kind != "i" or array.ndim != 1:
        raise ValueError("not a whole number of 64 bits")
    known = np.unique(array)
    cuts = np.flatnonzero(np.diff(known) != 1)
    firsts = known[np.concatenate([[0], cuts + 1])]
    lasts = known[np.concatenate([cuts, [len(known) - 1]])]
    return [(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
