"""Reminders of departures are delayed messages, on a clock that runs 100,000 times faster than the flights' own.

Where a flight was cancelled, its reminder is cancelled. Where it left hours late, its reminder is rescheduled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer

from .checks import Check, CheckFailed, check

TOPIC, GROUP = "reminders", "app"
SPEED = 100_000
DAYS = 10
"""So many take nine seconds."""
LATE_MINUTES, MOST_MOVED = 180, 50
_BEGIN_S = 4
"""From publishing to the first departure: time to cancel and to reschedule."""
_PATIENCE_S = 240
_DAY_MS = 86_400_000


@dataclass
class Reminders:
    """due_ms: when each reminder is due, by its number; the sets and the list hold numbers of reminders."""

    due_ms: npt.NDArray[np.int64]
    cancelled: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)


def send_reminders(mq: Connection, flights: pa.Table) -> Reminders:
    """Publish the reminders of the first days, change some, and take them as they come. Raises CheckFailed."""
    mq.topics.create(TOPIC, 4, config={"delay.slot.ms": 20, "retention.ms": -1})
    flights, due_ms = _first_days(flights)
    numbers = [str(number) for number in range(flights.num_rows)]
    rows = pa.table({"key": flights.column("tailnum"), "value": numbers, "deliver_at": due_ms})
    published = mq.publish(TOPIC, rows).receipts()
    receipts = dict(zip(published.column("row").to_pylist(), published.column("receipt").to_pylist(), strict=True))
    reminders = Reminders(due_ms)
    never_left = _find(flights.column("dep_time").is_null(), receipts)
    outcomes = mq.delayed.cancel_all([receipts[number] for number in never_left])
    reminders.cancelled = {n for n, outcome in zip(never_left, outcomes, strict=True) if outcome == "cancelled"}
    delays = flights.column("dep_delay")
    for number in _find(pc.greater(delays, LATE_MINUTES), receipts)[:MOST_MOVED]:
        later_ms = int(due_ms[number]) + delays[number].as_py() * 60_000 // SPEED + 1
        # on a slow machine the time may be past
        delay_ms = max(0, later_ms - time.time_ns() // 1_000_000)
        moved = mq.delayed.reschedule(receipts[number], delay_ms=delay_ms)
        if moved.outcome == "rescheduled" and moved.deliver_at_ms is not None:
            due_ms[number] = moved.deliver_at_ms
            reminders.moved.add(number)
    with mq.consumer(GROUP, topics=[TOPIC], protocol="queue", auto_offset_reset="earliest") as consumer:
        _take(consumer, reminders)
    return reminders


def _first_days(flights: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the flights of the first days, and when they leave by the faster clock, in milliseconds since 1970."""
    hours_ms = flights.column("time_hour").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    departs_ms = pc.add(hours_ms, pc.multiply(flights.column("minute"), 60_000)).to_numpy()
    since_ms = departs_ms - departs_ms.min()
    is_early = since_ms < DAYS * _DAY_MS
    begin_ms = int((time.time() + _BEGIN_S) * 1000)
    return flights.filter(pa.array(is_early)), begin_ms + since_ms[is_early] // SPEED


def _find(is_chosen: pa.ChunkedArray, receipts: dict[int, str]) -> list[int]:
    """Return the numbers of the chosen flights whose reminders have receipts."""
    chosen = pc.fill_null(is_chosen, False).to_pylist()
    return [number for number, is_it in enumerate(chosen) if is_it and number in receipts]


def _take(consumer: QueueConsumer, reminders: Reminders) -> None:
    """Take reminders until all have come that were not cancelled, and for a moment longer."""
    deadline_s, expected_count = time.monotonic() + _PATIENCE_S, len(reminders.due_ms) - len(reminders.cancelled)
    while (batch := consumer.poll(5_000, timeout_ms=300)) or len(reminders.taken) < expected_count:
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"{len(reminders.taken)} of {expected_count} reminders came in {_PATIENCE_S} s.")
        reminders.taken += [int(message.value or b"-1") for message in batch]
        consumer.ack(batch)


def check_reminders(reminders: Reminders, releases: pa.Table) -> list[Check]:
    """Check that reminders came when they were due. releases: number and released_at, for each that SQL found."""
    late_ms = lateness_ms(reminders, releases)
    released, taken = releases.column("number").to_pylist(), sorted(reminders.taken)
    expected = sorted(set(range(len(reminders.due_ms))) - reminders.cancelled)
    return [
        check(
            "Every reminder is taken once, or was cancelled",
            taken == expected,
            f"{len(taken):,} taken, {len(reminders.cancelled):,} cancelled, {len(reminders.moved)} rescheduled",
        ),
        check(
            "No reminder comes early, and none that was cancelled",
            bool((late_ms >= 0).all()) and sorted(released) == sorted(set(released) - reminders.cancelled),
            f"late by {np.percentile(late_ms, 50):,.0f} ms (median), {np.percentile(late_ms, 99):,.0f} ms (99 %)",
        ),
    ]


def lateness_ms(reminders: Reminders, releases: pa.Table) -> npt.NDArray[np.int64]:
    """Return for each release how many milliseconds after its time it came."""
    released_ms = releases.column("released_at").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
    late_ms: npt.NDArray[np.int64] = released_ms - reminders.due_ms[releases.column("number").to_numpy()]
    return late_ms
