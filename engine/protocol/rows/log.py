"""The tables `segments`, `rejected_rows` and `applications`, and the files that `messages` registers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.messages import REJECTED_ROWS, RejectionRow
from lakemq.tables.specs.topics import FINAL_PENDING, SEGMENTS, SegmentRow
from lakemq.tables.specs.transactions import APPLICATIONS, ApplicationRow

from ..values.base import Record, copy_fields, find_shared_fields
from ..values.delays import Delayed
from ..values.journal import Step, StepBatch, batch_steps
from ..values.log import Application, DataFile, FilesAdded, RangesFinalized, RowsJournaled, RowsRejected
from ..values.state import State
from ..values.topics import RecordsDeleted, TopicDeleted
from . import Project, Restore, find_records, list_changed


def find_added_files(steps: Sequence[Step]) -> list[DataFile]:
    """Return the data files to register in `messages`."""
    return [file for _, record in find_records(steps, FilesAdded) for file in record.files]


@dataclass(frozen=True)
class JournaledRows:
    """All rows of a data file that travel in steps.

    bodies: the rows of each step, in the order of the steps.
    """

    file_id: int
    record_count: int
    bodies: tuple[bytes, ...]


def collect_journaled_rows(steps: Sequence[Step]) -> list[JournaledRows]:
    """Return the data files to write from rows that travelled in these steps. Raises ValueError if rows are missing."""
    rows_by_file: dict[int, JournaledRows] = {}
    for step, record in find_records(steps, RowsJournaled):
        before = rows_by_file.get(record.file_id) or JournaledRows(record.file_id, 0, ())
        if record.first_row != before.record_count or step.rows is None:
            raise ValueError(f"step {step.step} has no row {before.record_count} of data file {record.subject}")
        count, bodies = before.record_count + record.record_count, (*before.bodies, step.rows)
        rows_by_file[record.file_id] = JournaledRows(record.file_id, count, bodies)
    return list(rows_by_file.values())


def find_named_files(steps: Sequence[Step]) -> set[int]:
    """Return the ids of data files that these steps refer to, or that are written from their rows."""
    batch = batch_steps(steps)
    file_ids = {file.file_id for file in find_added_files(batch)}
    file_ids |= {record.file_id for _, record in find_records(batch, RowsJournaled)}
    file_ids |= {record.file_id for _, record in find_records(batch, RowsRejected)}
    file_ids.update(*(record.ranges.file_id for _, record in find_records(batch, Delayed)))
    return file_ids.union(batch.segments.column("file_id").unique().drop_null().to_pylist())


def _project_segments(state: State, steps: StepBatch) -> pa.Table:
    counts = list(map(sum, steps.segment_counts))
    numbers = np.repeat(np.array([step.step for step in steps], np.int64), counts)
    segments = steps.segments.add_column(0, "step", pa.array(numbers))
    others: dict[int, list[SegmentRow]] = {}
    for step, _, entry in steps.find_entries(RecordsDeleted, TopicDeleted, RangesFinalized):
        others.setdefault(step.step, []).extend(_build_other_rows(step.step, entry.record))
    tables, begin = [SEGMENTS.empty()], 0
    for step, end in zip(steps, accumulate(counts), strict=True):
        if rows := others.get(step.step):  # they come after the segments of their step
            tables += [segments.slice(begin, end - begin), SEGMENTS.table(rows)]
            begin = end
    return pa.concat_tables([*tables, segments.slice(begin)])


def _build_other_rows(step: int, record: Record) -> list[SegmentRow]:
    """Return the rows of a record without segments."""

    def cut(kind: str, partition: int, offset: int, topic_id: int, topic: str) -> SegmentRow:
        return SegmentRow(
            step=step,
            kind=kind,
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            base_offset=offset,
            record_count=0,
            last_offset=offset,
            transactional=False,
            origin="publish",
        )

    if isinstance(record, RecordsDeleted):
        return [cut("log_start", p, o, record.topic_id, record.topic) for p, o in record.log_starts.items()]
    if isinstance(record, TopicDeleted):
        return [cut("topic_deleted", -1, 0, record.topic_id, record.topic)]
    if isinstance(record, RangesFinalized):
        return list(build_final_rows(step, record))
    return []


def build_final_rows(step: int, record: RangesFinalized, kind: str = FINAL_PENDING) -> Iterator[SegmentRow]:
    """Yield a row per range. It names the file of the range and the first of its rows there, if it has messages.

    The rows of a file are by partition and offset, as the ranges are.
    """
    written = dict.fromkeys(range(len(record.files)), 0)
    for range_ in record.ranges:
        file = None if range_.file is None else record.files[range_.file]
        yield SegmentRow(
            step=step,
            kind=kind,
            topic_id=record.topic_id,
            topic=record.topic,
            partition=range_.partition,
            base_offset=range_.base_offset,
            record_count=range_.record_count,
            last_offset=range_.last_offset,
            file_id=None if file is None else file.file_id,
            footer_hash=None if file is None else file.footer_hash,
            first_row=None if range_.file is None else written[range_.file],
            min_timestamp_ms=range_.min_timestamp_ms,
            max_timestamp_ms=range_.max_timestamp_ms,
            transactional=False,
            origin="publish",
        )
        if range_.file is not None:
            written[range_.file] += range_.record_count


def _project_rejections(state: State, steps: StepBatch) -> pa.Table:
    return REJECTED_ROWS.table(
        RejectionRow(
            step=step.step,
            rejected_at_ms=step.decided_at_ms,
            **copy_fields(record, find_shared_fields(RejectionRow, RowsRejected)),
        )
        for step, record in find_records(steps, RowsRejected)
    )


def _project_applications(state: State, steps: StepBatch) -> pa.Table:
    changed = list_changed(state.changes.applications, steps)
    return APPLICATIONS.table(_build_application_row(state, *key) for key in changed)


def _build_application_row(state: State, txn_app_id: str, target: str) -> ApplicationRow:
    application = state.applications[txn_app_id, target]
    return ApplicationRow(
        step=state.step,
        txn_app_id=txn_app_id,
        target=target,
        version=application.version,
        seen_at_ms=application.seen_at_ms,
        removed=False,
    )


def _restore_applications(state: State, rows: pa.Table) -> None:
    for row in APPLICATIONS.rows(rows):
        state.applications[row.txn_app_id, row.target] = Application(row.version, row.seen_at_ms)


PROJECT: Project = {
    SEGMENTS.name: _project_segments,
    REJECTED_ROWS.name: _project_rejections,
    APPLICATIONS.name: _project_applications,
}
RESTORE: Restore = {APPLICATIONS.name: _restore_applications}
