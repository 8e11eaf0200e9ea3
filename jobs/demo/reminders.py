"""The demo's sixth part: reminders of departures, as delayed messages on a clock that runs 100,000 times faster.

Of flights that were cancelled the reminders are cancelled, of those that left hours late they are rescheduled. Whoever
takes them begins late, so that the first have expired; some fail twice, become dead letters, and are sent back.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.errors import UnknownTopicOrPartition
from lakemq.jobs.demo.checks import Checked, CheckFailed, check

TOPIC, GROUP = "reminders", "app"
DEAD = f"{TOPIC}.dlq"
SPEED = 100_000
MOST_DAYS = 21
"""So many take some eighteen seconds."""
LATE_MINUTES, MOST_MOVED = 180, 100
FAILING = "BQN"
"""Reminders of flights to there fail until somebody has mended it."""
_BEGIN_S = 4
"""From publishing to the first departure: the cancelling is done by then."""
_TTL_MS = 1_500
"""Less than two days, by the clock of the flights."""
_OPENS_S = 2.0
"""After the first departure somebody takes reminders: the first of them have expired."""
_PATIENCE_S = 90
_DAY_MS = 86_400_000


@dataclass
class Reminded:
    """due_ms: of each reminder, by number; the others are numbers of reminders, or how many."""

    due_ms: npt.NDArray[np.int64]
    cancelled: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)
    failures: int = 0
    redriven: int = 0
    expired: int = 0
    dead: dict[str, int] = field(default_factory=dict)
    """What was in the dead-letter topic before anything was sent back, by reason."""

    @property
    def count(self) -> int:
        return len(self.due_ms)


def remind(mq: Connection, flights: pa.Table) -> Reminded:
    """Raises CheckFailed."""
    mq.topics.create(TOPIC, 4, config={"delay.slot.ms": 20, "retention.ms": -1})
    mq.groups.create(GROUP, {"group.protocol": "queue", "max.redelivery.count": 1})
    flights, due_ms = _due(flights)
    done = Reminded(due_ms)
    texts = [json.dumps([number, dest]) for number, dest in enumerate(flights.column("dest").to_pylist())]
    rows = pa.table({"key": flights.column("tailnum"), "value": texts, "deliver_at": due_ms})
    receipts = mq.publish(TOPIC, rows, ttl_ms=_TTL_MS).receipts()
    known = dict(zip(receipts.column("row").to_pylist(), receipts.column("receipt").to_pylist(), strict=True))
    _cancel(mq, flights, known, done)
    _reschedule(mq, flights, known, done)
    with mq.consumer(GROUP, topics=[TOPIC], auto_offset_reset="earliest") as consumer:
        assert isinstance(consumer, QueueConsumer)
        time.sleep(max(0.0, int(due_ms.min()) / 1000 + _OPENS_S - time.time()))
        _take(mq, consumer, done, fails=True)
        done.dead = {one.reason: one.messages for one in mq.dead_letters.counts(DEAD)}
        done.redriven = mq.dead_letters.redrive(DEAD, where="reason = 'given_up'").messages
        _take(mq, consumer, done, fails=False)
    return done


def _due(flights: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The flights of the first days, and when they leave, by the faster clock."""
    hours_ms = flights.column("time_hour").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    departs_ms = pc.add(hours_ms, pc.multiply(flights.column("minute"), 60_000)).to_numpy()
    first = departs_ms < departs_ms.min() + MOST_DAYS * _DAY_MS
    departs_ms = departs_ms[first]
    begin_ms = int((time.time() + _BEGIN_S) * 1000)
    return flights.filter(pa.array(first)), begin_ms + (departs_ms - departs_ms.min()) // SPEED


def _cancel(mq: Connection, flights: pa.Table, known: dict[int, str], done: Reminded) -> None:
    never = [n for n in np.flatnonzero(flights.column("dep_time").is_null().to_numpy()).tolist() if n in known]
    outcomes = mq.delayed.cancel_all([known[n] for n in never])
    done.cancelled = {n for n, outcome in zip(never, outcomes, strict=True) if outcome == "cancelled"}


