"""Receipts of delayed messages: text by which one is found again, in every topic that it will come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.delayed import HOUR_MS, NOT_DELAYED

from ...protocol.errors import InvalidReceipt
from ...protocol.names import shown
from ...protocol.values.delays import RangeKey
from ...protocol.values.log import WaitingUnit
from .placing import Placed

_PLACE = r"(?:[0-9a-f]{1,16}\.){3,4}[0-9a-f]{1,16}"
_RECEIPT = re.compile(rf"lmq1:([0-9a-zA-Z-]{{1,64}}):({_PLACE}(?:,{_PLACE})*)")
_MOST_CHARACTERS = 1 << 20

Numbers = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Where a delayed message is in one topic: its range, and its number within that."""

    topic_id: int
    file_id: int
    first_row: int
    row: int
    reschedules: int = 0

    @property
    def range(self) -> RangeKey:
        return RangeKey(self.topic_id, self.file_id, self.first_row, self.reschedules)


@dataclass(frozen=True)
class Slice:
    """Rows that were arranged together, from row `first` of those given on. file_id: None where they ride."""

    first: int
    record_count: int
    file_id: int | None
    each: tuple[Placed, ...]

    @cached_property
    def ranks(self) -> list[Numbers]:
        """Per copy where each row has come."""
        ranks = []
        for one in self.each:
            rank = np.empty(self.record_count, np.int64)
            rank[np.lexsort((one.due_ms, one.partition))] = np.arange(self.record_count)
            ranks.append(rank)
        return ranks


class Receipts:
    """Of one publish, worked out when somebody asks."""

    def __init__(
        self,
        namespace_id: str,
        topic_ids: Sequence[tuple[int, ...]],
        slices: Sequence[Slice],
        waiting: Sequence[WaitingUnit],
    ) -> None:
        """topic_ids: per copy; waiting: as it was answered."""
        self._namespace_id, self._topic_ids, self._slices = namespace_id, topic_ids, slices
        self._begins = {(unit.topic_id, unit.partition): unit for unit in waiting}

    def of(self, row: int) -> str | None:
        """The receipt of a row as it was given; None: it does not wait."""
        for part in self._slices:
            if part.first <= row < part.first + part.record_count:
                places = self._places(part, row - part.first)
                return receipt_of(self._namespace_id, places) if places else None
        return None

    def _places(self, part: Slice, row: int) -> list[Place]:
        """Per topic."""
        found: list[Place] = []
        for number, (one, rank, topic_ids) in enumerate(zip(part.each, part.ranks, self._topic_ids, strict=True)):
            partition, due_ms = int(one.partition[row]), int(one.due_ms[row])
            if due_ms == NOT_DELAYED:
                continue
            unit = (one.partition == partition) & (one.due_ms != NOT_DELAYED)
            together = one.due_ms == due_ms if part.file_id is None else one.due_ms // HOUR_MS == due_ms // HOUR_MS
            first = int(rank[unit & together].min())
            for topic_id in topic_ids:
                begins = self._begins.get((topic_id, partition))
                if part.file_id is not None:
                    place = (part.file_id, number * part.record_count + first)
                elif begins is None or begins.file_id is None:
                    continue
                else:
                    place = (begins.file_id, begins.first_row + first - int(rank[unit].min()))
                found.append(Place(topic_id, *place, int(rank[row]) - first))
        return found


def receipt_of(namespace_id: str, places: Sequence[Place]) -> str:
    """The receipt of a message that is in these places."""
    # a message that was not rescheduled does without that number
    said = (place if place.reschedules else place[:-1] for place in places)
    return f"lmq1:{namespace_id}:" + ",".join(".".join(f"{number:x}" for number in one) for one in said)


def places_of(receipts: Sequence[str], namespace_id: str) -> list[list[Place]]:
    """Where the message of each is. Raises InvalidReceipt."""
    places = []
    for receipt in receipts:
        found = _RECEIPT.fullmatch(receipt) if len(receipt) <= _MOST_CHARACTERS else None
        if found is None:
            raise InvalidReceipt("This is no receipt.", found=shown(receipt), expected="lmq1:...")
        if found[1] != namespace_id:
            raise InvalidReceipt("The receipt is of another namespace.", found=found[1], expected=namespace_id)
        places.append([Place(*(int(number, 16) for number in one.split("."))) for one in found[2].split(",")])
    return places


Numbered: TypeAlias = tuple[list[int], list[int], list[int], list[int], list[int]]


def columns_of(places: Sequence[Place]) -> Numbered:
    """As requests name them; at least one."""
    topic_id, file_id, first_row, row, reschedules = (list(column) for column in zip(*places, strict=True))
    return topic_id, file_id, first_row, row, reschedules
