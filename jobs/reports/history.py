"""Read what happened in a namespace between two times, from its tables: for `lakemq report`.

Totals are in `samples`. Owners, handoffs and changes have tables of their own. All are read as of one step.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.operator_tools import Observer
from lakemq.engine.client.sequencers import find_store_now_ms
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import query_table
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import InvalidRequest
from lakemq.jobs.commands.shared.times import from_millis
from lakemq.jobs.reports.samples import Numbers, Samples, add_up, read_samples, sort_by_size
from lakemq.tables.specs.journal import SAMPLES

_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which neither Python nor Arrow has dates."""

_RECENT_MS = 60_000
"""A history that ends this short before the present ends with it."""

SAMPLED = """\
SELECT * FROM samples WHERE minute_ms >= {since_ms} AND minute_ms < {until_ms} ORDER BY topic, `group`, step"""

OWNERS = """\
SELECT `group`, topic, partition, state, owner, since, until, reason FROM assignment_history
WHERE unix_millis(since) < {until_ms} AND (until IS NULL OR unix_millis(until) >= {since_ms})
ORDER BY `group`, topic, partition, since"""

HANDOFFS = """\
SELECT `group`, topic, partition, from_member, to_member, began_at, took_ms, reason, redelivered FROM handoffs
WHERE unix_millis(began_at) >= {since_ms} AND unix_millis(began_at) < {until_ms} ORDER BY began_at DESC"""

CHANGES = """\
SELECT changed_at, kind, subject, client FROM admin_changes
WHERE unix_millis(changed_at) >= {since_ms} AND unix_millis(changed_at) < {until_ms}
ORDER BY step DESC, position DESC"""


@dataclass(frozen=True)
class History:
    """What happened between two times.

    Attributes:
        step: the tables were read as of this step.
        samples: rates, lag, steps and lateness over time.
        owners, handoffs: rows as in the views.
        changes: rows of the view admin_changes, the newest first.
    """

    since_ms: int
    until_ms: int
    step: int
    samples: Samples
    owners: pa.Table
    handoffs: pa.Table
    changes: pa.Table

    @property
    def message_count(self) -> int:
        return self.samples.count(self.samples.produced.values())

    @property
    def step_count(self) -> int:
        return self.samples.count([self.samples.steps])

    @property
    def produced(self) -> Mapping[str, Numbers]:
        """Topic -> offsets per second, the busiest first."""
        return sort_by_size(self.samples.produced)

    @property
    def consumed(self) -> Mapping[str, Numbers]:
        """Group -> offsets per second, the busiest first."""
        return add_up(self.samples.consumed, by=1)

    @property
    def lag(self) -> Mapping[str, Numbers]:
        """Group -> lag at the end of each interval, the largest first."""
        return add_up(self.samples.lag, by=1)

    def mean_rate(self, rates: Numbers) -> float:
        """Return how many there were per second."""
        return round(float(np.nansum(rates * self.samples.seconds) / self.samples.seconds.sum()), 2)


def read_history(mq: Connection, since_ms: int, until_ms: int, observer: Observer | None = None) -> History:
    """Read the history from since_ms to until_ms, exclusive, in ms since 1970. Raises InvalidRequest, MissingExtra.

    observer: of the namespace, if there is one.
    """
    if not 0 <= since_ms < until_ms <= _LAST_MS:
        raise InvalidRequest(
            "A history needs a beginning, and an end after it.",
            found=f"{since_ms} to {until_ms} ms",
            expected="times from 1970 to 9999",
        )
    # One snapshot for all queries: by its step the tables could not be opened again once a merge has gone beyond it.
    snapshot = take_snapshot(mq.namespace.store)
    is_present = until_ms > find_store_now_ms(mq.namespace.files) - _RECENT_MS
    with (observer or mq.observer()).look() if is_present else nullcontext() as now:
        samples = read_samples(snapshot.handles[SAMPLES.name], since_ms, until_ms, now=now)

    def ask(query: str) -> pa.Table:
        text = query.format(since_ms=since_ms, until_ms=until_ms)
        return query_table(mq.namespace, text, SqlDialect.spark, snapshot)

    step = snapshot.watermark.step
    return History(since_ms, until_ms, step, samples, ask(OWNERS), ask(HANDOFFS), ask(CHANGES))


# The history of a namespace as rows, for terminals and for the console.


Row = Mapping[str, Any]

GROUPS = ("group", "lag_at_end", "lag_at_start", "out_per_s")
OWNER_COLUMNS = ("group", "topic", "partition", "state", "owner", "since")
TOPICS = ("topic", "in_per_s", "in_per_s_at_most")
HANDOFF_COLUMNS = ("group", "topic", "partition", "from_member", "to_member", "began_at", "took_ms", "reason")

CHANGE_COLUMNS = ("changed_at", "kind", "subject", "client")


def list_lags(history: History) -> list[Row]:
    """Return the lag of each group at both ends of the time, and its mean rate. None: not known so far back."""
    return [
        {
            "group": group,
            "lag_at_end": None if math.isnan(lag[-1]) else int(lag[-1]),
            "lag_at_start": None if math.isnan(lag[0]) else int(lag[0]),
            "out_per_s": history.mean_rate(history.consumed[group]),
        }
        for group, lag in history.lag.items()
    ]


def list_owners_at_end(history: History) -> list[Row]:
    """Return who owned each partition at the end of the time."""
    end = from_millis(history.until_ms)
    assert end is not None
    return [
        {name: row[name] for name in OWNER_COLUMNS}
        for row in history.owners.to_pylist()
        if row["until"] is None or row["until"] >= end
    ]


def list_topic_rates(history: History) -> list[Row]:
    """Return the messages per second that came into each topic: their mean, and the most."""
    return [
        {
            "topic": topic,
            "in_per_s": history.mean_rate(rates),
            "in_per_s_at_most": round(float(np.nanmax(rates)), 2),
        }
        for topic, rates in history.produced.items()
        if np.nansum(rates)
    ]


def list_tables(history: History) -> list[tuple[str, Sequence[str], list[Row]]]:
    """Return (name, columns, rows) of each table, in reading order."""
    return [
        ("groups", GROUPS, list_lags(history)),
        ("owners", OWNER_COLUMNS, list_owners_at_end(history)),
        ("topics", TOPICS, list_topic_rates(history)),
        ("handoffs", HANDOFF_COLUMNS, history.handoffs.select(HANDOFF_COLUMNS).to_pylist()),
        ("changes", CHANGE_COLUMNS, history.changes.to_pylist()),
    ]
