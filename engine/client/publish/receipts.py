"""Receipts of delayed messages: text by which one is found again, in every topic that it will come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.specs.delayed import HOUR_MS, NOT_DELAYED
from lakemq.tables.specs.spec import INT64, TEXT, TIME

from ...protocol.errors import InvalidReceipt
from ...protocol.names import shown
from ...protocol.values.delays import RangeKey
from ...protocol.values.log import Published, Unit, WaitingUnit
from .placing import Placed

_PLACE = r"(?:[0-9a-f]{1,16}\.){3,4}[0-9a-f]{1,16}"
_RECEIPT = re.compile(rf"lmq1:([0-9a-zA-Z-]{{1,64}}):({_PLACE}(?:,{_PLACE})*)")
_MOST_CHARACTERS = 1 << 20
_BEGIN = "lmq1:"
_TABLE = pa.schema({"row": INT64, "deliver_at": TIME, "receipt": TEXT})

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


class _Places(NamedTuple):
    """Of the rows of a slice as they were given, in one topic: where each is, if it waits and that was told."""

    topic_id: int
    is_known: npt.NDArray[np.bool_]
    file_id: Numbers
    first_row: Numbers
    row: Numbers

    def of(self, row: int) -> Place:
        return Place(self.topic_id, int(self.file_id[row]), int(self.first_row[row]), int(self.row[row]))

    def texts(self) -> list[str]:
        """Of each row what a receipt says of this topic; empty where nothing."""
        columns = zip(*(column.tolist() for column in self[1:]), strict=True)
        return [f"{self.topic_id:x}.{file:x}.{first:x}.{row:x}" if told else "" for told, file, first, row in columns]


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
        for part, places in zip(self._slices, self._places, strict=True):
            at = row - part.first
            if 0 <= at < part.record_count:
                found = [one.of(at) for one in places if one.is_known[at]]
                return receipt_of(self._namespace_id, found) if found else None
        return None

    def table(self) -> pa.Table:
        """Of the rows that wait, in order: row, as given; deliver_at, in the first topic that it waits for; receipt."""
        rows: list[tuple[int, int, str]] = []
        begin = f"{_BEGIN}{self._namespace_id}:"
        for part, places in zip(self._slices, self._places, strict=True):
            due_ms = part.each[0].due_ms
            for one in part.each[1:]:
                due_ms = np.where(due_ms == NOT_DELAYED, one.due_ms, due_ms)
            texts = zip(*(one.texts() for one in places), strict=True)
            said = (",".join(filter(None, of_row)) for of_row in texts)
            found = enumerate(zip(due_ms.tolist(), said, strict=True), part.first)
            rows += [(row, ms * 1000, begin + text) for row, (ms, text) in found if text]
        columns = zip(*rows, strict=True) if rows else [()] * 3
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _TABLE, strict=True)]
        return pa.table(arrays, schema=_TABLE)

    @cached_property
    def _places(self) -> list[list[_Places]]:
        """Per slice and topic."""
        return [
            [
                self._in_topic(part, number, placed, ranks, topic_id)
                for number, (placed, topic_ids) in enumerate(zip(part.each, self._topic_ids, strict=True))
                for ranks in [_Ranks.of(placed, by_slot=part.file_id is None)]
                for topic_id in topic_ids
            ]
            for part in self._slices
        ]

    def _in_topic(self, part: Slice, number: int, placed: Placed, ranks: _Ranks, topic_id: int) -> _Places:
        waits = placed.due_ms != NOT_DELAYED
        row = ranks.rank - ranks.of_range
        if part.file_id is not None:
            first_row = number * part.record_count + ranks.of_range
            return _Places(topic_id, waits, np.full(len(waits), part.file_id), first_row, row)
        most = int(placed.partition.max(initial=-1)) + 1
        files, firsts = np.full(most + 1, -1, np.int64), np.zeros(most + 1, np.int64)
        for partition in range(most):
            begins = self._begins.get((topic_id, partition))
            if begins is not None and begins.file_id is not None:
                files[partition], firsts[partition] = begins.file_id, begins.first_row
        at = np.where(placed.partition < 0, most, placed.partition)
        first_row = firsts[at] + ranks.of_range - ranks.of_unit
        return _Places(topic_id, waits & (files[at] >= 0), files[at], first_row, row)


class _Ranks(NamedTuple):
    """Of each row where it has come among those it was arranged with; where the first of its range has, and that of
    those of its partition that wait.
    """

    rank: Numbers
    of_range: Numbers
    of_unit: Numbers

    @classmethod
    def of(cls, placed: Placed, by_slot: bool) -> _Ranks:
        """by_slot: a range is of one due time, else of an hour."""
        order = np.lexsort((placed.due_ms, placed.partition))
        partition, due_ms = placed.partition[order], placed.due_ms[order]
        waits, together = due_ms != NOT_DELAYED, due_ms if by_slot else due_ms // HOUR_MS
        begins_unit = _differs(partition) | _differs(waits)
        rank, columns = np.arange(len(order)), np.empty((3, len(order)), np.int64)
        for column, values in zip(
            columns,
            (rank, _first_of(begins_unit | _differs(together)), _first_of(begins_unit)),
            strict=True,
        ):
            column[order] = values
        return cls(*columns)


def _differs(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """From the row before."""
    return np.concatenate([np.ones(min(1, len(column)), np.bool_), column[1:] != column[:-1]])


def _first_of(begins: npt.NDArray[np.bool_]) -> Numbers:
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


@dataclass(frozen=True)
class PublishedRows:
    """What became of a publish, as in `Published`, and receipts of the rows of it that wait."""

    units: list[Unit]
    refused_count: int = 0
    duplicate: bool = False
    waiting: list[WaitingUnit] = field(default_factory=list)
    known: Receipts | None = field(default=None, repr=False, compare=False)

    @property
    def record_count(self) -> int:
        """Rows that were published, those that wait included."""
        return sum(one.record_count for one in self.units) + sum(one.record_count for one in self.waiting)

    @classmethod
    def of(cls, published: Published, known: Receipts | None = None) -> PublishedRows:
        return cls(published.units, published.refused_count, published.duplicate, published.waiting, known)

    def receipts(self) -> pa.Table:
        """Of the rows that wait: row, its number among those given; deliver_at; receipt. Worked out when it is called.

        Of rows of Spark's DataFrames, and of what was published before, there are none.
        """
        return _TABLE.empty_table() if self.known is None else self.known.table()


def receipt_of(namespace_id: str, places: Sequence[Place]) -> str:
    """The receipt of a message that is in these places."""
    return f"{_BEGIN}{namespace_id}:{','.join(map(_said, places))}"


def _said(place: Place) -> str:
    """At once, and not number by number: there may be 100,000 of them."""
    topic_id, file_id, first_row, row, reschedules = place
    said = f"{topic_id:x}.{file_id:x}.{first_row:x}.{row:x}"
    return f"{said}.{reschedules:x}" if reschedules else said  # without that number if it was not rescheduled


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
