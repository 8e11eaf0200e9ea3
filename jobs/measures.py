"""What an audit measures of a namespace, as small tables: aggregates over DuckDB, and one pass over the data files.

All of it is as of one watermark, and nothing is written. What is counted in two ways comes from two places each time:
from `segments`, and from the views that people query, or from `control_markers` and `delayed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakemq.engine.maintenance.replaying import Replayed, compare_with_replay
from lakemq.engine.maintenance.row_audit import POINTING, Placing, file_flaws, range_flaws
from lakemq.engine.namespace.extras import needs
from lakemq.engine.namespace.load import damage_told, load_state
from lakemq.engine.namespace.snapshot import Snapshot, take_snapshot
from lakemq.errors import StepTooOld
from lakemq.jobs.sql import connected
from lakemq.tables.specs.inbox import INBOX
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.foreign import foreign_commits

if TYPE_CHECKING:
    from lakemq.engine.namespace.namespace import Namespace

_ATTEMPTS = 5


class Measures(NamedTuple):
    """Of the watermark's step. tables: what was measured, by what a row stands for; replayed: None where it was not."""

    step: int
    replayed: Replayed | None
    tables: dict[str, pa.Table]


def measure(namespace: Namespace) -> Measures:
    """Everything, but only of the files of the tables where some are gone. Raises StepTooOld, TableDamaged.

    What is read may be replaced meanwhile, and deleted: then all is measured again, and nothing is told of it.
    """
    with needs("sql"):
        import duckdb

    for attempt in range(_ATTEMPTS):
        snapshot = take_snapshot(namespace.store)
        try:
            measured = _measured(namespace, snapshot)
        except StepTooOld:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        except (OSError, duckdb.Error):
            if not _is_replaced(namespace, snapshot):
                raise
            continue
        if not (_is_something_gone(measured) and _is_replaced(namespace, snapshot)):
            return measured
    raise StepTooOld("The tables are merged faster than they can be measured.", expected="a longer reader.grace.ms")


def _measured(namespace: Namespace, snapshot: Snapshot) -> Measures:
    step, gone = snapshot.watermark.step, _files_gone(namespace, snapshot)
    if any(gone.values()):
        return Measures(step, None, {"tables": _tables(namespace, gone, None)})
    with damage_told(namespace.store):
        replayed = compare_with_replay(snapshot, namespace.config)
    tables = {"tables": _tables(namespace, gone, replayed), **_rows(namespace, snapshot)}
    return Measures(step, replayed, tables)


def _is_something_gone(measured: Measures) -> bool:
    files = measured.tables.get("data_files")
    return measured.replayed is None or (files is not None and "gone" in files.column("flaw").to_pylist())


def _is_replaced(namespace: Namespace, snapshot: Snapshot) -> bool:
    """Whether files of the snapshot are gone that the tables do without by now: nobody's fault but the reader's."""
    now = take_snapshot(namespace.store).handles
    return any(
        namespace.files.size(f"{name}/{path}") is None
        for name, handle in snapshot.handles.items()
        if name != INBOX.name
        for path in {file.path for file in handle.files()} - {file.path for file in now[name].files()}
    )


def _files_gone(namespace: Namespace, snapshot: Snapshot) -> dict[str, int]:
    """Table -> how many of its files are gone; those of `messages` are looked at one by one."""
    names = {
        spec.name: [f"{spec.name}/{file.path}" for file in snapshot.handles[spec.name].files()]
        for spec in TABLES
        if spec.name not in ("messages", "inbox")
    }
    return {table: sum(namespace.files.size(name) is None for name in found) for table, found in names.items()}


def _tables(namespace: Namespace, gone: dict[str, int], replayed: Replayed | None) -> pa.Table:
    foreign = [one.table for one in foreign_commits(namespace.store) if not one.keeps_rows]
    names = [spec.name for spec in TABLES if spec.name != "inbox"]
    differing = replayed.differing if replayed else {}
    return pa.table(
        {
            "table": names,
            "files_gone": [gone.get(name, 0) for name in names],
            "foreign_commits": [foreign.count(name) for name in names],
            "rows_unlike_the_journal": [differing.get(name, 0) for name in names],
        }
    )


