"""An audit of the namespace: its invariants as queries, and the DuckDB in which they are asked.

All relations are as of one watermark, and nothing is written to the namespace. They are created once, before the first
query, so that no query reads a file that a merge replaces meanwhile. Three checks are not SQL: whether data files exist
and are unchanged, whether keys are in the right partition, and a replay of the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakemq.errors import StepTooOld
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta.store import find_foreign_commits

from ...maintenance.row_audit import (
    POINTING,
    Placing,
    ReplayComparison,
    compare_with_replay,
    find_file_flaws,
    find_range_flaws,
)
from ...namespace.extras import needs
from ...namespace.load import load_state
from ...namespace.step_reader import Snapshot, take_snapshot
from ...namespace.store_errors import report_damage
from ..sql.query import connect_duckdb

if TYPE_CHECKING:
    import duckdb

    from ...namespace.namespace import Namespace


# The invariants of a namespace. Each is a query in DuckDB's SQL that returns the rows which break it.
#
# The queries read the relations of `RELATIONS`, which an audit creates once from the namespace's tables and views. They
# also read the results of checks that are not SQL: `table_checks`, `file_checks`, `flawed_ranges`. `{batch}` stands for
# the subject's relation. The last column of a query is the figure that is wrong; the columns before it name the place.


SUBJECTS = {
    "tables": "table_checks",
    "data_files": "file_checks",
    "partitions": "logs",
    "delays": "delay_counts",
    "rejected_rows": "rejected_ranges",
}
"""The subjects of invariants, each with the relation that has a row per instance."""

RELATIONS = {
    # the partitions of existing topics
    "logs": """
        SELECT topic_id, topic, partition, log_start_offset AS log_start, high_watermark, last_stable_offset
        FROM (SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY step DESC) AS age FROM partitions)
        WHERE age = 1 AND NOT removed""",
    "markers": "SELECT * FROM control_markers WHERE topic_id IN (SELECT topic_id FROM logs)",
    # the segments of those logs; one that begins below the log start counts from there. reached: the end of those
    # before it
    "spans": """
        SELECT s.*, l.log_start, l.high_watermark, greatest(s.base_offset, l.log_start) AS first_offset_left,
               s.last_offset + 1 - greatest(s.base_offset, l.log_start) AS span, c.marker AS outcome,
               coalesce(max(s.last_offset + 1) OVER (
                 PARTITION BY s.topic_id, s.partition ORDER BY s.base_offset, s.last_offset
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), l.log_start) AS reached
        FROM segments s
        JOIN logs l ON l.topic_id = s.topic_id AND l.partition = s.partition
        LEFT JOIN markers c
          ON s.kind = 'data' AND c.topic_id = s.topic_id AND c.partition = s.partition
         AND c.producer_id = s.producer_id AND c.producer_epoch = s.producer_epoch AND s.transactional
        WHERE s.kind IN ('data', 'commit', 'abort', 'compacted') AND s.last_offset >= l.log_start""",
    # where the first open transaction of a partition begins
    "open_from": """
        SELECT topic_id, partition, min(first_offset_left) AS open_from
        FROM spans WHERE kind = 'data' AND transactional AND outcome IS NULL GROUP BY ALL""",
    # what the views show
    "shown": """
        SELECT topic, partition, producer_id, producer_epoch, transactional, count(*) AS messages
        FROM log_committed GROUP BY ALL""",
    "shown_in_log": "SELECT topic, partition, count(*) AS messages FROM log GROUP BY ALL",
    # messages that compaction has emptied, which the views leave out
    "emptied": """
        SELECT topic, partition, count(*) AS messages FROM final_messages
        WHERE ttl_ms = -1 AND step <= (SELECT max(step) FROM segments WHERE kind = 'final') GROUP BY ALL""",
    "delays": """
        SELECT *, coalesce(len(cancelled_rows), 0) AS passed_over,
               coalesce(len(list_filter(cancelled_rows, lambda nth: nth < released_count)), 0) AS passed_over_before
        FROM (SELECT *, row_number() OVER (PARTITION BY file_id, first_row, topic_id, reschedules ORDER BY step DESC)
                        AS age FROM delayed)
        WHERE age = 1""",
    "delay_counts": """
        SELECT topic, topic_id, sum(record_count) AS accepted,
               sum(CASE WHEN state = 'aborted' THEN record_count ELSE 0 END) AS aborted,
               sum(released_count - passed_over_before) AS released, sum(passed_over) AS passed_over,
               sum(CASE WHEN state = 'cancelled' AND removed THEN record_count - released_count
                        - (passed_over - passed_over_before) ELSE 0 END) AS cancelled,
               sum(waiting_count) AS waiting
        FROM delays WHERE topic_id IN (SELECT topic_id FROM logs) GROUP BY ALL""",
    "rejected_ranges": "SELECT source, file_id, first_row, record_count FROM rejected_rows",
}
"""The relations in order of creation: each may read those before it."""

RANGES = """
SELECT 'log' AS whose, topic, partition, file_id, footer_hash, first_row, record_count, file_partition,
       CASE WHEN origin IN ('publish', 'delay') THEN placed ELSE -1 END AS placed
