"""Read what happened in a namespace between two times, from the tables and the journal: for `lakemq report`.

The journal holds the decisions of the last `journal.retention.ms`; ownership and delayed messages have tables of their
own, which reach back further. All tables are read as of one step.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import query_table
from lakemq.engine.client.topics import TopicDescription
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import InvalidRequest
from lakemq.jobs.commands.shared.times import from_millis

_BUCKETS = 120
"""Number of points of a line: more would be closer together than a screen shows."""

_LONGEST_LATENCY_MS = 600_000
"""A message whose timestamp is older was not new when it was sent, so its age is no latency."""

_CLOCK_SLACK_MS = 1_000
"""How far a producer's clock may be ahead."""

_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which neither Python nor Arrow has dates."""

Numbers = npt.NDArray[np.float64]

APPENDED = """\
SELECT decided_at_ms, s.topic AS topic, s.kind AS kind, s.origin AS origin, s.record_count AS messages,
       s.max_timestamp_ms AS max_timestamp_ms
FROM (SELECT decided_at_ms, explode_outer(segments) AS s FROM journal WHERE decided_at_ms >= {since_ms}) j
WHERE s.kind IN ('data', 'commit', 'abort') ORDER BY decided_at_ms"""

STEPS = "SELECT DISTINCT step, decided_at_ms FROM journal WHERE decided_at_ms >= {since_ms} ORDER BY step"

CONSUMED = """\
SELECT decided_at_ms, kind, decision FROM journal
WHERE decided_at_ms >= {since_ms} AND kind IN ('offsets_committed', 'messages_settled', 'records_deleted')
ORDER BY step, position"""

LAG = "SELECT `group`, topic, partition, committed_offset, lag, deleted FROM consumer_lag"

LATENESS = """\
SELECT topic, messages, ended_at, late_ms FROM delayed_history
WHERE state = 'released' AND late_ms IS NOT NULL
  AND unix_millis(ended_at) >= {since_ms} AND unix_millis(ended_at) < {until_ms} ORDER BY ended_at"""

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
class Timeline:
    """The buckets of time that all series share. A bucket ends at `ends_ms`."""

    since_ms: int
    until_ms: int

    @property
    def bucket_ms(self) -> float:
        return (self.until_ms - self.since_ms) / _BUCKETS

    @property
    def ends_ms(self) -> Numbers:
        ends = self.since_ms + self.bucket_ms * np.arange(1, _BUCKETS + 1)
        return ends.astype(np.float64)

    def sum(self, at_ms: Any, values: Any) -> Numbers:
        """Return the sum of the values of each bucket. Values outside of the time are left out."""
        edges = self.since_ms + self.bucket_ms * np.arange(_BUCKETS + 1)
        sums, _ = np.histogram(np.asarray(at_ms, float), edges, weights=np.asarray(values, float))
        return sums.astype(np.float64)

    def per_second(self, at_ms: Any, values: Any) -> Numbers:
        """Return the sum of each bucket per second."""
        return self.sum(at_ms, values) * 1000 / self.bucket_ms


@dataclass(frozen=True)
class Latencies:
    """Per bucket: from a message's timestamp to the step that decided it, in ms. NaN: no message came."""

    median: Numbers
    p99: Numbers
    highest: float | None


