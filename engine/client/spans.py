"""Sets of offsets, stored as spans because the offsets mostly follow one another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

Span = tuple[int, int]
"""First offset, and end offset (exclusive)."""


class Spans:
    """A set of offsets, as sorted spans that do not touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in spans:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def remove(self, first: int, end: int) -> None:
        """Remove the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low >= high:
            return
        before = [(self._firsts[low], first)] if self._firsts[low] < first else []
        after = [(end, self._ends[high - 1])] if end < self._ends[high - 1] else []
        rest = [*before, *after]
        self._firsts[low:high] = [span[0] for span in rest]
        self._ends[low:high] = [span[1] for span in rest]

    def within(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are in the set."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        for i in range(low, high):
            yield max(first, self._firsts[i]), min(end, self._ends[i])

    def missing(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are not in the set."""
        for span_first, span_end in self.within(first, end):
            if first < span_first:
                yield first, span_first
            first = span_end
        if first < end:
            yield first, end

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    @property
    def is_empty(self) -> bool:
        return not self._firsts

    def __len__(self) -> int:
        """Return the number of offsets."""
        return sum(self._ends) - sum(self._firsts)


def group_into_spans(offsets: Iterable[int]) -> list[Span]:
    """Return sorted spans of these offsets, which come in any order. Raises ValueError unless they fit 64 bits."""
    listed = list(offsets)
    if not listed:
        return []
    try:
        array = np.array(listed)
    except (TypeError, OverflowError) as error:
        raise ValueError("not a whole number") from error
    if array.dtype.kind != "i" or array.ndim != 1:
        raise ValueError("not a whole number of 64 bits")
    distinct = np.unique(array)
    cuts = np.flatnonzero(np.diff(distinct) != 1)
    firsts = distinct[np.concatenate([[0], cuts + 1])]
    lasts = distinct[np.concatenate([cuts, [len(distinct) - 1]])]
    return [(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
