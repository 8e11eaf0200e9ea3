"""When delayed rows are due: absolute once, when they are sent, and rounded up, never down.

Runs on Spark executors too: pyarrow and numpy only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.delayed import HOUR_MS, NOT_DELAYED
from lakemq.tables.specs.messages import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US

Numbers = npt.NDArray[np.int64]

DUE_BY_CALL = "due_by_call"
"""A column beside those of a message body: when a row is due in a topic whose messages bear the sequencer's time."""

NO_DUE = -(2**63)
"""In microseconds: a row is not delayed."""
NEGATIVE = NO_DUE + 1
"""In microseconds: its delay is negative."""
BOTH = NO_DUE + 2
"""In microseconds: it has a time of delivery, and a delay."""
UNREADABLE = NO_DUE + 3
"""In microseconds: a header that says when is no number."""

DELAY_HEADERS = ("DELIVER_AT", "DELAY_MS")
"""Headers that say when, in decimal milliseconds, where no column does. A message that waits has them no more: one that
is passed on is not delayed again.
"""

MOST_DELAY_MS = MAX_TIMESTAMP_US // 1000 + 1
"""With which what is due after 1970 is due after 9999."""
FAR_MS = 2 * MOST_DELAY_MS
"""After all times that a row may be due at."""

FAR_US = 1000 * FAR_MS
"""With any delay added it is still less than 64 bits hold."""

BAD = _OUT_OF_RANGE, _NEGATIVE, _TOO_LONG, _BOTH, _UNREADABLE = (-2, -3, -4, -5, -6)
"""Instead of when a row is due: that it cannot be, as `placing` refuses it."""

_DIGITS = re.compile(rb"[0-9]{1,18}")


def due_since(at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray, since_us: Any) -> pa.ChunkedArray:
    """In microseconds when rows are asked to be due, null where they are not delayed.

    since_us: what a delay is counted from, a column or a number.
    """
    # more than there are years up to 9999: it is refused as what is due then is
    delay_us = pc.multiply(pc.min_element_wise(delay_ms, MOST_DELAY_MS, skip_nulls=False), 1000)
    since_us = pc.min_element_wise(since_us, FAR_US)
    by_delay = pc.if_else(pc.less(delay_ms, 0), pa.scalar(NEGATIVE), pc.add(since_us, delay_us))
    at_us = pc.if_else(pc.and_(at_us.is_valid(), delay_ms.is_valid()), pa.scalar(BOTH), at_us)
    return pc.coalesce(at_us, by_delay)


def said_by(headers: Iterable[tuple[str | None, bytes | None]]) -> tuple[int | None, int | None]:
    """Of a row when it is to be delivered, in microseconds, or how much later, as its DELAY_HEADERS say: of each name
    the first.
    """
    said: dict[str | None, bytes | None] = {}
    for name, value in headers:
        if name in DELAY_HEADERS:
            said.setdefault(name, value)
    numbers = [None if name not in said else said[name] or b"" for name in DELAY_HEADERS]
    if any(one is not None and not _DIGITS.fullmatch(one) for one in numbers):
        return UNREADABLE, None
    at_ms, delay_ms = (None if one is None else int(one) for one in numbers)
    return None if at_ms is None else 1000 * min(at_ms, FAR_MS), delay_ms


def taken_from_headers(
    headers: pa.ChunkedArray, at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """The same with what DELAY_HEADERS say of rows of which no column does; and the headers without these."""
    if headers.null_count == len(headers):
        return headers, at_us, delay_ms
    lists = pa.concat_arrays(headers.chunks)
    flat, rows = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    mine = pc.fill_null(pc.is_in(pc.struct_field(flat, "key"), pa.array(DELAY_HEADERS)), False)
    if not pc.any(mine).as_py():
        return headers, at_us, delay_ms
    has = np.zeros(len(lists), np.bool_)
    has[rows[mine.to_numpy(zero_copy_only=False)]] = True
    columns = [column.to_pylist() for column in (at_us, delay_ms)]
    for row in np.flatnonzero(has).tolist():
        if columns[0][row] is columns[1][row] is None:
            columns[0][row], columns[1][row] = said_by((one["key"], one["value"]) for one in lists[row].as_py())
    left = pc.invert(mine)
    counts = np.bincount(rows[left.to_numpy(zero_copy_only=False)], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    nothing = pa.array((has & (counts == 0)) | lists.is_null().to_numpy(zero_copy_only=False))
    kept = pa.ListArray.from_arrays(offsets, flat.filter(left), type=lists.type, mask=nothing)
    at_us, delay_ms = (pa.chunked_array([pa.array(column, pa.int64())]) for column in columns)
    return pa.chunked_array([kept]), at_us, delay_ms


class DelayRule(NamedTuple):
    """How a topic delays. levels_ms: ascending; none where any delay is as it is asked; clamps: above the last level a
    delay is that level, else it is refused; by_call: a delay counts from the call, not from the message's timestamp.
    """

    slot_ms: int
    levels_ms: tuple[int, ...] = ()
    clamps: bool = False
    by_call: bool = False


EXACT = DelayRule(1000)


@dataclass(frozen=True)
class Wanted:
    """Per row, in microseconds: its timestamp, and when it is asked to be due, which differs by what its delay is
    counted from (NO_DUE, NEGATIVE).
    """

    timestamp_us: Numbers
    due_us: Numbers
    due_by_call_us: Numbers


@dataclass(frozen=True)
class Due:
    """ms: per row when it is due, NOT_DELAYED where it is not delayed; together: equal for rows that may be one run."""

    ms: Numbers
    together: Numbers

    @classmethod
    def of(cls, due_ms: Numbers, by_slot: bool) -> Due:
        return cls(due_ms, due_ms if by_slot else due_ms // HOUR_MS)


def due_of(rule: DelayRule, wanted: Wanted) -> Numbers:
    """Per row when it is due, in milliseconds: NOT_DELAYED, or one of BAD."""
    asked = wanted.due_by_call_us if rule.by_call else wanted.due_us
    waits = asked > UNREADABLE
    in_range = waits & (asked >= MIN_TIMESTAMP_US) & (asked <= MAX_TIMESTAMP_US)
    due_us = np.where(in_range, asked, 0)
    too_long = np.zeros(len(asked), np.bool_)
    if rule.levels_ms:
        delay_us = np.where(in_range, wanted.due_us - np.where(in_range, wanted.timestamp_us, 0), 0)
        levels_us = np.array(rule.levels_ms, np.int64) * 1000
        level = np.searchsorted(levels_us, delay_us)
        too_long = in_range & (level == len(levels_us))
        rounded = levels_us[np.minimum(level, len(levels_us) - 1)]
        # what is past due has no delay to be rounded
        due_us = np.where(delay_us > 0, due_us + rounded - delay_us, due_us)
    slot_us = rule.slot_ms * 1000
    due_us = -(-due_us // slot_us) * slot_us
    in_range &= due_us <= MAX_TIMESTAMP_US
    due_ms = np.where(in_range, due_us // 1000, _OUT_OF_RANGE)
    if not rule.clamps:
        due_ms = np.where(too_long, _TOO_LONG, due_ms)
    for said, bad in ((NEGATIVE, _NEGATIVE), (BOTH, _BOTH), (UNREADABLE, _UNREADABLE)):
        due_ms = np.where(asked == said, bad, due_ms)
    return np.where(asked == NO_DUE, NOT_DELAYED, due_ms)
