"""Due times of delayed rows: computed once, when rows are sent, as absolute times that are rounded up.

Runs on Spark executors too: pyarrow and numpy only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import DUE_LIKE_SECONDS_US, HOUR_MS, MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, NOT_DELAYED

Numbers = npt.NDArray[np.int64]

NO_DUE = -(2**63)
"""Due time of a row without a delay."""
NEGATIVE = NO_DUE + 1
"""Due time of a row with a negative delay."""
BOTH = NO_DUE + 2
"""Due time of a row with both a delivery time and a delay."""
TWO_TIMES = "A message cannot have both deliver_at and delay_ms."
UNREADABLE = NO_DUE + 3
"""Due time of a row whose delay header is not a number."""

DELAY_HEADERS = ("DELIVER_AT", "DELAY_MS")
"""Headers with the delivery time or delay in decimal milliseconds, if no column has it. They are removed from the
message, so that a message that is forwarded is not delayed again.
"""

MOST_DELAY_MS = MAX_TIMESTAMP_US // 1000 + 1
"""A delay with which every row is due after year 9999."""
FAR_MS = 2 * MOST_DELAY_MS
"""A time after all allowed due times."""

BAD = _OUT_OF_RANGE, _NEGATIVE, _TOO_LONG, _BOTH, _UNREADABLE, _IN_SECONDS = (-2, -3, -4, -5, -6, -7)
"""Due times (ms) of rejected rows, in the order of the rejections in `placing`."""

_DIGITS = re.compile(rb"[0-9]{1,18}")


def delay_from_headers(headers: Iterable[tuple[str | None, bytes | None]]) -> tuple[int | None, int | None]:
    """Return the delivery time (us) and the delay (ms) from DELAY_HEADERS. The first header of a name counts."""
    values: dict[str | None, bytes | None] = {}
    for name, value in headers:
        if name in DELAY_HEADERS:
            values.setdefault(name, value)
    numbers = [None if name not in values else values[name] or b"" for name in DELAY_HEADERS]
    if any(number is not None and not _DIGITS.fullmatch(number) for number in numbers):
        return UNREADABLE, None
    at_ms, delay_ms = (None if number is None else int(number) for number in numbers)
    return None if at_ms is None else 1000 * min(at_ms, FAR_MS), delay_ms


def move_delay_headers(
    headers: pa.ChunkedArray, at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """Move DELAY_HEADERS into the columns where both columns are null, and return headers without them."""
    if headers.null_count == len(headers):
        return headers, at_us, delay_ms
    lists = pa.concat_arrays(headers.chunks)
    flat, rows = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    is_delay_header = pc.fill_null(pc.is_in(pc.struct_field(flat, "key"), pa.array(DELAY_HEADERS)), False)
    if not pc.any(is_delay_header).as_py():
        return headers, at_us, delay_ms
    has = np.zeros(len(lists), np.bool_)
    has[rows[is_delay_header.to_numpy(zero_copy_only=False)]] = True
    columns = [column.to_pylist() for column in (at_us, delay_ms)]
    for row in np.flatnonzero(has).tolist():
        if columns[0][row] is columns[1][row] is None:
            columns[0][row], columns[1][row] = delay_from_headers(
                (header["key"], header["value"]) for header in lists[row].as_py()
            )
    is_other = pc.invert(is_delay_header)
    counts = np.bincount(rows[is_other.to_numpy(zero_copy_only=False)], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    nothing = pa.array((has & (counts == 0)) | lists.is_null().to_numpy(zero_copy_only=False))
    other_headers = pa.ListArray.from_arrays(offsets, flat.filter(is_other), type=lists.type, mask=nothing)
    at_us, delay_ms = (pa.chunked_array([pa.array(column, pa.int64())]) for column in columns)
    return pa.chunked_array([other_headers]), at_us, delay_ms


class DelayRule(NamedTuple):
    """The delay settings of a topic.

    slot_ms: due times are rounded up to multiples of it. levels_ms: allowed delays, ascending; empty: any delay.
    clamps: a delay above the last level becomes that level; otherwise it is refused.
    """

    slot_ms: int
    levels_ms: tuple[int, ...] = ()
    clamps: bool = False


EXACT = DelayRule(1000)


@dataclass(frozen=True)
class RequestedDelays:
    """The time of the call and, per row, the requested due time, in microseconds.

    A due time may be one of the special values NO_DUE, NEGATIVE, BOTH and UNREADABLE.
    """

    now_us: int
    due_us: Numbers

    def slice(self, first: int, count: int) -> RequestedDelays:
        """Return the delays of these rows."""
        return RequestedDelays(self.now_us, self.due_us[first : first + count])


def request_delays(at_us: Numbers, delay_ms: Numbers, now_us: int) -> RequestedDelays | None:
    """Return the requested due times of rows; None if no row is delayed.

    Args:
        at_us: the requested time of delivery, NO_DUE without one.
        delay_ms: the requested delay, NO_DUE without one; negative ones are -1.
        now_us: time of the call. A delay starts there, not at the timestamp.
    """
    has_at, has_delay = at_us != NO_DUE, delay_ms != NO_DUE
    if not has_at.any() and not has_delay.any():
        return None
    # a delay beyond year 9999 is cut, so that the sum fits 64 bits; the row is rejected as out of range
    delay_us = 1000 * np.clip(delay_ms, 0, MOST_DELAY_MS)
    by_delay = np.where(delay_ms < 0, NEGATIVE, now_us + delay_us)
    return RequestedDelays(now_us, np.where(has_delay, np.where(has_at, BOTH, by_delay), at_us))


@dataclass(frozen=True)
class DueTimes:
    """ms: due time per row, or NOT_DELAYED. together: equal for rows that may share a run."""

    ms: Numbers
    together: Numbers

    @classmethod
    def of(cls, due_ms: Numbers, by_slot: bool) -> DueTimes:
        return cls(due_ms, due_ms if by_slot else due_ms // HOUR_MS)


def compute_due_ms(rule: DelayRule, delays: RequestedDelays) -> Numbers:
    """Return due times per row in milliseconds: NOT_DELAYED without a delay, one of BAD for a rejected row."""
    requested = delays.due_us
    waits = requested > UNREADABLE
    in_range = waits & (requested >= MIN_TIMESTAMP_US) & (requested <= MAX_TIMESTAMP_US)
    due_us = np.where(in_range, requested, 0)
    too_long = np.zeros(len(requested), np.bool_)
    if rule.levels_ms:
        delay_us = np.where(in_range, due_us - delays.now_us, 0)
        levels_us = np.array(rule.levels_ms, np.int64) * 1000
        level = np.searchsorted(levels_us, delay_us)
        too_long = in_range & (level == len(levels_us))
        rounded = levels_us[np.minimum(level, len(levels_us) - 1)]
        # rows that are due already have no delay to round
        due_us = np.where(delay_us > 0, due_us + rounded - delay_us, due_us)
    slot_us = rule.slot_ms * 1000
    due_us = -(-due_us // slot_us) * slot_us
    in_range &= due_us <= MAX_TIMESTAMP_US
    due_ms = np.where(in_range, due_us // 1000, _OUT_OF_RANGE)
    if not rule.clamps:
        due_ms = np.where(too_long, _TOO_LONG, due_ms)
    is_like_seconds = (requested >= DUE_LIKE_SECONDS_US.start) & (requested < DUE_LIKE_SECONDS_US.stop)
    due_ms = np.where(is_like_seconds, _IN_SECONDS, due_ms)
    for request, bad in ((NEGATIVE, _NEGATIVE), (BOTH, _BOTH), (UNREADABLE, _UNREADABLE)):
        due_ms = np.where(requested == request, bad, due_ms)
    return np.where(requested == NO_DUE, NOT_DELAYED, due_ms)