def _rows(namespace: Namespace, snapshot: Snapshot) -> dict[str, pa.Table]:
    with damage_told(namespace.store):
        state = load_state(namespace.store, snapshot.watermark)
    placings = {topic_id: Placing.of(topic) for topic_id, topic in state.topics.items()}
    known = list(dict.fromkeys(placings.values()))
    data_files = [file.path for file in snapshot.handles[MESSAGES.name].files()]
    with connected(namespace, allow_files=True, snapshot=snapshot, without=data_files) as sql:
        numbers = [(topic_id, known.index(placing)) for topic_id, placing in placings.items()]
        placed = pa.table(
            {
                "topic_id": pa.array([topic_id for topic_id, _ in numbers], pa.int64()),
                "placed": pa.array([number for _, number in numbers], pa.int64()),
            }
        )
        sql.register("placed", placed)
        for name, query in _STEPS.items():
            sql.execute(f"CREATE TEMP TABLE {name} AS {query}")
        ranges = sql.sql("SELECT * FROM ranges").to_arrow_table()
    pointing = pa.table({name: ranges.column(name).cast(pa.int64()) for name in POINTING.names})
    flaws = file_flaws(snapshot, namespace.files, pointing)
    found = range_flaws(namespace.files, pointing, known, flaws)
    flawed = ranges.select(["whose", "topic", "partition"])
    flawed = flawed.append_column("missing", pa.array(found.missing))
    flawed = flawed.append_column("elsewhere", pa.array(found.elsewhere))
    unreadable = [path for path, flaw in flaws.items() if flaw]
    with connected(namespace, allow_files=True, snapshot=snapshot, without=unreadable) as sql:
        sql.register("flawed", flawed)
        for name, query in _STEPS.items():
            if name != "ranges":
                sql.execute(f"CREATE TEMP TABLE {name} AS {query}")
        measured = {name: sql.sql(query).to_arrow_table() for name, query in _MEASURES.items()}
    files = pa.table({"file": list(flaws), "flaw": list(flaws.values())}, schema=_FILES)
    return {"data_files": files, **measured}


_FILES = pa.schema([("file", pa.string()), ("flaw", pa.string())])

_STEPS = {
    # what topics that are there have, as of now
    "logs": """
        SELECT topic_id, topic, partition, log_start_offset AS log_start, high_watermark, last_stable_offset
        FROM (SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY step DESC) AS age FROM partitions)
        WHERE age = 1 AND NOT removed""",
    # what of the log they span: a segment that begins below the log start counts from there
    "spans": """
        SELECT s.*, l.log_start, l.high_watermark, greatest(s.base_offset, l.log_start) AS first_offset_left,
               s.last_offset + 1 - greatest(s.base_offset, l.log_start) AS span, c.marker AS outcome
        FROM segments s
        JOIN logs l ON l.topic_id = s.topic_id AND l.partition = s.partition
        LEFT JOIN control_markers c
          ON s.kind = 'data' AND c.topic_id = s.topic_id AND c.partition = s.partition
         AND c.producer_id = s.producer_id AND c.producer_epoch = s.producer_epoch AND s.transactional
        WHERE s.kind IN ('data', 'commit', 'abort') AND s.last_offset >= l.log_start""",
    "delays": """
        SELECT *, coalesce(len(cancelled_rows), 0) AS passed_over,
               coalesce(len(list_filter(cancelled_rows, lambda nth: nth < released_count)), 0) AS passed_over_before
        FROM (SELECT *, row_number() OVER (PARTITION BY file_id, first_row, topic_id, reschedules ORDER BY step DESC)
                        AS age FROM delayed)
        WHERE age = 1""",
    "ranges": """
        SELECT 'log' AS whose, topic, partition, file_id, footer_hash, first_row, record_count, file_partition,
               CASE WHEN origin IN ('publish', 'delay') THEN placed ELSE -1 END AS placed
        FROM spans LEFT JOIN placed USING (topic_id) WHERE kind = 'data'
        UNION ALL
        SELECT 'delayed', topic, partition, file_id, footer_hash, first_row + released_count,
               record_count - released_count, partition, -1
        FROM delays WHERE NOT removed
        UNION ALL
        SELECT 'dead_letters', source, -1, file_id, NULL, first_row, record_count, -1, -1 FROM dead_letters""",
}

