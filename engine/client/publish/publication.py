"""A publish, whatever its rows are: where it goes, what becomes of bad rows, and by what a repeat of it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lakemq.tables.specs.delayed import NOT_DELAYED

from ...protocol.values.log import ApplicationVersion, Ranges, RefusedRows
from ...protocol.values.producers import ProducerSequences, TransactionRef, next_sequence, waiting_unit
from .routing import Route

OnError = Literal["dead_letter", "fail"]
OnRefusal = Literal["dead_letter", "fail", "leave_out"]
ON_ERROR = ("dead_letter", "fail")


class Sequences:
    """A producer's next sequence per (topic_id, partition); rows that are refused have one of their own."""

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next: dict[tuple[int, int], int] = {}
        self._next_refused = 0

    def of(self, route: Route, ranges: Ranges, refused: Sequence[RefusedRows] = ()) -> ProducerSequences:
        """The sequences a request with these ranges and refused rows bears."""
        units = list(self._units(ranges))
        return ProducerSequences(
            self.producer_id,
            self.producer_epoch,
            [index for index, _ in units],
            [partition for _, partition in units],
            [self._next.get((route.topics[index].topic_id, partition), 0) for index, partition in units],
            self._next_refused if refused else None,
        )

    def advance(self, route: Route, ranges: Ranges, refused: Sequence[RefusedRows] = ()) -> None:
        """The request was accepted: the next one goes on after it."""
        self._next_refused = next_sequence(self._next_refused, sum(rows.record_count for rows in refused))
        for (index, partition), count in self._units(ranges).items():
            key = (route.topics[index].topic_id, partition)
            self._next[key] = next_sequence(self._next.get(key, 0), count)

    @staticmethod
    def _units(ranges: Ranges) -> Mapping[tuple[int, int], int]:
        """(topic_index, partition) -> rows; those that wait count apart."""
        counts: dict[tuple[int, int], int] = {}
        partitions: Iterable[int] = ranges.partition
        if ranges.first_due_ms:
            due = zip(ranges.partition, ranges.first_due_ms, strict=True)
            partitions = [p if due_ms == NOT_DELAYED else waiting_unit(p) for p, due_ms in due]
        for index, partition, count in zip(ranges.topic_index, partitions, ranges.record_count, strict=True):
            counts[index, partition] = counts.get((index, partition), 0) + count
        return counts


@dataclass(frozen=True)
class Publication:
    """destination: a topic, or what subscriptions match; on_error: of the rows that are refused, "leave_out" is that
    nothing happens of them; transaction: the one it is a part of; expectations: by which rows may be refused.

    application, sequences: with either a lost answer is asked for again, and nothing is published twice.
    """

    destination: str
    on_error: OnRefusal = "dead_letter"
    application: ApplicationVersion | None = None
    transaction: TransactionRef | None = None
    sequences: Sequences | None = None
    expectations: Sequence[str] = ()

    @property
    def is_repeatable(self) -> bool:
        return self.sequences is not None or self.application is not None
