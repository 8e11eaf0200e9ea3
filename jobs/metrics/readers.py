"""Metrics of the sequencer, of the objects of a namespace, and of its disk.

Of the sequencer: who leads and who stands by, how fast it steps, what waits for it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lakemq.engine.client.delayed_rows import UnreleasedCounter
from lakemq.engine.client.groups.group_info import GROUP_STATES, PARTITION_STATES
from lakemq.engine.client.sequencers import find_store_now_ms, read_leadership
from lakemq.engine.maintenance.final_files import measure_final_lag_ms
from lakemq.engine.maintenance.final_table import count_missing_files
from lakemq.engine.maintenance.retention import measure_sizes, read_live_state
from lakemq.engine.namespace.extras import needs
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.sequencer.step_decider import BOUNDS_S
from lakemq.jobs.doctor.namespace import read_free_space
from lakemq.jobs.status import MINUTES
from lakemq.tables.specs.messages import REJECTED_ROWS
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.coordination.mailbox import LETTERS

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.operator_tools import Observation, Observer
    from lakemq.engine.sequencer.serving import Serving


with needs("metrics"):
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
        StateSetMetricFamily,
    )


# Build metric families: bounded in their number of series, with units in their names.


MAX_SERIES = 10_000
"""The most series of one metric. A scrape of more costs Prometheus and this process more than the detail is worth."""

MOST_LETTERS = 10_000
"""How many waiting letters are counted at most: a listing of more takes too long for a scrape."""

METRICS = {
    "lakemq_steps_total": "Steps that were decided since the namespace exists.",
    "lakemq_last_step_timestamp_seconds": "When the last step was put, by the store's clock.",
    "lakemq_last_step_age_seconds": "Time since the last step, by the store's clock.",
    "lakemq_sequencer_present": "1 if a sequencer leads and its process is not known to be dead.",
    "lakemq_leader_epoch": "Epoch of the lease. It grows with each take-over.",
    "lakemq_lease_seconds": "How long a standby waits without a step before it takes over.",
    "lakemq_standby_present{sequencer}": "1 for each sequencer that `lakemq serve` has standing by.",
    "lakemq_letters_waiting": f"Letters that wait for the sequencer, counted up to {MOST_LETTERS}.",
    "lakemq_oldest_letter_age_seconds": "Age of the oldest waiting letter.",
    "lakemq_projected_step": "Step up to which all tables are complete.",
    "lakemq_projection_lag_steps": "Steps that the tables do not hold yet, up to the last one that changed more"
    " than the lease.",
    "lakemq_projection_age_seconds": "Age of the oldest step that changed more than the lease and that the tables"
    " do not hold; 0 without one.",
    "lakemq_compaction_lag_seconds": "How long a topic has waited for its compaction to be done; 0 if none waits,"
    " or this process does not lead.",
    "lakemq_sequencer_leads{sequencer}": "1 if the sequencer of this process leads, 0 if it stands by.",
    "lakemq_letters_decided_total": "Letters that this process has decided.",
    "lakemq_topics": "Topics that exist.",
    "lakemq_partition_end_offset{topic,partition}": "Offset that the next message of the partition gets.",
    "lakemq_partition_log_start_offset{topic,partition}": "First offset that is not deleted.",
    "lakemq_partition_last_stable_offset{topic,partition}": "Where read_committed stops.",
    "lakemq_topic_appended_messages_total{topic}": "Offsets that were given out: messages, and markers of"
    " transactions.",
    "lakemq_topic_messages{topic}": "Offsets that are not deleted: messages, and markers of transactions.",
    "lakemq_group_lag{group,topic,partition}": "Offsets that the group has not consumed, also those after an open"
    " transaction.",
    "lakemq_group_deleted_offsets_total{group,topic,partition}": "Offsets that retention, or a request, deleted"
    " before the group had consumed them.",
    "lakemq_group_unacknowledged_messages{group,topic,partition}": "Messages that the owner of the partition, in a"
    " queue group, has and has not acknowledged.",
    "lakemq_group_members{group}": "Members of the group.",
    "lakemq_group_waits{group,cause,overdue}": "Things that hold the group up, as `waits_for` of `groups describe`"
    " names them; missing without one.",
    "lakemq_group_partitions{group,state}": "Partitions that members of the group share, by state.",
    "lakemq_transactions_open": "Open transactions.",
    "lakemq_oldest_open_transaction_age_seconds": "Age of the oldest open transaction; 0 without one.",
    "lakemq_open_transaction_timeout_share": "The largest share of its own timeout that an open transaction has"
    " used; 0 without one.",
    "lakemq_delayed_messages{topic}": "Messages that wait for their time.",
    "lakemq_delayed_overdue_messages": "Delayed messages that are due and not released yet.",
    "lakemq_delayed_lateness_seconds": "How long the oldest overdue message has been due; 0 if none is overdue.",
    "lakemq_delayed_due_messages{within_seconds}": "Delayed messages that are due within so many seconds, or overdue.",
    "lakemq_dead_letters{topic,group,reason,source_topic}": "Dead letters that were neither sent back nor purged.",
    "lakemq_rejected_rows{source,error}": "Rows that were rejected within the last hour, because they could not"
    " become messages.",
    "lakemq_final_lag_seconds": "For how long messages could have been final and are not.",
    "lakemq_final_files_missing": "Files that final_messages lacks while later ones are read.",
    "lakemq_topic_size_bytes{topic}": "Bytes of the topic's messages in data files. Messages of the last second may"
    " be missing.",
    "lakemq_store_size_bytes": "Bytes of the disk that are taken or free; missing for an object store.",
    "lakemq_store_free_bytes": "Free bytes of the disk; missing for an object store.",
    "lakemq_scrape_failed{part}": "1 if this part of the metrics could not be read; the log of the process says why.",
    "lakemq_scrape_dropped_series{metric}": "Series of a metric that are left out, because there are too many.",
    "lakemq_scrape_duration_seconds": "How long reading took.",
}
"""Metric, with its labels, -> what it says. Those that end in `_total` only grow."""

_DECLARED = {
    name: (meaning, labels.split(",") if labels else [])
    for key, meaning in METRICS.items()
    for name, _, labels in [key.rstrip("}").partition("{")]
}

Row = tuple[Sequence[object], float]
"""The values of the labels, and the value."""

_UNITS = ("seconds", "bytes")


class FamilyBuilder:
    """Makes families, and counts the series that it left out because a metric has too many.

    Attributes:
        dropped: metric -> number of series that were left out.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self.dropped: dict[str, int] = {}

    def make(self, name: str, values: float | Iterable[Row]) -> Metric:
        """Return a metric of `METRICS`: with its value, or with a row for each series."""
        rows = [((), values)] if isinstance(values, int | float) else values
        meaning, labels = _DECLARED[name]
        family: GaugeMetricFamily | CounterMetricFamily = (
            CounterMetricFamily(name, meaning, labels=labels)
            if name.endswith("_total")
            else GaugeMetricFamily(name, meaning, labels=labels, unit=_find_unit(name))
        )
        for number, (texts, value) in enumerate(rows):
            if number >= self._max_series:
                self._drop(name, 1)
                continue
            family.add_metric([str(text) for text in texts], value)
        return family

    def states(
        self, name: str, meaning: str, label: str, states: Sequence[str], rows: Iterable[tuple[str, str]]
    ) -> Metric:
        """Return a metric with one series per object and state, which is 1 for the state that the object has."""
        family = StateSetMetricFamily(name, meaning, labels=[label])
        for number, (subject, state) in enumerate(rows):
            if number * len(states) >= self._max_series:
                self._drop(name, len(states))
                continue
            family.add_metric([subject], {known_state: known_state == state for known_state in states})
        return family

    def _drop(self, name: str, count: int) -> None:
        self.dropped[name] = self.dropped.get(name, 0) + count