FROM spans LEFT JOIN placed USING (topic_id) WHERE kind = 'data'
UNION ALL
SELECT 'delayed', topic, partition, file_id, footer_hash, first_row + released_count,
       record_count - released_count, partition, -1
FROM delays WHERE NOT removed
UNION ALL
SELECT 'rejected_rows', source, -1, file_id, NULL, first_row, record_count, -1, -1 FROM rejected_rows"""
"""All ranges of rows that the tables point at. `placed`: the rule that places keys, by number. Checked outside SQL."""


@dataclass(frozen=True)
class Invariant:
    """An invariant, and the query that returns the rows which break it.

    table: the subject. column: the figure in the query's last column. is_warning: there may be a good reason for such
    rows.
    """

    table: str
    column: str
    says: str
    query: str
    is_warning: bool = False


def _figure_of(column: str) -> str:
    return f'SELECT "table", {column} FROM {{batch}} WHERE {column} <> 0 ORDER BY "table"'


_OFFSETS_MISSING = """
SELECT l.topic, l.partition,
       CAST(coalesce(sum(greatest(s.first_offset_left - greatest(s.reached, l.log_start), 0)), 0)
            + greatest(l.high_watermark - greatest(coalesce(max(s.last_offset + 1), 0), l.log_start), 0) AS BIGINT)
         AS offsets_missing
FROM {batch} l LEFT JOIN spans s ON s.topic_id = l.topic_id AND s.partition = l.partition
GROUP BY l.topic, l.partition, l.log_start, l.high_watermark
HAVING offsets_missing > 0 ORDER BY ALL"""

_OFFSETS_TWICE = """
SELECT topic, partition,
       CAST(sum(greatest(least(reached, last_offset + 1) - first_offset_left, 0)) AS BIGINT) AS offsets_twice
FROM spans GROUP BY topic, partition HAVING offsets_twice > 0 ORDER BY ALL"""

_OFFSETS_BEYOND = """
SELECT topic, partition, max(last_offset) + 1 - high_watermark AS offsets_beyond_the_end
FROM spans GROUP BY topic, partition, high_watermark HAVING offsets_beyond_the_end > 0 ORDER BY ALL"""

_ROWS_TWICE = """
SELECT topic, partition,
       CAST(sum(greatest(least(coalesce(reached_row, 0), first_row + record_count) - first_row, 0)) AS BIGINT)
         AS rows_twice
