"""`segments`, `dead_letters`, `applications`, and the files that `messages` registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.applications import APPLICATIONS, ApplicationRow
from lakemq.tables.specs.dead_letters import DEAD_LETTERS, DeadLetterRow
from lakemq.tables.specs.segments import SEGMENTS, SegmentRow

from ..values.base import Record
from ..values.delays import Delayed
from ..values.log import Application, DataFile, DeadLettered, FilesAdded, Produced, RowsJournaled
from ..values.segments import Segments, table_of
from ..values.state import State
from ..values.topics import RecordsDeleted, TopicDeleted
from .steps import Project, Restore, Steps, records


def files_added(steps: Steps) -> list[DataFile]:
    """The data files to be registered in `messages`."""
    return [file for _, record in records(steps) if isinstance(record, FilesAdded) for file in record.files]


@dataclass(frozen=True)
class JournaledRows:
    """All rows of a data file that ride in the journal: Arrow streams, one per step that names it, in their order."""

    file_id: int
    record_count: int
    streams: tuple[bytes, ...]


def rows_journaled(steps: Steps) -> list[JournaledRows]:
    """The data files to be written of rows that rode in these steps. ValueError: some of a file's are missing."""
    found: dict[int, JournaledRows] = {}
    for step, record in records(steps):
        if isinstance(record, RowsJournaled):
            before = found.get(record.file_id) or JournaledRows(record.file_id, 0, ())
            if record.first_row != before.record_count or step.rows is None:
                raise ValueError(f"step {step.step} has no row {before.record_count} of data file {record.subject}")
            count, streams = before.record_count + record.record_count, (*before.streams, step.rows)
            found[record.file_id] = JournaledRows(record.file_id, count, streams)
    return list(found.values())


def files_named(steps: Steps) -> set[int]:
    """The data files that these steps point at, or will be written from their rows."""
    found = {file.file_id for file in files_added(steps)}
    found |= {one.file_id for _, one in records(steps) if isinstance(one, RowsJournaled | DeadLettered)}
    found.update(*(one.ranges.file_id for _, one in records(steps) if isinstance(one, Delayed)))
    segments = table_of(one.segments for step in steps for one in step.entries)
    return found.union(segments.column("file_id").unique().drop_null().to_pylist())


def _segments(state: State, steps: Steps) -> pa.Table:
    tables = [SEGMENTS.empty()]
    found: list[tuple[int, Segments]] = []
    for step in steps:
        found += [(step.step, one.segments) for one in step.entries if len(one.segments)]
        cuts = [row for one in step.entries for row in _cuts(step.step, one.record)]
        if cuts:
            tables += [_stepped(found), SEGMENTS.table(cuts)]
            found = []
    return pa.concat_tables([*tables, _stepped(found)])


def _stepped(found: Sequence[tuple[int, Segments]]) -> pa.Table:
    """Segments, each with the step that decided it."""
    numbers = np.repeat(np.array([step for step, _ in found], np.int64), [len(part) for _, part in found])
    return table_of(part for _, part in found).add_column(0, "step", pa.array(numbers))


def _cuts(step: int, record: Record) -> list[SegmentRow]:
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
    return []


def _dead_letters(state: State, steps: Steps) -> pa.Table:
    return DEAD_LETTERS.table(
        DeadLetterRow(
            step=step.step,
            source=record.source,
            file_id=record.file_id,
            first_row=record.first_row,
            record_count=record.record_count,
            error=record.error,
            reason=record.reason,
            dead_at_ms=step.decided_at_ms,
        )
        for step, record in records(steps)
        if isinstance(record, DeadLettered)
    )


def _applications(state: State, steps: Steps) -> pa.Table:
    changed = {
        (record.txn_app_id, record.target)
        for _, record in records(steps)
        if isinstance(record, Produced) and record.txn_app_id is not None
    }
    return APPLICATIONS.table(_application_row(state, *key) for key in sorted(changed))


def _application_row(state: State, txn_app_id: str, target: str) -> ApplicationRow:
    known = state.applications[txn_app_id, target]
    return ApplicationRow(
        step=state.step,
        txn_app_id=txn_app_id,
        target=target,
        version=known.version,
        seen_at_ms=known.seen_at_ms,
        removed=False,
    )


def _restore_applications(state: State, rows: pa.Table) -> None:
    for row in APPLICATIONS.rows(rows):
        state.applications[row.txn_app_id, row.target] = Application(row.version, row.seen_at_ms)


PROJECT: Project = {
    SEGMENTS.name: _segments,
    DEAD_LETTERS.name: _dead_letters,
    APPLICATIONS.name: _applications,
}
RESTORE: Restore = {APPLICATIONS.name: _restore_applications}