def _reschedule(mq: Connection, flights: pa.Table, known: dict[int, str], done: Reminded) -> None:
    late = pc.fill_null(pc.greater(flights.column("dep_delay"), LATE_MINUTES), False).to_numpy()
    delays = flights.column("dep_delay").to_pylist()
    for number in islice((n for n in np.flatnonzero(late).tolist() if n in known), MOST_MOVED):
        at_ms = int(done.due_ms[number]) + delays[number] * 60_000 // SPEED + 1
        told = mq.delayed.reschedule(known[number], deliver_at=at_ms)
        if told.outcome == "rescheduled" and told.deliver_at_ms is not None:
            done.due_ms[number] = told.deliver_at_ms
            done.moved.add(number)


def _take(mq: Connection, consumer: QueueConsumer, done: Reminded, fails: bool) -> None:
    """Until each reminder was taken, has expired, was cancelled, or is a dead letter."""
    deadline_s, last_due_s = time.monotonic() + _PATIENCE_S, int(done.due_ms.max()) / 1000
    while (batch := consumer.poll(timeout_ms=100)) or time.time() < last_due_s or not _is_done(mq, done, fails):
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"Not all reminders were taken in {_PATIENCE_S} s.")
        for message in batch:
            number, dest = json.loads(message.value or b"")
            if fails and dest == FAILING:
                done.failures += 1
                consumer.nack(message, error="no gate is known yet")
            else:
                done.taken.append(number)
                consumer.ack(message)


def _is_done(mq: Connection, done: Reminded, fails: bool) -> bool:
    """fails: what was given up, and has come into the other topic, is done with for now."""
    known = mq.groups.describe(GROUP)
    done.expired = known.expired
    gone = len(done.cancelled) + len(set(done.taken)) + done.expired
    if not fails:
        return gone == done.count
    try:
        given_up = sum(one.messages for one in mq.dead_letters.counts(DEAD) if one.reason == "given_up")
    except UnknownTopicOrPartition:  # nothing has died yet
        given_up = 0
    return gone + given_up == done.count and known.lag == 0


# -- what must hold ---------------------------------------------------------------------------------------


def check_reminders(done: Reminded, releases: pa.Table) -> list[Checked]:
    """releases: number, released_at of each time that a reminder came into the topic when it was due."""
    late_ms = lateness_ms(done, releases)
    once = len(done.taken) == len(set(done.taken)) and done.cancelled.isdisjoint(done.taken)
    released = releases.column("number").to_pylist()
    return [
        check(
            "Every reminder is taken, has expired or was cancelled, and one of these only",
            once and len(done.taken) + done.expired + len(done.cancelled) == done.count,
            f"{done.count:,} = {len(done.taken):,} taken + {done.expired:,} expired + "
            f"{len(done.cancelled):,} cancelled",
        ),
        check(
            "No reminder comes early, and none that was cancelled",
            bool((late_ms >= 0).all()) and done.cancelled.isdisjoint(released) and len(released) == len(set(released)),
            f"late by {np.percentile(late_ms, 50):,.0f} ms (median), {np.percentile(late_ms, 99):,.0f} ms (99 %); "
            f"{len(done.moved)} came at another time than they were to",
        ),
        check(
            "What fails twice is a dead letter, and comes again when it is sent back",
            done.dead.get("given_up", 0) == done.redriven and 2 * done.redriven <= done.failures,
            f"{done.failures} failures, {done.redriven} sent back; "
            f"{done.dead.get('expired', 0):,} dead letters had expired",
        ),
    ]


def lateness_ms(done: Reminded, releases: pa.Table) -> npt.NDArray[np.int64]:
    """How long after it was due each came."""
    numbers, at = releases.column("number").to_numpy(), releases.column("released_at")
    late: npt.NDArray[np.int64] = at.cast(pa.timestamp("ms")).cast(pa.int64()).to_numpy() - done.due_ms[numbers]
    return late
