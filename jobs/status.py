"""Read what a namespace does now: leader, rates, topics, groups, open transactions, due messages, findings, losses."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.dead_letters import DeadLetterCount
from lakemq.engine.client.delayed_rows import UnreleasedCounter
from lakemq.engine.client.groups.group_info import GroupInfo
from lakemq.engine.client.operator_tools import Observation, Observer
from lakemq.engine.client.sequencers import Leadership, find_store_now_ms, read_leadership
from lakemq.engine.client.topics import TopicDescription, parse_settings
from lakemq.engine.client.transactions.operations import TransactionInfo
from lakemq.engine.maintenance.retention import find_outgrown
from lakemq.engine.namespace.progress import find_progress
from lakemq.errors import GroupIdNotFound, LakeMQError
from lakemq.jobs.doctor.examination import run_check
from lakemq.jobs.doctor.namespace import Finding, FreeSpace, make_checks, read_free_space
from lakemq.jobs.output import name_some

MINUTES = (1, 5, 60)
"""For how many minutes ahead the due delayed messages are counted, here and in the metrics."""

QUICK_CHECKS = ("writable", "space", "sequencer", "mailbox", "letters", "aside", "clock", "groups", "losses", "delays")
"""The doctor's checks that read no data file of a topic, and so may run every few seconds."""


@dataclass(frozen=True)
class Sample:
    """Counts at one moment. Two samples give rates. end_offsets: topic -> sum over its partitions."""

    monotonic_s: float
    step: int
    end_offsets: Mapping[str, int]


@dataclass(frozen=True)
class Outlook:
    """What takes longer to find out.

    Attributes:
        due_by_minutes: minutes ahead -> delayed messages that are due by then.
        dead_letters: open dead letters by topic and cause; None: they cannot be read.
        findings: findings of the doctor that are not ok.
    """

    due_by_minutes: Mapping[int, int]
    dead_letters: Sequence[DeadLetterCount] | None
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Status:
    """The state of a namespace, and the rates since the sample before.

    Attributes:
        in_per_s: topic -> offsets appended per second, transaction markers included.
        out_per_s: offsets per second that groups committed or acknowledged over the last minute; None: unknown.
        space: the room on the disk; None for an object store.
    """

    path: str
    now_ms: int
    leadership: Leadership
    steps_per_s: float
    topics: Sequence[TopicDescription]
    in_per_s: Mapping[str, float]
    groups: Sequence[GroupInfo]
    out_per_s: float | None
    open_transactions: Sequence[TransactionInfo]
    space: FreeSpace | None


def take_sample(mq: Connection) -> Sample:
    """Return the counts as of the newest step."""
    state = mq.state()
    ends = {topic.topic: int(topic.high_watermarks.sum()) for topic in state.topics.values()}
    return Sample(time.monotonic(), state.step, ends)


def read_status(mq: Connection, observer: Observer, before: Sample, now: Sample) -> Status:
    """Return the status as of the newest step.

    Args:
        observer: reads groups and transactions. With the same one, the next call costs little.
        before, now: two samples, for the rates.
    """
    with observer.look() as observation:
        return _read_status(mq, observation, before, now)


def _read_status(mq: Connection, observation: Observation, before: Sample, now: Sample) -> Status:
    seconds = now.monotonic_s - before.monotonic_s
    groups = observation.groups.all()
    rates = [group.consumption_rate for group in groups]
    return Status(
        path=mq.namespace.path,
        now_ms=find_store_now_ms(mq.namespace.files),
        leadership=read_leadership(mq.namespace.files, observation.state),
        steps_per_s=_rate(now.step - before.step, seconds),
        topics=mq.topics.list(),
        in_per_s={
            topic: _rate(end - before.end_offsets.get(topic, 0), seconds) for topic, end in now.end_offsets.items()
        },
        groups=groups,
        out_per_s=None if None in rates else round(sum(rate or 0.0 for rate in rates), 1),
        open_transactions=sorted(observation.transactions.all(("Ongoing",)), key=lambda info: -(info.open_ms or 0)),
        space=read_free_space(mq.namespace.files),
    )


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 else 0.0


class OutlookReader:
    """Reads what takes longer. It follows the waiting messages, so a later call costs less than the first."""

    def __init__(self, mq: Connection, observer: Observer) -> None:
        self._mq, self._counter = mq, UnreleasedCounter(mq.namespace.files, observer.query)
        self._checks = make_checks(mq, observer)

    def read(self) -> Outlook:
        """Return the due messages, the dead letters and the doctor's findings as of now."""
        now_ms = find_store_now_ms(self._mq.namespace.files)
        due = {minutes: self._counter.count_unreleased(now_ms + 60_000 * minutes).messages for minutes in MINUTES}
        findings = [run_check(name, self._checks[name]) for name in QUICK_CHECKS]
        return Outlook(due, self._count_dead_letters(), [finding for finding in findings if not finding.ok])

    def _count_dead_letters(self) -> list[DeadLetterCount] | None:
        try:
            return self._mq.dead_letters.counts()
        except (LakeMQError, OSError):  # a damaged or missing file must not hide the rest
            return None


