"""A publish: its parameters, the identity that makes a repeat harmless, and the request made of both and its rows.

Rows of docs/architecture.md: publish 6.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.messages import NOT_DELAYED

from ...namespace.data_file import WrittenFile
from ...protocol.errors import (
    ExpectationFailed,
    InvalidTimestamp,
    LakeMQError,
    Refusal,
    SchemaMismatch,
    error_from_refusal,
)
from ...protocol.values.log import ApplicationVersion, DataFile, Produce, Ranges, RejectedRows
from ...protocol.values.producers import ProducerSequences, TransactionRef, next_sequence, waiting_unit
from ...protocol.values.topics import TopicRef
from .placing import FIRST_FAILED, Copy, RowRun, describe_rejection, find_reason
from .routing import Route

log = logging.getLogger("lakemq.publish")

OnError = Literal["reject", "fail"]
OnRejection = Literal["reject", "fail", "leave_out"]
ON_ERROR = ("reject", "fail")

_REASONS = 3
"""Reasons that a log line shows."""


class SequenceCounters:
    """A producer's next sequence number per (topic_id, partition). Rejected rows have a counter of their own.

    How sequence numbers survive a retry. An idempotent producer numbers its records per partition. The request carries
    the first number of each partition, and the sequencer appends a request only once per number. The counters advance
    only after a request was accepted. So a retry, also one with new metadata, carries the same numbers, and the
    sequencer answers it with the first result.

    If the outcome of a batch stays unknown, the counters cannot be used any more. Either the numbers are taken: new
    records with them would be answered as repeats, and lost. Or they are not taken: later numbers would leave a
    gap. So after any error of a batch, the producer drops its id (`IdempotentBatches.note_failure`). The next batch
    asks for a new id, whose numbers begin at 0. The same happens if the sequencer has forgotten an idle producer
    (UnknownProducerId). The batch had no effect then, and is sent again. A transactional producer gets new counters
    with the epoch of each transaction.
    """

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next: dict[tuple[int, int], int] = {}
        self._next_rejected = 0

    def of(self, route: Route, ranges: Ranges, rejected: Sequence[RejectedRows] = ()) -> ProducerSequences:
        """Return the sequence numbers for a request with these ranges and rejected rows."""
        units = list(self._units(ranges))
        return ProducerSequences(
            self.producer_id,
            self.producer_epoch,
            [index for index, _ in units],
            [partition for _, partition in units],
            [self._next.get((route.topics[index].topic_id, partition), 0) for index, partition in units],
            self._next_rejected if rejected else None,
        )

    def advance(self, route: Route, ranges: Ranges, rejected: Sequence[RejectedRows] = ()) -> None:
        """Advance the counters after the request was accepted."""
        self._next_rejected = next_sequence(self._next_rejected, sum(rows.record_count for rows in rejected))
        for (index, partition), count in self._units(ranges).items():
            key = (route.topics[index].topic_id, partition)
            self._next[key] = next_sequence(self._next.get(key, 0), count)

    @staticmethod
    def _units(ranges: Ranges) -> Mapping[tuple[int, int], int]:
        """Return (topic_index, partition) -> number of rows. Delayed rows have units of their own."""
        counts: dict[tuple[int, int], int] = {}
        partitions: Iterable[int] = ranges.partition
        if ranges.first_due_ms:
            due = zip(ranges.partition, ranges.first_due_ms, strict=True)
            partitions = [p if due_ms == NOT_DELAYED else waiting_unit(p) for p, due_ms in due]
        for index, partition, count in zip(ranges.topic_index, partitions, ranges.record_count, strict=True):
            counts[index, partition] = counts.get((index, partition), 0) + count
        return counts


@dataclass(frozen=True)
class Publication:
    """The parameters of a publish.

    Attributes:
        destination: a topic, or a name that subscriptions match.
        on_error: treatment of rejected rows; "leave_out" drops them, because their futures have the error.
        application: an application's version. With it or with `sequences`, a repeat publishes nothing twice.
        transaction: the transaction that the publish belongs to.
        sequences: counters of the producer.
        expectations: descriptions of the expectations that rows may fail.
        refuses_misdated: whether messages with times that the topic's retention does not allow for are refused.
    """

    destination: str
    on_error: OnRejection = "reject"
    application: ApplicationVersion | None = None
    transaction: TransactionRef | None = None
    sequences: SequenceCounters | None = None
    expectations: Sequence[str] = ()
    refuses_misdated: bool = False

    @property
    def is_repeatable(self) -> bool:
        return self.sequences is not None or self.application is not None


def build_produce_ranges(
    route: Route, parts: Sequence[tuple[int, Copy, Sequence[RowRun]]], expectations: Sequence[str] = ()
) -> tuple[Ranges, list[RejectedRows]]:
    """Return the ranges of a request, and the rejected rows.

    Args:
        route: the topics.
        parts: file, copy and runs, in the order of writing.
        expectations: descriptions of the expectations that rows may have failed.
    """
    ranges, rejected = Ranges(), []
    for file, copy, runs in parts:
        for run in runs:
            if run.partition < 0:
                error, reason = _describe_refusal(run, copy, expectations)
                rejected.append(RejectedRows(route.destination, file, run.first_row, run.record_count, error, reason))
                continue
            for index in copy.topics:
                ranges.topic_index.append(index)
                ranges.partition.append(run.partition)
                ranges.file.append(file)
                ranges.first_row.append(run.first_row)
                ranges.record_count.append(run.record_count)
                ranges.min_timestamp_ms.append(run.min_timestamp_ms)
                ranges.max_timestamp_ms.append(run.max_timestamp_ms)
                ranges.first_due_ms.append(run.first_due_ms)
                ranges.last_due_ms.append(run.last_due_ms)
    if all(due_ms == NOT_DELAYED for due_ms in ranges.first_due_ms):
        ranges.first_due_ms.clear()
        ranges.last_due_ms.clear()
    return ranges, rejected


def _describe_refusal(run: RowRun, copy: Copy, expectations: Sequence[str]) -> tuple[str, str]:
    if run.reason:
        return SchemaMismatch.name, run.reason
    if run.partition > FIRST_FAILED:
        return describe_rejection(run.partition, copy)
    return ExpectationFailed.name, expectations[FIRST_FAILED - run.partition]


AFTER_MAX_MS = 3_600_000
"""How far ahead of now a timestamp may be: Kafka's default of message.timestamp.after.max.ms."""


