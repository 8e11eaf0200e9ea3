"""When delayed rows are due: absolute once, when they are sent, and rounded up, never down.

Runs on Spark executors too: pyarrow and numpy only.
"""

from __future__ import annotations

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

MOST_DELAY_MS = MAX_TIMESTAMP_US // 1000 + 1
"""With which what is due after 1970 is due after 9999."""
FAR_MS = 2 * MOST_DELAY_MS
"""After all times that a row may be due at."""

BAD = _OUT_OF_RANGE, _NEGATIVE, _TOO_LONG = (-2, -3, -4)
"""Instead of when a row is due: that it cannot be, as `placing` refuses it."""


def due_since(at_us: pa.ChunkedArray, delay_ms: pa.ChunkedArray, since_us: Any) -> pa.ChunkedArray:
    """In microseconds when rows are asked to be due, null where they are not delayed.

    at_us, delay_ms: of a row one of them at most; since_us: what its delay is counted from, a column or a number.
    """
    # more than there are years up to 9999: it is refused as what is due then is
    delay_us = pc.multiply(pc.min_element_wise(delay_ms, MOST_DELAY_MS, skip_nulls=False), 1000)
    by_delay = pc.if_else(pc.less(delay_ms, 0), pa.scalar(NEGATIVE), pc.add(since_us, delay_us))
    return pc.coalesce(at_us, by_delay)


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
    waits = (asked != NO_DUE) & (asked != NEGATIVE)
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
    due_ms = np.where(asked == NEGATIVE, _NEGATIVE, due_ms)
    return np.where(asked == NO_DUE, NOT_DELAYED, due_ms)