def status_record(status: Status, outlook: Outlook) -> dict[str, object]:
    """Return the status as one record, for JSON. dead_letters: None if they cannot be read."""
    leadership = status.leadership
    return {
        "path": status.path,
        "leader": leadership.leader,
        "leader_epoch": leadership.epoch,
        "leader_has_died": leadership.has_died,
        "standbys": list(leadership.standbys),
        "lines": list(leadership.lines),
        "missing_lines": list(leadership.missing_lines),
        "step": leadership.step,
        "last_step_age_ms": leadership.silent_ms,
        "steps_per_s": status.steps_per_s,
        "in_per_s": round(sum(status.in_per_s.values()), 1),
        "out_per_s": status.out_per_s,
        "topics": topic_rows(status),
        "groups": group_rows(status),
        "open_transactions": transaction_rows(status),
        "size_bytes": status.space.size_bytes if status.space else None,
        "free_bytes": status.space.free_bytes if status.space else None,
        "dead_letters": dead_letter_rows(outlook),
        "due_by_minutes": {str(minutes): count for minutes, count in outlook.due_by_minutes.items()},
        "findings": [finding.to_record(status.path) for finding in outlook.findings],
    }


def topic_rows(status: Status) -> list[dict[str, object]]:
    """Return a row per topic, the busiest first."""
    rows = [
        {
            "topic": topic.topic,
            "partitions": topic.partitions,
            "offsets": topic.offset_count,
            "in_per_s": status.in_per_s.get(topic.topic, 0.0),
        }
        for topic in status.topics
    ]
    return sorted(rows, key=lambda row: (-float(str(row["in_per_s"])), str(row["topic"])))


def group_rows(status: Status) -> list[dict[str, object]]:
    """Return a row per group, the one with the most lag first."""
    return [
        {
            "group": group.group,
            "state": group.state,
            "members": group.members,
            "lag": group.lag,
            "out_per_s": group.consumption_rate,
            "waits_for": group.waits_for,
        }
        for group in sorted(status.groups, key=lambda group: (-group.lag, group.group))
    ]


def transaction_rows(status: Status) -> list[dict[str, object]]:
    """Return a row per open transaction, the oldest first."""
    return [
        {
            "transactional_id": info.transactional_id,
            "open_ms": info.open_ms,
            "timeout_ms": info.timeout_ms,
            "partitions": list(info.partitions),
        }
        for info in status.open_transactions
    ]


def dead_letter_rows(outlook: Outlook) -> list[dict[str, object]] | None:
    """Return a row per dead-letter topic and cause; None if they cannot be read."""
    return None if outlook.dead_letters is None else [dict(count._asdict()) for count in outlook.dead_letters]


# Find what retention deletes before groups have read it.


def name_readers(mq: Connection, topic: str) -> str:
    """Return the groups that read a topic, with their members and what they have not read, as part of a question."""
    readers = []
    for group in mq.groups.list():
        unread_counts, members = list[int](), 0
        with suppress(GroupIdNotFound):  # it was deleted since, or has offsets only
            unread_counts = [part.lag for part in mq.groups.lag(group) if part.topic == topic]
            members = len(mq.groups.members(group))
        if unread_counts:
            readers.append((members, sum(unread_counts), group))
    readers.sort(reverse=True)
    named = [
        f"{group} ({members} member{'' if members == 1 else 's'}, {unread:,} unread)"
        for members, unread, group in readers
    ]
    return f", read by {name_some(named)}" if named else ""


def name_losers(mq: Connection, topic: str, settings: Mapping[str, Any]) -> str:
    """Return the groups with messages that retention deletes unread under these settings, as part of a sentence.

    settings: changes as a user writes them. The text is empty if no group loses messages.
    """
    if not any(name.startswith("retention.") for name in settings):
        return ""
    losses = sorted(count_losses(mq, topic, parse_settings(settings)).items(), key=lambda loss: -loss[1])
    return name_some([f"{group} ({count:,})" for group, count in losses])


def count_losses(mq: Connection, name: str, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return group -> how many offsets it has not read that retention deletes at once under changed settings.

    Args:
        name: the topic.
        settings: changes; None as a value resets a setting to its default.

    Raises UnknownTopicOrPartition.
    """
    topic = mq.state().topic(name)
    config = {key: value for key, value in {**topic.config, **settings}.items() if value is not None}
    changed = replace(topic, config=config)
    if changed.setting("retention.waits.for.groups"):
        return {}
    cuts: dict[int, int] = {}
    for outgrown in find_outgrown(mq.namespace.store, {topic.topic_id: changed}, find_store_now_ms(mq.namespace.files)):
        for kept in (outgrown.by_age, outgrown.by_size):
            cuts |= {partition: max(first, cuts.get(partition, 0)) for partition, first in kept.items()}
    if not cuts:
        return {}
    losses: dict[str, int] = {}
    with mq.observer().look() as observation:
        for group in observation.groups.list():
            own = observation.state.list_group_partitions(group)
            losses[group] = sum(
                find_progress(observation.state, group, (topic.topic_id, partition)).count_remaining(cut)
                for partition, cut in cuts.items()
                if (topic.topic_id, partition) in own
            )
    return {group: count for group, count in losses.items() if count}