def describe_bad_times(routes: Sequence[Route], ranges: Ranges, now_ms: int) -> list[str]:
    """Return a sentence for each topic whose retention deletes some of the messages at once, or is held back by them.

    Retention judges a range by its newest message, and so does this. A delayed message is as old as its release.

    Args:
        routes: the routes of the request, which share their topics.
        ranges: of the request.
        now_ms: time of the call.
    """
    retention_ms = {topic_id: ms for route in routes for topic_id, ms in route.retention_ms.items()}
    old_counts: dict[TopicRef, int] = {}
    latest_ms: dict[TopicRef, int] = {}
    dues_ms = ranges.first_due_ms or repeat(NOT_DELAYED)
    for index, count, newest_ms, due_ms in zip(
        ranges.topic_index, ranges.record_count, ranges.max_timestamp_ms, dues_ms, strict=False
    ):
        topic = routes[0].topics[index]
        if topic.topic_id not in retention_ms or due_ms != NOT_DELAYED:
            continue
        if newest_ms < now_ms - retention_ms[topic.topic_id]:
            old_counts[topic] = old_counts.get(topic, 0) + count
        elif newest_ms > now_ms + AFTER_MAX_MS:
            latest_ms[topic] = max(latest_ms.get(topic, 0), newest_ms)
    old = [
        f"{count} {'message is' if count == 1 else 'messages are'} older than topic {topic.topic} keeps: retention.ms"
        f" is {retention_ms[topic.topic_id]}."
        " Retention may delete them at its next look. Raise retention.ms, or publish without a timestamp."
        for topic, count in old_counts.items()
    ]
    return old + [
        f"Messages for topic {topic.topic} have times up to {(ms - now_ms) // 3_600_000} hours ahead. Until then"
        " retention deletes neither them nor what follows them in their partitions. Correct the times."
        for topic, ms in latest_ms.items()
    ]


def report_bad_times(publication: Publication, sentences: Sequence[str]) -> None:
    """Log what `describe_bad_times` says. Raises InvalidTimestamp: the publication refuses such messages."""
    if sentences and publication.refuses_misdated:
        raise InvalidTimestamp(f"Nothing was published. {' '.join(sentences)}")
    for sentence in sentences:
        log.warning("%s", sentence)


def error_of_rejected_rows(
    rejected: Sequence[RejectedRows], partition: npt.ArrayLike = (), reasons: Sequence[str] = (), advice: str = ""
) -> LakeMQError:
    """Return the error of a publish with on_error="fail".

    Args:
        rejected: the rejected rows, in the order of writing.
        partition: marks of the rows in the caller's order, to name the first one that does not fit a schema.
        reasons: the reasons that these marks name.
        advice: a sentence that says what the caller can do.
    """
    first = rejected[0]
    reason, row = first.reason, None
    if first.error == SchemaMismatch.name:
        # The order of writing is that of the marks, so the first row that is written need not be the caller's first.
        marks = enumerate(np.asarray(partition).tolist())
        row, reason = next(((row, text) for row, mark in marks if (text := find_reason(mark, reasons))), (None, reason))
    text = f"Nothing was published, because {_count_rows(rejected)} rejected: {reason}"
    if advice:
        text = f"{text.rstrip('.')}. {advice}"
    return error_from_refusal(Refusal(first.error, text, None if row is None else f"row {row}"))


def describe_rejected_rows(rejected: Sequence[RejectedRows]) -> str:
    """Return how many rows are rejected, and the first reasons, for a log."""
    counts: dict[tuple[str, str, str], int] = {}
    for rows in rejected:
        key = rows.error, rows.source, rows.reason
        counts[key] = counts.get(key, 0) + rows.record_count
    reasons = [f"{error} ({n} for {source}): {reason.rstrip('.')}." for (error, source, reason), n in counts.items()]
    if len(reasons) > _REASONS:
        reasons[_REASONS:] = [f"There are {len(reasons) - _REASONS} more reasons."]
    return f"{_count_rows(rejected)} rejected: {' '.join(reasons)}"


def _count_rows(rejected: Sequence[RejectedRows]) -> str:
    count = sum(rows.record_count for rows in rejected)
    return f"{count} {'row is' if count == 1 else 'rows are'}"


def build_produce_request(
    publication: Publication,
    route: Route,
    ranges: Ranges,
    rejected: Sequence[RejectedRows],
    files: Sequence[WrittenFile] = (),
    has_ttl: bool = False,
) -> Produce:
    """Return the request. has_ttl: some of the rows have a time to live."""
    sequences = publication.sequences
    return Produce(
        topics=list(route.topics),
        ranges=ranges,
        metadata_step=route.metadata_step,
        files=[DataFile(*file) for file in files],
        rejected=list(rejected),
        producer=sequences.of(route, ranges, rejected) if sequences else None,
        application=publication.application,
        transaction=publication.transaction,
        has_ttl=has_ttl,
    )