@dataclass(frozen=True)
class History:
    """What happened between two times.

    Attributes:
        step: the tables were read as of this step.
        journal_since_ms: the time of the first decision that the journal still has; None: it has none of this time.
        appended: topic -> messages per second, per bucket.
        consumed: group -> offsets per second, per bucket.
        steps: steps per second, per bucket.
        lag: group -> its lag at the end of each bucket. NaN: not known so far back.
        lateness: rows of delayed messages: topic, messages, ended_at, late_ms.
        owners, handoffs: rows as in the views.
        changes: rows of the view admin_changes, the newest first.
    """

    timeline: Timeline
    step: int
    journal_since_ms: int | None
    message_count: int
    step_count: int
    appended: Mapping[str, Numbers]
    consumed: Mapping[str, Numbers]
    steps: Numbers
    latencies: Latencies
    lag: Mapping[str, Numbers]
    lateness: pa.Table
    owners: pa.Table
    handoffs: pa.Table
    changes: pa.Table

    def mean_rate(self, rates: Numbers) -> float:
        """Return the mean over the time that the journal has: before it, nothing is known."""
        began_ms = self.timeline.since_ms if self.journal_since_ms is None else self.journal_since_ms
        known = rates[self.timeline.ends_ms > began_ms]
        return float(known.mean()) if len(known) else 0.0

    @property
    def is_in_journal(self) -> bool:
        """Whether the journal reaches back to the beginning of the time, but for a bucket."""
        timeline, began_ms = self.timeline, self.journal_since_ms
        return began_ms is not None and began_ms <= timeline.since_ms + timeline.bucket_ms


def read_history(mq: Connection, since_ms: int, until_ms: int) -> History:
    """Read the history from since_ms to until_ms, exclusive, in ms since 1970. Raises InvalidRequest, MissingExtra."""
    if not 0 <= since_ms < until_ms <= _LAST_MS:
        raise InvalidRequest(
            "A history needs a beginning, and an end after it.",
            found=f"{since_ms} to {until_ms} ms",
            expected="times from 1970 to 9999",
        )
    timeline = Timeline(since_ms, until_ms)
    # One snapshot for all queries: by its step the tables could not be opened again once a merge has gone beyond it.
    snapshot = take_snapshot(mq.namespace.store)

    def ask(query: str) -> pa.Table:
        text = query.format(since_ms=since_ms, until_ms=until_ms)
        return query_table(mq.namespace, text, SqlDialect.spark, snapshot)

    appended, steps = ask(APPENDED), ask(STEPS)
    lags, queues = ask(LAG), {info.group for info in mq.groups.all(rates=False) if info.protocol == "queue"}
    consumption = list(read_consumption(ask(CONSUMED), mq.topics.list(), lags, queues))
    messages = appended.filter(pc.equal(appended["kind"], "data"))
    step_times_ms = steps["decided_at_ms"].to_numpy()
    return History(
        timeline=timeline,
        step=snapshot.watermark.step,
        journal_since_ms=int(step_times_ms[0]) if len(step_times_ms) else None,
        message_count=int(timeline.sum(messages["decided_at_ms"], messages["messages"]).sum()),
        step_count=int(timeline.sum(step_times_ms, np.ones(len(step_times_ms))).sum()),
        appended=_rates_by(timeline, messages, "topic"),
        consumed=_consumption_rates(timeline, consumption),
        steps=timeline.per_second(step_times_ms, np.ones(len(step_times_ms))),
        latencies=_latencies(timeline, messages),
        lag=compute_lag(timeline, lags, appended, consumption),
        lateness=ask(LATENESS),
        owners=ask(OWNERS),
        handoffs=ask(HANDOFFS),
        changes=ask(CHANGES),
    )


def _rates_by(timeline: Timeline, rows: pa.Table, column: str) -> dict[str, Numbers]:
    """Return name -> messages per second, the busiest first."""
    rates = {}
    for name in rows[column].unique().to_pylist():
        own = rows.filter(pc.equal(rows[column], name))
        rates[name] = timeline.per_second(own["decided_at_ms"], own["messages"])
    return dict(sorted(rates.items(), key=lambda item: -float(item[1].sum())))