_PARTITIONS = """
WITH ordered AS (
  SELECT *, coalesce(max(last_offset + 1) OVER (
           PARTITION BY topic_id, partition ORDER BY base_offset, last_offset
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), log_start) AS reached
  FROM spans
), covered AS (
  SELECT topic_id, partition, max(last_offset + 1) AS ends,
         sum(greatest(first_offset_left - greatest(reached, log_start), 0)) AS skipped,
         sum(greatest(least(reached, last_offset + 1) - first_offset_left, 0)) AS doubled,
         sum(CASE WHEN kind <> 'data' THEN span ELSE 0 END) AS markers,
         sum(CASE WHEN kind = 'data' AND NOT transactional THEN span ELSE 0 END) AS plain,
         sum(CASE WHEN outcome = 'COMMIT' THEN span ELSE 0 END) AS committed,
         sum(CASE WHEN outcome = 'ABORT' THEN span ELSE 0 END) AS aborted,
         sum(CASE WHEN kind = 'data' AND transactional AND outcome IS NULL THEN span ELSE 0 END) AS opened,
         min(CASE WHEN kind = 'data' AND transactional AND outcome IS NULL THEN first_offset_left END) AS open_from
  FROM ordered GROUP BY topic_id, partition
), stable AS (
  SELECT s.topic_id, s.partition, sum(s.span) AS visible
  FROM spans s JOIN covered c ON c.topic_id = s.topic_id AND c.partition = s.partition
  WHERE s.kind = 'data' AND (NOT s.transactional OR s.outcome = 'COMMIT')
    AND (c.open_from IS NULL OR s.base_offset < c.open_from)
  GROUP BY s.topic_id, s.partition
), twice AS (
  SELECT topic_id, partition,
         sum(greatest(least(coalesce(reached, 0), first_row + record_count) - first_row, 0)) AS rows_twice
  FROM (
    SELECT topic_id, partition, first_row, record_count, max(first_row + record_count) OVER (
             PARTITION BY topic_id, file_id ORDER BY first_row, record_count
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM spans WHERE kind = 'data' AND origin IN ('publish', 'delay'))
  GROUP BY topic_id, partition
), seen AS (
  SELECT v.topic, v.partition, sum(v.messages) AS shown,
         sum(CASE WHEN v.transactional AND c.marker = 'ABORT' THEN v.messages ELSE 0 END) AS aborted_shown,
         sum(CASE WHEN v.transactional AND c.marker IS NULL THEN v.messages ELSE 0 END) AS open_shown
  FROM (
    SELECT topic, partition, producer_id, producer_epoch, transactional, count(*) AS messages
    FROM log_committed GROUP BY ALL
  ) v
  LEFT JOIN control_markers c
    ON v.transactional AND c.topic = v.topic AND c.partition = v.partition AND c.producer_id = v.producer_id
   AND c.producer_epoch = v.producer_epoch AND c.topic_id IN (SELECT topic_id FROM logs)
  GROUP BY v.topic, v.partition
), every AS (
  SELECT topic, partition, count(*) AS messages FROM log GROUP BY topic, partition
), lost AS (
  SELECT topic, partition, sum(missing) AS missing, sum(elsewhere) AS elsewhere
  FROM flawed WHERE whose = 'log' GROUP BY topic, partition
), measured AS (
  SELECT l.topic, l.partition, l.log_start, l.last_stable_offset, l.high_watermark,
         coalesce(c.plain, 0) + coalesce(c.committed, 0) AS committed, coalesce(c.aborted, 0) AS aborted,
         coalesce(c.opened, 0) AS opened, coalesce(c.markers, 0) AS markers,
         coalesce(c.skipped, 0) + greatest(l.high_watermark - greatest(coalesce(c.ends, 0), l.log_start), 0)
           AS offsets_missing,
         coalesce(c.doubled, 0) AS offsets_twice,
         greatest(coalesce(c.ends, 0) - l.high_watermark, 0) AS offsets_beyond_the_end,
         coalesce(t.rows_twice, 0) AS rows_twice, coalesce(f.missing, 0) AS rows_missing,
         coalesce(f.elsewhere, 0) AS rows_elsewhere,
         greatest(l.last_stable_offset - l.high_watermark, l.log_start - l.last_stable_offset, 0)
           AS stable_out_of_bounds,
         l.last_stable_offset - coalesce(c.open_from, l.high_watermark) AS stable_off_by,
         coalesce(s.aborted_shown, 0) AS aborted_shown, coalesce(s.open_shown, 0) AS open_shown,
         coalesce(s.shown, 0) - coalesce(v.visible, 0) AS shown_too_many,
         coalesce(e.messages, 0) - (l.high_watermark - l.log_start - coalesce(c.markers, 0)) AS messages_too_many
  FROM logs l
  LEFT JOIN covered c ON c.topic_id = l.topic_id AND c.partition = l.partition
  LEFT JOIN stable v ON v.topic_id = l.topic_id AND v.partition = l.partition
  LEFT JOIN twice t ON t.topic_id = l.topic_id AND t.partition = l.partition
  LEFT JOIN seen s ON s.topic = l.topic AND s.partition = l.partition
  LEFT JOIN every e ON e.topic = l.topic AND e.partition = l.partition
  LEFT JOIN lost f ON f.topic = l.topic AND f.partition = l.partition
)
SELECT topic, partition, CAST(COLUMNS(* EXCLUDE (topic, partition)) AS BIGINT)
FROM measured ORDER BY topic, partition"""

