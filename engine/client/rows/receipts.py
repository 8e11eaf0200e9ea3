"""Receipts of delayed messages: text that finds a message again in every topic that it will come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemq.tables.specs.messages import HOUR_MS, NOT_DELAYED
from lakemq.tables.specs.spec import INT64, TEXT, TIME

from ...protocol.errors import InvalidReceipt
from ...protocol.names import shorten
from ...protocol.values.delays import RangeKey
from ...protocol.values.log import Published, Unit, WaitingUnit
from ..html_table import build_html_table
from .placing import RowPlacement

_PLACE = r"(?:[0-9a-f]{1,16}\.){3,4}[0-9a-f]{1,16}"
_RECEIPT = re.compile(rf"lmq1:([0-9a-zA-Z-]{{1,64}}):({_PLACE}(?:,{_PLACE})*)")
_MOST_CHARACTERS = 1 << 20
_BEGIN = "lmq1:"
_TABLE = pa.schema({"row": INT64, "deliver_at": TIME, "receipt": TEXT})

Numbers = npt.NDArray[np.int64]


class MessagePlace(NamedTuple):
    """The place of a delayed message in one topic: its range, and its number in the range."""

    topic_id: int
    file_id: int
    first_row: int
    row: int
    reschedules: int = 0

    @property
    def range(self) -> RangeKey:
        return RangeKey(self.topic_id, self.file_id, self.first_row, self.reschedules)


@dataclass(frozen=True)
class ArrangedSlice:
    """Rows that were arranged together, from the caller's row `first` on. file_id: None if they are in the request."""

    first: int
    record_count: int
    file_id: int | None
    per_copy: tuple[RowPlacement, ...]


class _TopicPlaces(NamedTuple):
    """The places of a slice's rows in one topic. is_located: the row waits, and the answer says where."""

    topic_id: int
    is_located: npt.NDArray[np.bool_]
    file_id: Numbers
    first_row: Numbers
    row: Numbers

    def of(self, row: int) -> MessagePlace:
        return MessagePlace(self.topic_id, int(self.file_id[row]), int(self.first_row[row]), int(self.row[row]))

    def texts(self) -> list[str]:
        """Return per row the receipt's part for this topic; empty if there is none."""
        columns = zip(*(column.tolist() for column in self[1:]), strict=True)
        return [
            f"{self.topic_id:x}.{file:x}.{first:x}.{row:x}" if is_located else ""
            for is_located, file, first, row in columns
        ]


class Receipts:
    """The receipts of one publish, computed on first use."""

    def __init__(
        self,
        namespace_id: str,
        topic_ids: Sequence[tuple[int, ...]],
        slices: Sequence[ArrangedSlice],
        waiting: Sequence[WaitingUnit],
    ) -> None:
        """topic_ids: per copy; waiting: from the answer."""
        self._namespace_id, self._topic_ids, self._slices = namespace_id, topic_ids, slices
        self._begins = {(unit.topic_id, unit.partition): unit for unit in waiting}

    def of(self, row: int) -> str | None:
        """Return the receipt of the caller's row; None if it is not delayed."""
        for part, places in zip(self._slices, self._places, strict=True):
            at = row - part.first
            if 0 <= at < part.record_count:
                row_places = [topic.of(at) for topic in places if topic.is_located[at]]
                return format_receipt(self._namespace_id, row_places) if row_places else None
        return None

    def table(self) -> pa.Table:
        """Return a table of the delayed rows: row (the caller's number), deliver_at in the first topic, receipt."""
        rows: list[tuple[int, int, str]] = []
        begin = f"{_BEGIN}{self._namespace_id}:"
        for part, places in zip(self._slices, self._places, strict=True):
            due_ms = part.per_copy[0].due_ms
            for placement in part.per_copy[1:]:
                due_ms = np.where(due_ms == NOT_DELAYED, placement.due_ms, due_ms)
            texts = zip(*(topic.texts() for topic in places), strict=True)
            receipt_texts = (",".join(filter(None, of_row)) for of_row in texts)
            numbered = enumerate(zip(due_ms.tolist(), receipt_texts, strict=True), part.first)
            rows += [(row, ms * 1000, begin + text) for row, (ms, text) in numbered if text]
        columns = zip(*rows, strict=True) if rows else [()] * 3
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _TABLE, strict=True)]
        return pa.table(arrays, schema=_TABLE)

    @cached_property
    def _places(self) -> list[list[_TopicPlaces]]:
        """Per slice and topic."""
        return [
            [
                self._in_topic(part, number, placed, ranks, topic_id)
                for number, (placed, topic_ids) in enumerate(zip(part.per_copy, self._topic_ids, strict=True))
                for ranks in [_Ranks.of(placed, by_slot=part.file_id is None)]
                for topic_id in topic_ids
            ]
            for part in self._slices
        ]

    def _in_topic(
        self, part: ArrangedSlice, number: int, placed: RowPlacement, ranks: _Ranks, topic_id: int
    ) -> _TopicPlaces:
        waits = placed.due_ms != NOT_DELAYED
        row = ranks.rank - ranks.of_range
        if part.file_id is not None:
            first_row = number * part.record_count + ranks.of_range
            return _TopicPlaces(topic_id, waits, np.full(len(waits), part.file_id), first_row, row)
        most = int(placed.partition.max(initial=-1)) + 1
        files, firsts = np.full(most + 1, -1, np.int64), np.zeros(most + 1, np.int64)
        for partition in range(most):
            begins = self._begins.get((topic_id, partition))
            if begins is not None and begins.file_id is not None:
                files[partition], firsts[partition] = begins.file_id, begins.first_row
        at = np.where(placed.partition < 0, most, placed.partition)
        first_row = firsts[at] + ranks.of_range - ranks.of_unit
        return _TopicPlaces(topic_id, waits & (files[at] >= 0), files[at], first_row, row)