def _latencies(timeline: Timeline, messages: pa.Table) -> Latencies:
    published = messages.filter(pc.equal(messages["origin"], "publish"))
    at_ms = published["decided_at_ms"].to_numpy().astype(float)
    ages_ms = at_ms - published["max_timestamp_ms"].to_numpy(zero_copy_only=False).astype(float)
    # A producer's clock may be ahead of the sequencer's time, so a message may seem to be younger than its step.
    ages_ms = np.where(ages_ms >= -_CLOCK_SLACK_MS, np.maximum(ages_ms, 0), ages_ms)
    is_new = (ages_ms >= 0) & (ages_ms <= _LONGEST_LATENCY_MS) & (at_ms < timeline.until_ms)
    at_ms, ages_ms = at_ms[is_new], ages_ms[is_new]
    buckets = np.searchsorted(timeline.ends_ms, at_ms, side="right")
    median, p99 = np.full(_BUCKETS, np.nan), np.full(_BUCKETS, np.nan)
    for bucket in np.unique(buckets[buckets < _BUCKETS]):
        median[bucket], p99[bucket] = np.percentile(ages_ms[buckets == bucket], [50, 99])
    return Latencies(median, p99, float(ages_ms.max()) if len(ages_ms) else None)


@dataclass(frozen=True)
class GroupConsumption:
    """Offsets that were left for a group, and are no longer.

    count: None if the journal does not say how many, as for a first commit. are_deleted: they were deleted before the
    group had consumed them.
    """

    at_ms: int
    group: str
    topic: str
    count: int | None
    are_deleted: bool = False


def read_consumption(
    decisions: pa.Table, topics: Sequence[TopicDescription], lags: pa.Table, queues: Container[str]
) -> Iterator[GroupConsumption]:
    """Yield what groups consumed, and what was deleted before they did, in the order of the journal.

    Args:
        decisions: commits, acknowledgements and deletions.
        topics: those that exist.
        lags: the present rows of the view consumer_lag.
        queues: the queue groups. How many of deleted messages they had acknowledged is not known.
    """
    rows = [(row["decided_at_ms"], row["kind"], json.loads(row["decision"])) for row in decisions.to_pylist()]
    # Those of a transaction are pending: its end commits or drops them, which is another decision.
    rows = [row for row in rows if row[2].get("transactional_id") is None]
    names = {topic.topic_id: topic.topic for topic in topics}
    committed, losers = dict[tuple[str, str, int], int | None](), defaultdict[tuple[str, int], list[str]](list)
    for row in lags.to_pylist():
        committed[row["group"], row["topic"], row["partition"]] = row["committed_offset"]
        if row["deleted"]:
            losers[row["topic"], row["partition"]].append(row["group"])
    starts: dict[tuple[str, int], int | None] = {
        (topic.topic, partition): start for topic in topics for partition, start in enumerate(topic.beginning_offsets)
    }
    # What changes in the journal was another before its first change, and only the rest was as it is now.
    for _, kind, decision in rows:
        if kind == "offsets_committed":
            committed |= {(decision["group"], topic, partition): None for topic, partition, *_ in decision["offsets"]}
        elif kind == "records_deleted":
            starts |= {(decision["topic"], int(partition)): None for partition in decision["log_starts"]}
    for at_ms, kind, decision in rows:
        if kind == "records_deleted" and decision["topic_id"] in names:
            topic = decision["topic"]
            for partition, start in ((int(partition), start) for partition, start in decision["log_starts"].items()):
                before, starts[topic, partition] = starts[topic, partition], start
                for group in losers[topic, partition]:
                    offset = None if group in queues else committed[group, topic, partition]
                    is_known = offset is not None and (before is not None or start <= offset)
                    count = max(offset, start) - max(offset, before or 0) if offset is not None and is_known else None
                    yield GroupConsumption(at_ms, group, topic, count, are_deleted=True)
        elif kind == "offsets_committed":
            for topic, partition, offset, *_ in decision["offsets"]:
                key, start = (decision["group"], topic, partition), starts.get((topic, partition)) or 0
                before, committed[key] = committed[key], offset
                count = None if before is None else max(offset, start) - max(before, start)
                yield GroupConsumption(at_ms, decision["group"], topic, count)
        elif kind == "messages_settled":
            for topic_id, _, state, ranges, *_ in decision["parts"]:
                if state == "acknowledged" and topic_id in names:
                    count = sum(record_count for _, record_count in ranges)
                    yield GroupConsumption(at_ms, decision["group"], names[topic_id], count)