_DELAYS = """
WITH told AS (
  SELECT topic, topic_id, sum(record_count) AS accepted,
         sum(CASE WHEN state = 'aborted' THEN record_count ELSE 0 END) AS aborted,
         sum(released_count - passed_over_before) AS released, sum(passed_over) AS passed_over,
         sum(CASE WHEN state = 'cancelled' AND removed THEN record_count - released_count
                  - (passed_over - passed_over_before) ELSE 0 END) AS cancelled,
         sum(waiting_count) AS waiting
  FROM delays GROUP BY topic, topic_id
), released AS (
  SELECT topic_id, sum(record_count) AS in_log FROM spans WHERE kind = 'data' AND origin = 'delay' GROUP BY topic_id
), cut AS (
  SELECT topic_id, max(log_start) AS log_start FROM logs GROUP BY topic_id
), lost AS (
  SELECT topic, sum(missing) AS missing FROM flawed WHERE whose = 'delayed' GROUP BY topic
), measured AS (
  SELECT t.topic, t.accepted, t.released, t.passed_over + t.cancelled AS cancelled, t.aborted, t.waiting,
         t.accepted - t.released - t.passed_over - t.cancelled - t.aborted - t.waiting AS unaccounted,
         CASE WHEN c.log_start > 0 THEN 0 ELSE greatest(t.released - coalesce(r.in_log, 0), 0) END
           AS released_not_in_log,
         coalesce(f.missing, 0) AS rows_missing
  FROM told t JOIN cut c USING (topic_id) LEFT JOIN released r USING (topic_id) LEFT JOIN lost f USING (topic)
)
SELECT topic, CAST(COLUMNS(* EXCLUDE topic) AS BIGINT) FROM measured ORDER BY topic"""

_DEAD = """
SELECT topic AS source, CAST(count(*) AS BIGINT) AS ranges, CAST(sum(missing) AS BIGINT) AS rows_missing
FROM flawed WHERE whose = 'dead_letters' GROUP BY topic ORDER BY topic"""

_MEASURES = {"partitions": _PARTITIONS, "delays": _DELAYS, "dead_letters": _DEAD}