class _Ranks(NamedTuple):
    """Positions of rows after sorting.

    rank: of the row. of_range: of the first row of its range. of_unit: of the first waiting row of its partition.
    """

    rank: Numbers
    of_range: Numbers
    of_unit: Numbers

    @classmethod
    def of(cls, placed: RowPlacement, by_slot: bool) -> _Ranks:
        """by_slot: a range is of one due time, else of an hour."""
        order = np.lexsort((placed.due_ms, placed.partition))
        partition, due_ms = placed.partition[order], placed.due_ms[order]
        waits, together = due_ms != NOT_DELAYED, due_ms if by_slot else due_ms // HOUR_MS
        begins_unit = _begins_new_value(partition) | _begins_new_value(waits)
        rank, columns = np.arange(len(order)), np.empty((3, len(order)), np.int64)
        for column, values in zip(
            columns,
            (rank, _first_row_of_each(begins_unit | _begins_new_value(together)), _first_row_of_each(begins_unit)),
            strict=True,
        ):
            column[order] = values
        return cls(*columns)


def _begins_new_value(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the rows that differ from the row before."""
    return np.concatenate([np.ones(min(1, len(column)), np.bool_), column[1:] != column[:-1]])


def _first_row_of_each(begins: npt.NDArray[np.bool_]) -> Numbers:
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


@dataclass(frozen=True)
class PublishedRows:
    """The result of a publish: offsets per partition, rejected rows, and receipts of delayed rows.

    warnings: a sentence for each topic that deletes some of the messages at its next look of retention, because they
    are older than its `retention.ms`, or whose retention is held back by times in the future.
    """

    units: list[Unit]
    rejected_count: int = 0
    duplicate: bool = False
    waiting: list[WaitingUnit] = field(default_factory=list)
    row_receipts: Receipts | None = field(default=None, repr=False, compare=False)
    warnings: Sequence[str] = ()

    @property
    def record_count(self) -> int:
        """Number of published rows, with those that wait."""
        return sum(unit.record_count for unit in self.units) + sum(unit.record_count for unit in self.waiting)

    @classmethod
    def of(cls, published: Published, known: Receipts | None = None, warnings: Sequence[str] = ()) -> PublishedRows:
        return cls(published.units, published.rejected_count, published.duplicate, published.waiting, known, warnings)

    def _repr_html_(self) -> str:
        caption = f"{self.record_count} rows published, {self.rejected_count} rejected"
        rows = ((unit.topic, unit.partition, unit.base_offset, unit.record_count) for unit in self.units)
        return build_html_table(caption, ("topic", "partition", "base_offset", "record_count"), rows)

    def receipts(self) -> pa.Table:
        """Return a table of the delayed rows: row (the caller's number), deliver_at, receipt.

        It is empty for Spark DataFrames, and for rows that were published before.
        """
        return _TABLE.empty_table() if self.row_receipts is None else self.row_receipts.table()


def format_receipt(namespace_id: str, places: Sequence[MessagePlace]) -> str:
    """Return the receipt of a message with these places."""
    return f"{_BEGIN}{namespace_id}:{','.join(map(_format_place, places))}"


def _format_place(place: MessagePlace) -> str:
    """Return a receipt's part for one place. Format all numbers at once: there may be 100,000 places."""
    topic_id, file_id, first_row, row, reschedules = place
    text = f"{topic_id:x}.{file_id:x}.{first_row:x}.{row:x}"
    return f"{text}.{reschedules:x}" if reschedules else text


def parse_receipts(receipts: Sequence[str], namespace_id: str) -> list[list[MessagePlace]]:
    """Return the places of each receipt's message. Raises InvalidReceipt."""
    places = []
    for receipt in receipts:
        match = _RECEIPT.fullmatch(receipt) if len(receipt) <= _MOST_CHARACTERS else None
        if match is None:
            raise InvalidReceipt("This text is not a receipt.", found=shorten(receipt), expected="lmq1:...")
        if match[1] != namespace_id:
            raise InvalidReceipt("The receipt is of another namespace.", found=match[1], expected=namespace_id)
        places.append(
            [MessagePlace(*(int(number, 16) for number in place.split("."))) for place in match[2].split(",")]
        )
    return places


Numbered: TypeAlias = tuple[list[int], list[int], list[int], list[int], list[int]]


def place_columns(places: Sequence[MessagePlace]) -> Numbered:
    """Return the places as columns of a request. There must be at least one."""
    topic_id, file_id, first_row, row, reschedules = (list(column) for column in zip(*places, strict=True))
    return topic_id, file_id, first_row, row, reschedules
