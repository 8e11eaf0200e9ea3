"""Metrics of topics, groups, transactions and delayed messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakemq.engine.client.delayed.releases import UnreleasedCounter
from lakemq.engine.client.groups.group_info import GROUP_STATES, PARTITION_STATES
from lakemq.engine.client.leadership import find_store_now_ms
from lakemq.engine.maintenance.retention import measure_sizes
from lakemq.engine.namespace.processes.extras import needs
from lakemq.jobs.metrics.families import FamilyBuilder
from lakemq.jobs.state.status import MINUTES

with needs("metrics"):
    from prometheus_client.core import Metric

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.observer import Observation, Observer

DUE_WITHIN_S = tuple(60 * minutes for minutes in MINUTES)
"""Windows in which delayed messages are counted."""

_PLACE = ("topic", "partition")
_GROUP_PLACE = ("group", *_PLACE)


def read_topics(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the extent of each log, as `topics describe` shows it."""
    topics = sorted(observation.state.topics.values(), key=lambda topic: topic.topic)
    ends = [(t.topic, p, end) for t in topics for p, end in enumerate(t.high_watermarks.tolist())]
    starts = [(t.topic, p, start) for t in topics for p, start in enumerate(t.log_starts.tolist())]
    stable = [(t.topic, p, offset) for t in topics for p, offset in enumerate(t.last_stable_offsets.tolist())]
    yield build.value("lakemq_topics", "Topics that exist.", len(topics))
    for name, meaning, rows in (
        ("lakemq_partition_end_offset", "Offset that the next message of the partition gets.", ends),
        ("lakemq_partition_log_start_offset", "First offset that is not deleted.", starts),
        ("lakemq_partition_last_stable_offset", "Where read_committed stops.", stable),
    ):
        yield build.gauge(name, meaning, _PLACE, (((topic, partition), value) for topic, partition, value in rows))
    yield build.counter(
        "lakemq_topic_appended_messages_total",
        "Offsets that were given out: messages, and markers of transactions.",
        ("topic",),
        (((topic.topic,), int(topic.high_watermarks.sum())) for topic in topics),
    )
    yield build.gauge(
        "lakemq_topic_messages",
        "Offsets that are not deleted: messages, and markers of transactions.",
        ("topic",),
        (((topic.topic,), int((topic.high_watermarks - topic.log_starts).sum())) for topic in topics),
    )


def read_groups(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield lag, members and states of groups, as `groups lag` and `groups describe` show them."""
    infos = observation.groups.all(rates=False)
    lags = [lag for info in infos for lag in observation.groups.lag(info.group)]
    queues = {info.group for info in infos if info.protocol == "queue"}
    yield build.gauge(
        "lakemq_group_lag",
        "Offsets that the group has not consumed, also those behind an open transaction.",
        _GROUP_PLACE,
        (((lag.group, lag.topic, lag.partition), lag.lag) for lag in lags),
    )
    yield build.counter(
        "lakemq_group_deleted_offsets_total",
        "Offsets that retention, or a request, deleted before the group had consumed them.",
        _GROUP_PLACE,
        (((lag.group, lag.topic, lag.partition), lag.deleted) for lag in lags),
    )
    yield build.gauge(
        "lakemq_group_unacknowledged_messages",
        "Messages that the owner of the partition, in a queue group, has and has not acknowledged.",
        _GROUP_PLACE,
        (((lag.group, lag.topic, lag.partition), lag.unacknowledged) for lag in lags if lag.group in queues),
    )
    yield build.gauge(
        "lakemq_group_members", "Members of the group.", ("group",), (((info.group,), info.members) for info in infos)
    )
    yield build.states(
        "lakemq_group_state", "State of the group.", "group", GROUP_STATES, ((info.group, info.state) for info in infos)
    )
    yield build.gauge(
        "lakemq_group_waits",
        "Things that hold the group up, as `waits_for` of `groups describe` names them; missing without one.",
        ("group", "cause"),
        (
            ((info.group, cause), count)
            for info in infos
            for cause, count in Counter(stall.kind for stall in info.stalls).items()
        ),
    )
    yield _count_partition_states(observation, build)


def _count_partition_states(observation: Observation, build: FamilyBuilder) -> Metric:
    rows = []
    for name in sorted(observation.state.groups):
        counts = Counter(assignment.state for assignment in observation.groups.assignments(name))
        rows += [((name, state), float(counts[state])) for state in PARTITION_STATES]
    return build.gauge(
        "lakemq_group_partitions", "Partitions that members of the group share, by state.", ("group", "state"), rows
    )


def read_transactions(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many transactions are open, the age of the oldest one, and how much of its timeout one has used."""
    infos = observation.transactions.all(("Ongoing",))
    ages_ms = [info.open_ms or 0 for info in infos]
    yield build.value("lakemq_transactions_open", "Open transactions.", len(ages_ms))
    yield build.value(
        "lakemq_oldest_open_transaction_age_seconds",
        "Age of the oldest open transaction; 0 without one.",
        max(ages_ms, default=0) / 1000,
    )
    yield build.value(
        "lakemq_open_transaction_timeout_share",
        "The largest share of its own timeout that an open transaction has used; 0 without one.",
        max((age_ms / max(1, info.timeout_ms) for age_ms, info in zip(ages_ms, infos, strict=True)), default=0),
    )


def read_delayed(mq: Connection, observation: Observation, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many messages wait for their time."""
    yield build.gauge(
        "lakemq_delayed_messages",
        "Messages that wait for their time.",
        ("topic",),
        (((info.topic,), info.messages) for info in observation.delayed.all()),
    )


def read_due(counter: UnreleasedCounter, mq: Connection, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield how many delayed messages are due soon, and how many are due and not released. This reads data files."""
    now_ms = find_store_now_ms(mq.namespace.files)
    yield build.value(
        "lakemq_delayed_overdue_messages",
        "Delayed messages that are due and not released yet.",
        counter.count_unreleased(now_ms).messages,
    )
    counts = [(within_s, counter.count_unreleased(now_ms + 1000 * within_s).messages) for within_s in DUE_WITHIN_S]
    yield build.gauge(
        "lakemq_delayed_due_messages",
        "Delayed messages that are due within so many seconds, or overdue.",
        ("within_seconds",),
        (((within_s,), count) for within_s, count in counts),
    )


def read_dead_letters(observer: Observer, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the open dead letters, as `dead-letters list` counts them. This reads tables."""
    yield build.gauge(
        "lakemq_dead_letters",
        "Dead letters that were neither sent back nor purged.",
        ("topic", "group", "reason", "source_topic"),
        (
            ((count.topic, count.consumer_group, count.reason, count.source_topic), count.messages)
            for count in observer.dead_letters.counts()
        ),
    )


def read_sizes(mq: Connection, observer: Observer, build: FamilyBuilder) -> Iterator[Metric]:
    """Yield the bytes of topics in data files, as retention.bytes counts them. This reads tables."""
    topics = observer.snapshot().topics
    sizes = measure_sizes(mq.namespace.store, topics)
    rows = sorted((topics[topic_id].topic, sum(in_partition)) for topic_id, in_partition in sizes.items())
    yield build.gauge(
        "lakemq_topic_size_bytes",
        "Bytes of the topic's messages in data files. Messages of the last second may be missing.",
        ("topic",),
        (((topic,), size) for topic, size in rows),
    )
