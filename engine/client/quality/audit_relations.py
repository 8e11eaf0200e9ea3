"""The DuckDB that an audit's queries read: the relations of `invariants`, and the results of checks that are not SQL.

All relations are as of one watermark, and nothing is written to the namespace. They are created once, before the first
query, so that no query reads a file that a merge replaces meanwhile. Three checks are not SQL: whether data files exist
and are unchanged, whether keys are in the right partition, and a replay of the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakemq.engine.client.quality.invariants import RANGES, RELATIONS, SUBJECTS
from lakemq.engine.client.sql.query import connect_duckdb
from lakemq.engine.maintenance.replay_comparison import ReplayComparison, compare_with_replay
from lakemq.engine.maintenance.row_audit import POINTING, Placing, find_file_flaws, find_range_flaws
from lakemq.engine.namespace.loading.damage import report_damage
from lakemq.engine.namespace.loading.load import load_state
from lakemq.engine.namespace.loading.snapshot import Snapshot, take_snapshot
from lakemq.engine.namespace.processes.extras import needs
from lakemq.errors import StepTooOld
from lakemq.tables.specs.inbox import INBOX
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta.foreign import find_foreign_commits

if TYPE_CHECKING:
    import duckdb

    from lakemq.engine.namespace.namespace import Namespace

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
        if name != INBOX.name
        for path in {file.path for file in handle.files()} - {file.path for file in now[name].files()}
    )


def _count_missing_files(namespace: Namespace, snapshot: Snapshot) -> dict[str, int]:
    """Return the number of missing files per table, without `messages`, whose files are checked one by one."""
    names = {
        spec.name: [f"{spec.name}/{file.path}" for file in snapshot.handles[spec.name].files()]
        for spec in TABLES
        if spec.name not in ("messages", "inbox")
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
    flaws = find_file_flaws(snapshot, namespace.files, pointing)
    flawed_ranges = find_range_flaws(namespace.files, pointing, distinct, flaws)
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