def _find_unit(name: str) -> str:
    """Return the unit that OpenMetrics must know: the end of the name."""
    return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")


# Metrics of the sequencer: who leads and who stands by, how fast it steps, what waits for it.


def read_sequencer(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield who leads and who stands by, and how old the last step is."""
    leadership = read_leadership(mq.namespace.files, observation.state)
    is_led = bool(leadership.leader) and not leadership.has_died
    yield build.make("lakemq_steps_total", leadership.step)
    yield build.make("lakemq_last_step_timestamp_seconds", leadership.put_ms / 1000)
    yield build.make("lakemq_last_step_age_seconds", leadership.silent_ms / 1000)
    yield build.make("lakemq_sequencer_present", is_led)
    yield InfoMetricFamily(
        "lakemq_leader", "The sequencer that leads; empty if none does.", value={"sequencer": leadership.leader}
    )
    yield build.make("lakemq_leader_epoch", leadership.epoch)
    yield build.make("lakemq_lease_seconds", leadership.lease_ms / 1000)
    yield build.make("lakemq_standby_present", (((name,), 1) for name in leadership.standbys))


def read_waiting(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the letters that wait, and how far the tables are behind the steps."""
    letters = mq.namespace.mailbox.list_waiting(MOST_LETTERS)
    put_ms = mq.namespace.files.modified_ms(f"{LETTERS}/{letters[0].name}") if letters else None
    age_ms = 0 if put_ms is None else max(0, find_store_now_ms(mq.namespace.files) - put_ms)
    watermark = read_watermark(mq.namespace.store)
    waiting = {step: time_ms for step, time_ms in observation.decided_ms.items() if step > watermark.step}
    behind = max(waiting, default=watermark.step) - watermark.step
    projection_age_ms = find_store_now_ms(mq.namespace.files) - min(waiting.values()) if waiting else 0
    yield build.make("lakemq_letters_waiting", len(letters))
    yield build.make("lakemq_oldest_letter_age_seconds", age_ms / 1000)
    yield build.make("lakemq_projected_step", watermark.step)
    yield build.make("lakemq_projection_lag_steps", behind)
    yield build.make("lakemq_projection_age_seconds", max(0, projection_age_ms) / 1000)


def read_serving(mq: Connection, serving: Serving, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield what only the serving process itself knows: whether it leads, and how long its work takes."""
    sequencer = serving.sequencer
    since_ms = sequencer.compaction_due_since_ms
    yield build.make(
        "lakemq_compaction_lag_seconds",
        0 if since_ms is None else max(0, find_store_now_ms(mq.namespace.files) - since_ms) / 1000,
    )
    yield build.make("lakemq_sequencer_leads", [((sequencer.name,), sequencer.leads)])
    durations = serving.durations.read()
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, itertools.accumulate(durations.counts)), strict=True))
    yield HistogramMetricFamily(
        "lakemq_step_duration_seconds",
        "Duration of the steps of this process, from taking letters to sending answers.",
        buckets=buckets,
        sum_value=durations.sum_s,
        unit="seconds",
    )
    yield build.make("lakemq_letters_decided_total", durations.letters)


# Metrics of topics, groups, transactions and delayed messages.


DUE_WITHIN_S = tuple(60 * minutes for minutes in MINUTES)
"""Windows in which delayed messages are counted."""


def read_topics(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the extent of each log, as `topics describe` shows it."""
    topics = sorted(observation.state.topics.values(), key=lambda topic: topic.topic)
    yield build.make("lakemq_topics", len(topics))
    for name, field in (
        ("end", "high_watermarks"),
        ("log_start", "log_starts"),
        ("last_stable", "last_stable_offsets"),
    ):
        offsets = ((t.topic, p, at) for t in topics for p, at in enumerate(getattr(t, field).tolist()))
        yield build.make(f"lakemq_partition_{name}_offset", (((topic, p), at) for topic, p, at in offsets))
    yield build.make(
        "lakemq_topic_appended_messages_total", (((topic.topic,), int(topic.high_watermarks.sum())) for topic in topics)
    )
    yield build.make(
        "lakemq_topic_messages",
        (((topic.topic,), int((topic.high_watermarks - topic.log_starts).sum())) for topic in topics),
    )


def read_groups(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield lag, members and states of groups, as `groups lag` and `groups describe` show them."""
    infos = observation.groups.all(rates=False)
    now_ms = find_store_now_ms(mq.namespace.files) if any(info.stalls for info in infos) else 0
    lags = [lag for info in infos for lag in observation.groups.lag(info.group)]
    queues = {info.group for info in infos if info.protocol == "queue"}
    yield build.make("lakemq_group_lag", (((lag.group, lag.topic, lag.partition), lag.lag) for lag in lags))
    yield build.make(
        "lakemq_group_deleted_offsets_total", (((lag.group, lag.topic, lag.partition), lag.deleted) for lag in lags)
    )
    yield build.make(
        "lakemq_group_unacknowledged_messages",
        (((lag.group, lag.topic, lag.partition), lag.unacknowledged) for lag in lags if lag.group in queues),
    )
    yield build.make("lakemq_group_members", (((info.group,), info.members) for info in infos))
    yield build.states(
        "lakemq_group_state", "State of the group.", "group", GROUP_STATES, ((info.group, info.state) for info in infos)
    )
    yield build.make(
        "lakemq_group_waits",
        (
            ((info.group, cause, "yes" if is_overdue else "no"), count)
            for info in infos
            for (cause, is_overdue), count in Counter((s.kind, s.is_overdue(now_ms)) for s in info.stalls).items()
        ),
    )
    yield _count_partition_states(observation, build)


def _count_partition_states(observation: Observation, build: FamilyBuilder) -> Metric:
    rows = []
    for name in sorted(observation.state.groups):
        counts = Counter(assignment.state for assignment in observation.groups.assignments(name))
        rows += [((name, state), float(counts[state])) for state in PARTITION_STATES]
    return build.make("lakemq_group_partitions", rows)


def read_transactions(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many transactions are open, the age of the oldest one, and how much of its timeout one has used."""
    infos = observation.transactions.all(("Ongoing",))
    ages_ms = [info.open_ms or 0 for info in infos]
    yield build.make("lakemq_transactions_open", len(ages_ms))
    yield build.make("lakemq_oldest_open_transaction_age_seconds", max(ages_ms, default=0) / 1000)
    yield build.make(
        "lakemq_open_transaction_timeout_share",
        max((age_ms / max(1, info.timeout_ms) for age_ms, info in zip(ages_ms, infos, strict=True)), default=0),
    )


def read_delayed(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many messages wait for their time."""
    yield build.make("lakemq_delayed_messages", (((info.topic,), info.messages) for info in observation.delayed.all()))


def read_due(counter: UnreleasedCounter, mq: Connection, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many delayed messages are due soon, and how many are due and not released. This reads data files."""
    now_ms = find_store_now_ms(mq.namespace.files)
    overdue = counter.count_unreleased(now_ms)
    yield build.make("lakemq_delayed_overdue_messages", overdue.messages)
    yield build.make(
        "lakemq_delayed_lateness_seconds",
        0 if overdue.oldest_due_ms is None else (now_ms - overdue.oldest_due_ms) / 1000,
    )
    counts = [(within_s, counter.count_unreleased(now_ms + 1000 * within_s).messages) for within_s in DUE_WITHIN_S]
    yield build.make("lakemq_delayed_due_messages", (((within_s,), count) for within_s, count in counts))


def read_dead_letters(observer: Observer, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the open dead letters, as `dead-letters list` counts them. This reads tables."""
    yield build.make(
        "lakemq_dead_letters",
        (
            ((count.topic, count.consumer_group, count.reason, count.source_topic), count.messages)
            for count in observer.dead_letters.counts()
        ),
    )


def count_rejected_rows(mq: Connection, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many rows were rejected lately. This reads a table."""
    since_ms = find_store_now_ms(mq.namespace.files) - 3_600_000
    columns = ["source", "error", "record_count"]
    rejected = mq.namespace.store.open(REJECTED_ROWS).read(columns, rejected_at_ms=(since_ms, None))
    rows = rejected.group_by(columns[:2]).aggregate([("record_count", "sum")]).to_pylist()
    yield build.make("lakemq_rejected_rows", (((row["source"], row["error"]), row["record_count_sum"]) for row in rows))


def read_sizes(mq: Connection, observer: Observer, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the bytes of topics in data files, as retention.bytes counts them, and what waits to become final.

    This reads tables.
    """
    live, store = observer.query(read_live_state), mq.namespace.store
    topics = live.topics
    sizes = measure_sizes(store, topics)
    is_used = mq.namespace.config.ms("final.interval.ms") > 0
    is_due = is_used and observer.query(lambda state: bool(state.leader))
    now_ms = find_store_now_ms(mq.namespace.files)
    lag_ms = measure_final_lag_ms(store, topics, now_ms) if is_due else 0
    yield build.make("lakemq_final_lag_seconds", lag_ms / 1000)
    missing = count_missing_files(store.open(SEGMENTS), live) if is_used else 0
    yield build.make("lakemq_final_files_missing", missing)
    rows = sorted((topics[topic_id].topic, sum(in_partition)) for topic_id, in_partition in sizes.items())
    yield build.make("lakemq_topic_size_bytes", (((topic,), size) for topic, size in rows))


# Metrics of the disk that holds a namespace.


def read_store(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the room on the disk."""
    space = read_free_space(mq.namespace.files)
    sizes = [] if space is None else [((), space.size_bytes)]
    free = [] if space is None else [((), space.free_bytes)]
    yield build.make("lakemq_store_size_bytes", sizes)
    yield build.make("lakemq_store_free_bytes", free)