def _consumption_rates(timeline: Timeline, consumption: list[GroupConsumption]) -> dict[str, Numbers]:
    by_group: dict[str, list[GroupConsumption]] = defaultdict(list)
    for part in consumption:
        if not part.are_deleted:
            by_group[part.group].append(part)
    return {
        group: timeline.per_second([part.at_ms for part in parts], [max(0, part.count or 0) for part in parts])
        for group, parts in sorted(by_group.items())
    }


def compute_lag(
    timeline: Timeline, lag_now: pa.Table, appended: pa.Table, consumption: list[GroupConsumption]
) -> dict[str, Numbers]:
    """Return group -> lag at the end of each bucket.

    The lag of now is known. Going back in time, each append since then takes from it, and each commit and each deletion
    adds to it. Before a first commit in the journal, and before a deletion of which the journal does not say how many
    messages the group had left, it is not known.

    Args:
        timeline: the buckets.
        lag_now: group, topic, lag as of the step of the tables.
        appended: decided_at_ms, topic, messages, also after the last bucket.
        consumption: what is no longer left for groups, also after the last bucket.
    """
    topics: dict[str, set[str]] = defaultdict(set)
    now: dict[str, int] = defaultdict(int)
    for row in lag_now.to_pylist():
        topics[row["group"]].add(row["topic"])
        now[row["group"]] += row["lag"]
    lags = {}
    for group, own_topics in sorted(topics.items()):
        rows = appended.filter(pc.is_in(appended["topic"], pa.array([*own_topics], pa.string())))
        parts = [part for part in consumption if part.group == group and part.topic in own_topics]
        appended_later = _sum_after(timeline, rows["decided_at_ms"].to_numpy(), rows["messages"].to_numpy())
        done_later = _sum_after(timeline, [part.at_ms for part in parts], [part.count or 0 for part in parts])
        lag = np.maximum(now[group] - appended_later + done_later, 0.0)
        unknown_until_ms = max((part.at_ms for part in parts if part.count is None), default=0)
        lags[group] = np.where(timeline.ends_ms < unknown_until_ms, np.nan, lag)
    return lags


def _sum_after(timeline: Timeline, at_ms: Any, values: Any) -> Numbers:
    """Return for each bucket the sum of the values after its end. at_ms: ascending."""
    times = np.asarray(at_ms, float)
    totals = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    return totals[-1] - totals[np.searchsorted(times, timeline.ends_ms, side="right")]


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
            "out_per_s": round(history.mean_rate(history.consumed[group]), 2) if group in history.consumed else None,
        }
        for group, lag in history.lag.items()
    ]


def list_owners_at_end(history: History) -> list[Row]:
    """Return who owned each partition at the end of the time."""
    end = from_millis(history.timeline.until_ms)
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
            "in_per_s": round(history.mean_rate(rates), 2),
            "in_per_s_at_most": round(float(rates.max()), 2),
        }
        for topic, rates in history.appended.items()
    ]


def list_handoffs(history: History) -> list[Row]:
    """Return the handoffs, newest first."""
    return [{name: row[name] for name in HANDOFF_COLUMNS} for row in history.handoffs.to_pylist()]


def list_changes(history: History) -> list[Row]:
    """Return who changed topics, groups, offsets and messages on request, newest first."""
    return [*history.changes.to_pylist()]


def list_tables(history: History) -> list[tuple[str, Sequence[str], list[Row]]]:
    """Return (name, columns, rows) of each table, in reading order."""
    return [
        ("groups", GROUPS, list_lags(history)),
        ("owners", OWNER_COLUMNS, list_owners_at_end(history)),
        ("topics", TOPICS, list_topic_rates(history)),
        ("handoffs", HANDOFF_COLUMNS, list_handoffs(history)),
        ("changes", CHANGE_COLUMNS, list_changes(history)),
    ]
