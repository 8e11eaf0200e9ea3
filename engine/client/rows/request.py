"""Building a produce request from arranged rows: its ranges, the rejected rows, and the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.delayed import NOT_DELAYED

from ...namespace.data_file import WrittenFile
from ...protocol.errors import (
    ExpectationFailed,
    LakeMQError,
    Refusal,
    SchemaMismatch,
    error_from_refusal,
)
from ...protocol.values.log import DataFile, Produce, Ranges, RejectedRows
from .delay_rule import DelayRule, RequestedDelays
from .misfits import find_reason
from .placing import FIRST_FAILED, REJECTIONS, Copy, RowRun, reject_bad_delays
from .publication import Publication
from .routing import Route


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
                error, reason = _describe_refusal(run, expectations)
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


def _describe_refusal(run: RowRun, expectations: Sequence[str]) -> tuple[str, str]:
    if run.reason:
        return SchemaMismatch.name, run.reason
    if run.partition > FIRST_FAILED:
        return REJECTIONS[-1 - run.partition]
    return ExpectationFailed.name, expectations[FIRST_FAILED - run.partition]


def round_due_ms(rule: DelayRule, timestamp_us: int, due_us: int) -> int:
    """Return the due time of a row in milliseconds, rounded by the rule. Raises InvalidTimestamp, DelayTooLong."""
    requested = np.array([due_us], np.int64)
    partition, due = reject_bad_delays(
        RequestedDelays(np.array([timestamp_us], np.int64), requested, requested),
        rule,
        np.zeros(1, np.int32),
        by_slot=True,
    )
    if partition[0] < 0:
        raise error_from_refusal(Refusal(*REJECTIONS[-1 - int(partition[0])]))
    return int(due.ms[0])


def error_of_rejected_rows(
    rejected: Sequence[RejectedRows], partition: npt.ArrayLike = (), reasons: Sequence[str] = ()
) -> LakeMQError:
    """Return the error of a publish with on_error="fail".

    Args:
        rejected: the rejected rows, in the order of writing.
        partition: marks of the rows in the caller's order, to name the first one that does not fit a schema.
        reasons: the reasons that these marks name.
    """
    first = rejected[0]
    reason, row = first.reason, None
    if first.error == SchemaMismatch.name:
        # The order of writing is that of the marks, so the first row that is written need not be the caller's first.
        marks = enumerate(np.asarray(partition).tolist())
        row, reason = next(((row, text) for row, mark in marks if (text := find_reason(mark, reasons))), (None, reason))
    count = sum(r.record_count for r in rejected)
    text = f"{count} rows are rejected, hence all: {reason}"
    return error_from_refusal(Refusal(first.error, text, None if row is None else f"row {row}"))


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