FROM (
  SELECT topic, partition, first_row, record_count, max(first_row + record_count) OVER (
           PARTITION BY topic_id, file_id ORDER BY first_row, record_count
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached_row
  FROM spans WHERE kind = 'data' AND origin IN ('publish', 'delay'))
GROUP BY topic, partition HAVING rows_twice > 0 ORDER BY ALL"""

_ROWS_MISSING = """
SELECT topic, partition, CAST(sum(missing) AS BIGINT) AS rows_missing
FROM flawed_ranges WHERE whose = 'log' GROUP BY topic, partition HAVING rows_missing > 0 ORDER BY ALL"""

_ROWS_ELSEWHERE = """
SELECT topic, partition, CAST(sum(elsewhere) AS BIGINT) AS rows_elsewhere
FROM flawed_ranges WHERE whose = 'log' GROUP BY topic, partition HAVING rows_elsewhere > 0 ORDER BY ALL"""

_STABLE_OUT_OF_BOUNDS = """
SELECT topic, partition,
       greatest(last_stable_offset - high_watermark, log_start - last_stable_offset) AS stable_out_of_bounds
FROM {batch} WHERE NOT last_stable_offset BETWEEN log_start AND high_watermark ORDER BY ALL"""

_STABLE_OFF_BY = """
SELECT l.topic, l.partition, l.last_stable_offset - coalesce(o.open_from, l.high_watermark) AS stable_off_by
FROM {batch} l LEFT JOIN open_from o ON o.topic_id = l.topic_id AND o.partition = l.partition
WHERE l.last_stable_offset <> coalesce(o.open_from, l.high_watermark) ORDER BY ALL"""

_SHOWN_OF = """
SELECT v.topic, v.partition, CAST(sum(v.messages) AS BIGINT) AS {column}
FROM shown v
LEFT JOIN markers c ON c.topic = v.topic AND c.partition = v.partition AND c.producer_id = v.producer_id
 AND c.producer_epoch = v.producer_epoch
WHERE v.transactional AND {condition} GROUP BY v.topic, v.partition ORDER BY ALL"""

_SHOWN_TOO_MANY = """
WITH visible AS (
  SELECT s.topic, s.partition, sum(s.span) AS messages
  FROM spans s LEFT JOIN open_from o ON o.topic_id = s.topic_id AND o.partition = s.partition
  WHERE s.kind = 'data' AND (NOT s.transactional OR s.outcome = 'COMMIT')
    AND (o.open_from IS NULL OR s.base_offset < o.open_from)
  GROUP BY ALL
), seen AS (
  SELECT topic, partition, sum(messages) AS messages
  FROM (SELECT topic, partition, messages FROM shown UNION ALL SELECT * FROM emptied) GROUP BY ALL)
SELECT topic, partition, CAST(coalesce(s.messages, 0) - coalesce(v.messages, 0) AS BIGINT) AS shown_too_many
FROM {batch} LEFT JOIN visible v USING (topic, partition) LEFT JOIN seen s USING (topic, partition)
WHERE coalesce(s.messages, 0) <> coalesce(v.messages, 0) ORDER BY ALL"""

_MESSAGES_TOO_MANY = """
WITH marked AS (SELECT topic, partition, sum(span) AS markers FROM spans WHERE kind <> 'data' GROUP BY ALL)
SELECT topic, partition,
       CAST(coalesce(v.messages, 0) + coalesce(e.messages, 0)
            - (high_watermark - log_start - coalesce(m.markers, 0)) AS BIGINT) AS messages_too_many
FROM {batch} LEFT JOIN marked m USING (topic, partition) LEFT JOIN shown_in_log v USING (topic, partition)
LEFT JOIN emptied e USING (topic, partition)
WHERE messages_too_many <> 0 ORDER BY ALL"""

_UNACCOUNTED = """
SELECT topic, CAST(accepted - released - passed_over - cancelled - aborted - waiting AS BIGINT) AS unaccounted
FROM {batch} WHERE unaccounted <> 0 ORDER BY ALL"""

_RELEASED_NOT_IN_LOG = """
WITH in_log AS (
  SELECT topic_id, sum(record_count) AS messages FROM spans WHERE kind = 'data' AND origin = 'delay' GROUP BY ALL
), kept AS (
  SELECT topic_id FROM logs GROUP BY topic_id HAVING max(log_start) = 0
  EXCEPT SELECT topic_id FROM spans WHERE kind = 'compacted')
SELECT topic, CAST(released - coalesce(messages, 0) AS BIGINT) AS released_not_in_log
FROM {batch} JOIN kept USING (topic_id) LEFT JOIN in_log USING (topic_id)
WHERE released_not_in_log > 0 ORDER BY ALL"""

_WAITING_ROWS_MISSING = """
SELECT topic, CAST(sum(missing) AS BIGINT) AS rows_missing
FROM flawed_ranges WHERE whose = 'delayed' GROUP BY topic HAVING rows_missing > 0 ORDER BY ALL"""

_REJECTED_ROWS_MISSING = """
SELECT topic AS source, CAST(sum(missing) AS BIGINT) AS rows_missing
FROM flawed_ranges WHERE whose = 'rejected_rows' GROUP BY topic HAVING rows_missing > 0 ORDER BY ALL"""

INVARIANTS = (
    Invariant("tables", "files_gone", "Every file of the tables exists.", _figure_of("files_gone")),
    Invariant(
        "tables",
        "foreign_commits",
        "Only LakeMQ has changed rows of a table, as far back as its log goes.",
        _figure_of("foreign_commits"),
    ),
    Invariant(
        "tables",
        "rows_unlike_the_journal",
        "The tables hold what a replay of the journal yields.",
        _figure_of("rows_unlike_the_journal"),
    ),
    Invariant(
        "data_files",
        "flaw",
        "Every data file exists, is registered in messages, and is unchanged.",
        "SELECT file, flaw FROM {batch} WHERE flaw <> '' ORDER BY file",
    ),
    Invariant(
        "partitions",
        "offsets_missing",
        "Offsets are dense from the log start to the high watermark.",
        _OFFSETS_MISSING,
    ),
    Invariant("partitions", "offsets_twice", "No offset was assigned twice.", _OFFSETS_TWICE),
    Invariant(
        "partitions", "offsets_beyond_the_end", "No offset lies at or above the high watermark.", _OFFSETS_BEYOND
    ),
    Invariant(
        "partitions",
        "rows_missing",
        "Every offset has its row, in the file and partition that its segment names.",
        _ROWS_MISSING,
    ),
    Invariant("partitions", "rows_twice", "No row of a file was published twice to a topic.", _ROWS_TWICE),
    Invariant(
        "partitions",
        "stable_out_of_bounds",
        "Log start <= last stable offset <= high watermark.",
        _STABLE_OUT_OF_BOUNDS,
    ),
    Invariant(
        "partitions",
        "stable_off_by",
        "The last stable offset is where the first open transaction begins, else the high watermark.",
        _STABLE_OFF_BY,
    ),
    Invariant(
        "partitions",
        "aborted_shown",
        "No aborted message is in log_committed.",
        _SHOWN_OF.replace("{column}", "aborted_shown").replace("{condition}", "c.marker = 'ABORT'"),
    ),
    Invariant(
        "partitions",
        "open_shown",
        "No message of an open transaction is in log_committed.",
        _SHOWN_OF.replace("{column}", "open_shown").replace("{condition}", "c.marker IS NULL"),
    ),
    Invariant(
        "partitions",
        "shown_too_many",
        "log_committed has as many messages as were committed below the last stable offset.",
        _SHOWN_TOO_MANY,
    ),
    Invariant(
        "partitions",
        "messages_too_many",
        "From the log start to the high watermark, every offset is a message or a marker.",
        _MESSAGES_TOO_MANY,
    ),
    Invariant(
        "partitions",
        "rows_elsewhere",
        "Each key is in the partition of its hash, by the current number of partitions. Exceptions: messages published"
        " to an explicit partition, or before that number changed.",
        _ROWS_ELSEWHERE,
        is_warning=True,
    ),
    Invariant(
        "delays",
        "unaccounted",
        "Every delayed message is released, cancelled, rescheduled, aborted or waiting.",
        _UNACCOUNTED,
    ),
    Invariant("delays", "released_not_in_log", "Every released message is in the log.", _RELEASED_NOT_IN_LOG),
    Invariant("delays", "rows_missing", "Every waiting message has its row.", _WAITING_ROWS_MISSING),
    Invariant("rejected_rows", "rows_missing", "Every rejected row exists.", _REJECTED_ROWS_MISSING),
)
"""All invariants, in the order in which an audit reports them."""


_ATTEMPTS = 5


class PreparedAudit(NamedTuple):
    """A DuckDB that is ready for an audit's queries; close `database` after use.

    step: the watermark's step. replayed: the result of the replay, None where there was none. subjects: the names of
    SUBJECTS that can be examined.
    """

    step: int
    replayed: ReplayComparison | None
    subjects: tuple[str, ...]
    database: duckdb.DuckDBPyConnection


def prepare(namespace: Namespace) -> PreparedAudit:
    """Prepare all subjects, or only `tables` where files of the tables are missing.

    A merge may replace and delete files while this reads them. Then it starts again with a new snapshot.

    Raises StepTooOld, TableDamaged.
    """
    with needs("sql"):
        import duckdb

    for attempt in range(_ATTEMPTS):
        snapshot = take_snapshot(namespace.store)
        try:
            prepared = _prepare_snapshot(namespace, snapshot)
        except StepTooOld:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        except (OSError, duckdb.Error):
            if not _was_replaced_meanwhile(namespace, snapshot):
                raise
            continue
        if not (_misses_data_files(prepared) and _was_replaced_meanwhile(namespace, snapshot)):
            return prepared
        prepared.database.close()
    raise StepTooOld("The tables are merged faster than an audit can read them.", expected="a longer reader.grace.ms")


def _prepare_snapshot(namespace: Namespace, snapshot: Snapshot) -> PreparedAudit:
    import duckdb

    step, gone = snapshot.watermark.step, _count_missing_files(namespace, snapshot)
    if any(gone.values()):
        database = duckdb.connect(":memory:")
        _create_table(database, "table_checks", _table_checks(namespace, gone, None))
        return PreparedAudit(step, None, ("tables",), database)
    with report_damage(namespace.store):
        replayed = compare_with_replay(snapshot, namespace.config)
    database = _make_relations(namespace, snapshot)
    _create_table(database, "table_checks", _table_checks(namespace, gone, replayed))
    return PreparedAudit(step, replayed, tuple(SUBJECTS), database)


def _create_table(database: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    database.register("given", rows)
    database.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM given")
    database.unregister("given")


def _misses_data_files(prepared: PreparedAudit) -> bool:
    if prepared.replayed is None:
        return True
    (count,) = prepared.database.execute("SELECT count(*) FROM file_checks WHERE flaw = 'gone'").fetchone() or (0,)
    return bool(count)


def _was_replaced_meanwhile(namespace: Namespace, snapshot: Snapshot) -> bool:
    """Return whether files of the snapshot are missing only because the tables no longer use them."""
    now = take_snapshot(namespace.store).handles
    return any(
        namespace.files.size(f"{name}/{path}") is None
        for name, handle in snapshot.handles.items()
        for path in {file.path for file in handle.files()} - {file.path for file in now[name].files()}
    )


def _count_missing_files(namespace: Namespace, snapshot: Snapshot) -> dict[str, int]:
    """Return the number of missing files per table, without `messages`, whose files are checked one by one."""
    names = {
        spec.name: [f"{spec.name}/{file.path}" for file in snapshot.handles[spec.name].files()]
        for spec in TABLES
        if spec.name in snapshot.handles and spec is not MESSAGES
    }
    return {table: sum(namespace.files.size(name) is None for name in files) for table, files in names.items()}


def _table_checks(namespace: Namespace, gone: dict[str, int], replayed: ReplayComparison | None) -> pa.Table:
    foreign = [commit.table for commit in find_foreign_commits(namespace.store) if not commit.keeps_rows]
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


def _make_relations(namespace: Namespace, snapshot: Snapshot) -> duckdb.DuckDBPyConnection:
    """Create all relations in a DuckDB that leaves out data files which cannot be read."""
    with report_damage(namespace.store):
        state = load_state(namespace.store, snapshot.watermark)
    placings = {topic_id: Placing.of(topic) for topic_id, topic in state.topics.items()}
    distinct = list(dict.fromkeys(placings.values()))
    placed = pa.table(
        {
            "topic_id": pa.array(list(placings), pa.int64()),
            "placed": pa.array([distinct.index(placing) for placing in placings.values()], pa.int64()),
        }
    )
    data_files = [file.path for file in snapshot.handles[MESSAGES.name].files()]
    with connect_duckdb(namespace, allow_files=True, snapshot=snapshot, without=data_files) as without_rows:
        _create_table(without_rows, "placed", placed)
        for name in _OF_RANGES:
            without_rows.execute(f"CREATE TEMP TABLE {name} AS {RELATIONS[name]}")
        ranges = without_rows.sql(RANGES).to_arrow_table()
    pointing = pa.table({name: ranges.column(name).cast(pa.int64()) for name in POINTING.names})
    topics = dict(zip(ranges.column("file_id").to_pylist(), ranges.column("topic").to_pylist(), strict=True))
    flaws = find_file_flaws(snapshot, namespace.files, pointing, topics)
    flawed_ranges = find_range_flaws(namespace.files, pointing, distinct, flaws, topics)
    flawed = ranges.select(["whose", "topic", "partition"])
    flawed = flawed.append_column("missing", pa.array(flawed_ranges.missing))
    flawed = flawed.append_column("elsewhere", pa.array(flawed_ranges.elsewhere))
    unreadable = [path for path, flaw in flaws.items() if flaw]
    database = connect_duckdb(namespace, allow_files=True, snapshot=snapshot, without=unreadable)
    try:
        _create_table(database, "flawed_ranges", flawed)
        _create_table(
            database, "file_checks", pa.table({"file": list(flaws), "flaw": list(flaws.values())}, schema=_FILES)
        )
        for name, query in RELATIONS.items():
            database.execute(f"CREATE TEMP TABLE {name} AS {query}")
    except BaseException:
        database.close()
        raise
    return database


_OF_RANGES = ("logs", "markers", "spans", "delays")
"""The relations that RANGES reads."""

_FILES = pa.schema([("file", pa.string()), ("flaw", pa.string())])
