"""What a flush tells: what was acknowledged, and what has failed, to each thread once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.errors import LakeMQError
from ...protocol.values.log import Published

_MAX_FAILURES = 100
"""Of those that a thread was not told of it is told the first; with so many, the first of the last ones."""


class Span(NamedTuple):
    """What was acknowledged of one partition; others may have published between the first and the last offset."""

    first_offset: int
    last_offset: int
    record_count: int

    def joined(self, other: Span | None) -> Span:
        """Both; None: nothing else was acknowledged there."""
        if other is None:
            return self
        first, last = min(self.first_offset, other.first_offset), max(self.last_offset, other.last_offset)
        return Span(first, last, self.record_count + other.record_count)


@dataclass(frozen=True)
class Flushed:
    """What was acknowledged since the last flush, by (topic, partition); how many rows were refused; how many wait."""

    spans: Mapping[tuple[str, int], Span]
    refused_count: int
    waiting_count: int = 0

    def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, partition) -> first and last offset of what was flushed."""
        return {place: (span.first_offset, span.last_offset) for place, span in self.spans.items()}


class Acknowledged:
    """What no flush has told yet: a few numbers per partition, however much was sent."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], Span] = {}
        self._refused_count = self._waiting_count = 0

    def add(self, published: Published) -> None:
        self._refused_count += published.refused_count
        self._waiting_count += sum(unit.record_count for unit in published.waiting)
        for unit in published.units:
            place, last = (unit.topic, unit.partition), unit.base_offset + unit.record_count - 1
            self._spans[place] = Span(unit.base_offset, last, unit.record_count).joined(self._spans.get(place))

    def take(self) -> Flushed:
        told = Flushed(self._spans, self._refused_count, self._waiting_count)
        self._spans, self._refused_count, self._waiting_count = {}, 0, 0
        return told


class _Told(threading.local):
    """Up to which batch this thread knows what has failed; below 0: it has not used the producer yet."""

    number = -1


class Failures:
    """Errors of batches, by their numbers. Each thread that uses the producer is told once.

    A thread is told of what fails after its first call; and before that, of what nobody was told of.
    """

    def __init__(self) -> None:
        self._failed: deque[tuple[int, LakeMQError]] = deque(maxlen=_MAX_FAILURES)
        self._last = self._told_anybody = 0
        self._told = _Told()

    def add(self, number: int, error: LakeMQError) -> None:
        self._failed.append((number, error))
        self._last = number

    def clear(self) -> None:
        """They are of no account any more: their transaction is over."""
        self._failed.clear()
        self._last = 0

    @property
    def is_told(self) -> bool:
        """This thread has used the producer, and was told of all that has failed since."""
        return self._told.number >= self._last

    def meet(self) -> None:
        """From here on this thread is told of what fails."""
        if self._told.number < 0:
            self._told.number = self._told_anybody

    def raise_untold(self, upto: int | None = None) -> None:
        """Raises the first error that this thread was not told of, of the batches up to this number, or of all."""
        if self._told.number >= self._last:
            return
        self.meet()
        told, last = self._told.number, self._last if upto is None else upto
        for number, error in self._failed:
            if told < number <= last:
                self._told.number = last
                self._told_anybody = max(self._told_anybody, last)
                raise error.with_traceback(None)  # one error, raised in several threads
