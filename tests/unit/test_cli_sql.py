"""`lakemq sql`: DuckDB sees what Spark's views see, as of one watermark, without a JVM and without a network."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import connect_duckdb, run_query
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import InvalidRequest, RequestTimedOut
from lakemq.jobs.cli import app
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import PARTITIONS, SEGMENTS
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.views import VIEWS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Two topics, one deleted one, deleted records, keyed messages with headers; all of it projected."""
    path = tmp_path_factory.mktemp("sql") / "mq"
    with lakemq.connect(str(path), create=True) as first, first.serving():
        for topic in ("flights", "weather", "gone"):
            first.topics.create(topic, partitions=3)
        first.topics.create("stamped", config={"message.timestamp.type": "LogAppendTime"})
        with first.producer() as producer:
            for i in range(20):
                for topic in ("flights", "gone"):
                    producer.send(topic, f"v{i}", key=f"k{i % 7}", headers=[("h", b"x")], timestamp_ms=i * 1000)
            producer.send("weather", None, key=b"\xff")
            producer.send("stamped", "now", timestamp_ms=5)
        first.topics.delete("gone")
        first.topics.delete_records("flights", {0: 2})
    with lakemq.connect(str(path)) as connection:
        yield connection


def run(
    mq: Connection, query: str, output: str = "json", stdin: bytes = b"", dialect: str = "spark", as_of: str = ""
) -> Result:
    options = ["--path", mq.namespace.path, "sql", "--output", output, "--dialect", dialect, query]
    options += ["--as-of", as_of] if as_of else []
    return CliRunner().invoke(app, options, input=stdin)


# -- a query sees the tables and views as of one watermark ------------------------------------------------


def test_duckdb_shows_every_table_as_stored(mq: Connection) -> None:
    connection = connect_duckdb(mq.namespace)
    shown = {name for (name,) in connection.execute("SHOW TABLES").fetchall()}
    assert shown == {spec.name for spec in TABLES} | set(VIEWS)
    for spec in TABLES:
        columns = [name for name, *_ in connection.execute(f"DESCRIBE {spec.name}").fetchall()]
        assert columns == spec.stored_schema.names
        (count,) = connection.execute(f"SELECT count(*) FROM mq.{spec.name}").fetchone() or (None,)
        assert count == mq.namespace.store.open(spec).read().num_rows


@pytest.mark.extended
def test_namespace_named_by_a_word_of_sql_can_be_queried(tmp_path: Path) -> None:
    made = tmp_path / "order"
    open_namespace(str(made), create=True)
    for name in ("order", "group", "2024", "a-b", "main", "memory", "temp", "system", "information_schema"):
        made = made.rename(tmp_path / name)
        assert list(run_query(open_namespace(str(made)), "SELECT count(*) FROM log_committed")[1]) == [(0,)], name


@pytest.mark.extended
def test_sql_shows_no_row_above_the_watermark(tmp_path: Path) -> None:
    namespace = open_namespace(str(tmp_path / "mq"), create=True)
    with Connection(namespace) as first, first.serving():
        first.topics.create("t")
        first.publish("t", pa.table({"value": ["projected"]}))

    def dies(point: str) -> None:
        if point == "projector.tables_appended":
            raise InterruptedError(point)

    with Connection(namespace, crash_point=dies) as second:
        serving = second.serving()
        second.publish("t", pa.table({"value": ["half projected"]}))
        serving.close()
    stored = max(namespace.store.open(spec).last_step() for spec in TABLES if spec.name == "segments")
    assert stored > read_watermark(namespace.store).step
    _, rows = run_query(namespace, "SELECT decode(value) FROM log")
    assert list(rows) == [("projected",)]


@pytest.mark.extended
def test_every_value_is_printed_as_json_without_loss(mq: Connection) -> None:
    cases = (
        ("CAST('NaN' AS DOUBLE)", '"NaN"', "NaN"),
        ("array(-CAST('Infinity' AS DOUBLE))", '["-Infinity"]', '"[""-Infinity""]"'),
        ("CAST(12345678901234567890.125 AS DECIMAL(38, 3))", '"12345678901234567890.125"', "12345678901234567890.125"),
        ("DATE '2024-02-29'", '"2024-02-29"', "2024-02-29"),
        ("map(CAST('k' AS BINARY), X'FF')", '{"k_base64":"/w=="}', '"{""k_base64"":""/w==""}"'),
        ("map(DATE '2024-02-29', 2)", '{"2024-02-29":2}', '"{""2024-02-29"":2}"'),
    )
    query = "SELECT " + ", ".join(f"{value} AS x{number}" for number, (value, _, _) in enumerate(cases))
    parts = ",".join(f'"x{number}":{as_json}' for number, (_, as_json, _) in enumerate(cases))
    assert run(mq, query).stdout == f"{{{parts}}}\n"
    assert run(mq, query, "csv").stdout.splitlines()[1] == ",".join(as_csv for _, _, as_csv in cases)
    equal_names = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a"
    assert run(mq, equal_names).stdout == '{"a":1,"a_1":2,"a_1_1":3,"a_2":4}\n'


def test_statements_may_come_from_stdin(mq: Connection) -> None:
    assert run(mq, "-", stdin=b"CREATE TEMP TABLE x AS SELECT 7 AS n; SELECT n FROM x;").stdout == '{"n":7}\n'


@pytest.mark.extended
def test_queries_that_duckdb_refuses_are_refused_in_one_line(mq: Connection) -> None:
    for query, expected in (
        (f"SELECT {'(' * 1000}1{')' * 1000}", "SQL_ERROR: This is not Spark SQL: it is nested too deeply"),
        ("SELECT bad bad bad FROM log", "SQL_ERROR: This is not Spark SQL: "),
        ("SELECT CAST('x' AS INT)", "SQL_ERROR: Conversion Error: "),
        ("INSERT INTO topics SELECT * FROM topics", "SQL_ERROR: "),
        ("SELECT * FROM mq", "SQL_ERROR: Catalog Error: "),
        ("LOAD delta", "SQL_ERROR: "),
        # functions without a counterpart are named
        ("SELECT xxhash64(key) FROM log", "SQL_ERROR: Catalog Error: Scalar Function with name xxhash64 does not"),
        ("SELECT hash(key) FROM log", r"SQL_ERROR: .*\bhash\b"),
        ("SELECT from_json(CAST(value AS STRING), 'a INT') FROM log", "SQL_ERROR: (?!.*Malformed).*from_json"),
    ):
        result = run(mq, query)
        (line,) = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.match(expected, line), line


@pytest.mark.extended
def test_duckdb_dialect_is_accepted(mq: Connection) -> None:
    result = run(mq, "SELECT \"offset\", decode(value) AS v FROM log WHERE topic = 'stamped'", dialect="duckdb")
    assert result.stdout == '{"offset":0,"v":"now"}\n'
    result = run(mq, "SELECT offset FROM log", dialect="duckdb")
    assert result.exit_code == 1
    assert result.stderr.startswith('SQL_ERROR: Parser Error: syntax error at or near "FROM"')
    assert "Quote it." in result.stderr


def test_duckdb_neither_installs_nor_loads_an_extension_by_itself(mq: Connection) -> None:
    connection = connect_duckdb(mq.namespace, allow_files=True)
    connection.execute("SELECT count(*) FROM log").fetchall()
    outside = "SELECT extension_name FROM duckdb_extensions() WHERE loaded AND install_mode <> 'STATICALLY_LINKED'"
    assert connection.execute(outside).fetchall() == []
    with pytest.raises(duckdb.Error, match=r"https|httpfs|Failed|Missing"):
        connection.execute("SELECT * FROM 'https://example.invalid/x.parquet'")


def test_snapshot_starts_over_when_a_merge_has_removed_the_watermarks_step(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watermarks = iter([0, 0])
    real = read_watermark

    def lagging(store: object) -> object:
        found = real(store)  # type: ignore[arg-type]
        return found if next(watermarks, None) is None else type(found)(**{**vars(found), "step": -1})

    monkeypatch.setattr("lakemq.engine.namespace.step_reader.read_watermark", lagging)
    assert take_snapshot(mq.namespace.store).watermark.step == real(mq.namespace.store).step


# -- a query says that steps are missing, and waits for them where asked ----------------------------------


@pytest.fixture
def unprojected(tmp_path: Path) -> Path:
    """A namespace whose only message was decided by a sequencer that ended without projecting it."""
    hour_ms = 3_600_000
    config = {"project.interval.ms": hour_ms, "lease.ms": 500, "engine.idle.ms": 10}
    with lakemq.connect(tmp_path / "mq", create=True, config=config) as mq, mq.serving():
        mq.topics.create("t")
    with lakemq.connect(tmp_path / "mq", config=config) as mq:
        sequencer = mq.sequencer()
        until(sequencer.try_lead)
        published = Thread(target=lambda: mq.publish("t", pa.table({"value": ["m"]})))
        published.start()
        while published.is_alive():
            sequencer.step()
        published.join()
    return tmp_path / "mq"


@pytest.mark.extended
def test_sql_warns_of_steps_that_are_not_projected(unprojected: Path) -> None:
    command = ["--path", str(unprojected), "--output", "json", "sql", "SELECT count(*) AS n FROM log"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"n": 0}
    with lakemq.connect(unprojected) as mq:
        step = read_watermark(mq.namespace.store).step
        behind = mq.state().step - step
    assert behind > 0
    assert f"as of step {step}, {behind} steps behind" in done.stderr
    assert "--wait" in done.stderr
    done = CliRunner().invoke(app, [*command, "--as-of", str(step)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert CliRunner().invoke(app, [*command, "--wait", "1", "--as-of", "1"]).exit_code == 2
    assert json.loads(CliRunner().invoke(app, [*command, "--wait", "60"]).stdout) == {"n": 1}


def test_sql_from_python_reads_keys_and_values_as_bytes_and_times_in_utc(mq: Connection) -> None:
    columns = "key, value, timestamp, headers"
    row = mq.sql(f"SELECT {columns} FROM log WHERE topic = 'flights' ORDER BY timestamp LIMIT 1").to_pylist()[0]
    (sent,) = mq.fetch("flights").to_arrow().sort_by("timestamp").slice(0, 1).select(columns.split(", ")).to_pylist()
    assert row == sent


@pytest.mark.extended
def test_sql_from_python_warns_of_old_tables_and_waits_where_asked(
    unprojected: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = "SELECT count(*) AS n FROM log"
    # A sequencer projects what an earlier one has left at once, whatever its interval.
    with lakemq.connect(unprojected, config={"project.interval.ms": 3_600_000}) as mq:
        until(lambda: bool(mq.sql(query) and caplog.records))  # not before the first step is two seconds old
        assert "steps behind" in caplog.records[-1].message
        assert caplog.records[-1].name == "lakemq.sql"
        with pytest.raises(RequestTimedOut):
            mq.sql(query, wait_ms=0)
        with pytest.raises(InvalidRequest, match="as_of"):
            mq.sql(query, wait_ms=0, as_of=1)
        assert mq.sql(query, wait_ms=60_000).to_pylist() == [{"n": 1}]
        assert not mq.state().leader  # the sequencer that projected has ended
        caplog.clear()
        assert mq.sql(query).to_pylist() == [{"n": 1}]
        assert not caplog.records


def test_sql_from_python_takes_a_time_and_refuses_what_is_no_query(mq: Connection) -> None:
    query = "SELECT topic, max(offset) FROM log GROUP BY topic ORDER BY topic"
    assert mq.sql(query, as_of=datetime.now(UTC)) == mq.sql(query)
    assert mq.sql(query, as_of=datetime(2001, 1, 1)).num_rows == 0
    wrong: Any
    for wrong in ("SELEC 1", "", 7):
        with pytest.raises(InvalidRequest):
            mq.sql(wrong)


def test_counts_of_offsets_records_and_committed_records_differ(tmp_path: Path) -> None:
    """Of 3 plain, 2 committed, 2 aborted and 2 open records, behind which 1 plain one waits, the first is deleted."""
    with lakemq.connect(tmp_path / "mq", create=True, config={"project.interval.ms": 0}) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["plain"] * 3}))
        for end in ("commit", "abort", None):
            producer = mq.producer(transactional_id=f"tx-{end}")
            producer.begin_transaction()
            for _ in range(2):
                producer.send("t", str(end))
            producer.flush()
            if end is not None:
                getattr(producer, f"{end}_transaction")()
        mq.publish("t", pa.table({"value": ["behind"]}))
        mq.topics.delete_records("t", {0: 1})
        offsets, records, committed = 2 + 3 + 3 + 2 + 1, 2 + 2 + 2 + 2 + 1, 2 + 2
        assert mq.topics.describe("t").offset_count == offsets
        assert mq.fetch("t", isolation="read_uncommitted").record_count == records
        assert mq.fetch("t").record_count == committed
        path = mq.namespace.path
        runner = CliRunner()
        for command in (["list"], ["describe", "t"]):
            told = runner.invoke(app, ["--path", path, "--output", "json", "topics", *command])
            assert json.loads(told.stdout)["offsets"] == offsets
        producer.abort_transaction()
        query = "SELECT records, committed_records FROM topic_stats"
        until(lambda: list(run_query(mq.namespace, query)[1]) == [(records, committed + 1)])


# -- a query reads the past -------------------------------------------------------------------------------


def test_sql_as_of_a_step_or_time_reads_the_state_then(tmp_path: Path) -> None:
    with lakemq.connect(tmp_path / "mq", create=True, config={"project.interval.ms": 0}) as mq, mq.serving():
        mq.topics.create("t")
        steps = []
        for value in ("one", "two", "three"):
            mq.publish("t", pa.table({"value": [value]}))
            until(lambda: read_watermark(mq.namespace.store).step == mq.state().step)
            watermark = read_watermark(mq.namespace.store)
            steps.append((watermark.step, watermark.decided_at_ms))
    query = "SELECT count(*) AS n FROM log"
    for count, (step, at_ms) in enumerate(steps, 1):
        at = datetime.fromtimestamp((at_ms + 1) / 1000, UTC).isoformat()
        for as_of in (str(step), at):
            assert json.loads(run(mq, query, as_of=as_of).stdout)["n"] == count
    assert json.loads(run(mq, query, as_of="0").stdout)["n"] == 0
    assert json.loads(run(mq, query, as_of="2001-01-01").stdout)["n"] == 0
    assert run(mq, query, as_of="yesterday").exit_code == 2


def test_sql_as_of_a_step_reads_the_projection_that_holds_it(tmp_path: Path) -> None:
    query, steps = "SELECT count(*) AS n FROM log", []
    with lakemq.connect(tmp_path / "mq", create=True, config={"project.interval.ms": 20_000}) as mq:
        with mq.serving():
            mq.topics.create("t")
            for value in ("one", "two", "three"):
                mq.publish("t", pa.table({"value": [value]}))
                steps.append(mq.state().step)
            with pytest.raises(InvalidRequest, match=f"do not hold step {steps[-1]} yet"):
                mq.sql(query, as_of=steps[-1])
        # the end of the sequencer projects all steps in one pass
        assert len(set(steps)) == 3
        assert [mq.sql(query, as_of=step).to_pylist() for step in steps] == [[{"n": 3}]] * 3
        assert mq.sql(query, as_of=0).to_pylist() == [{"n": 0}]
        with pytest.raises(InvalidRequest, match="do not hold step"):
            mq.sql(query, as_of=mq.state().step + 1)


class _BusyStore:
    """A store in which a projection comes right after the segments are opened."""

    def __init__(self, store: Store, project: Callable[[], None]) -> None:
        self._store, self._project = store, project

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def open(self, spec: TableSpec) -> TableHandle:
        handle = self._store.open(spec)
        if spec is SEGMENTS:
            self._project()
        return handle


def test_snapshot_leaves_out_a_projection_that_came_while_it_opened(tmp_path: Path) -> None:
    with lakemq.connect(tmp_path / "mq", create=True, config={"project.interval.ms": 0}) as mq, mq.serving():
        mq.topics.create("t")
        mq.sql("SELECT 1", wait_ms=10_000)
        opened_at_steps = []

        def project() -> None:
            opened_at_steps.append(read_watermark(mq.namespace.store).step)
            mq.publish("t", pa.table({"value": ["x"]}))
            mq.sql("SELECT 1", wait_ms=10_000)

        store: Any = _BusyStore(mq.namespace.store, project)
        for as_of in (datetime.now(UTC) + timedelta(days=1), mq.state().step):
            watermark, _ = take_snapshot(store, as_of)
            assert watermark.step <= opened_at_steps[-1] < read_watermark(mq.namespace.store).step


@pytest.mark.extended
def test_sql_as_of_a_step_before_a_merge_is_refused(tmp_path: Path) -> None:
    with lakemq.connect(tmp_path / "mq", create=True, config={"project.interval.ms": 0}) as mq, mq.serving():
        mq.topics.create("t")
    step = read_watermark(mq.namespace.store).step
    handle = mq.namespace.store.open(PARTITIONS)
    handle.replace_at(handle.version, [], floor=step)  # as a merge notes it
    query = "SELECT count(*) AS n FROM log"
    result = run(mq, query, as_of=str(step - 1))
    assert (result.exit_code, result.stderr.partition(":")[0]) == (1, "STEP_TOO_OLD")
    assert run(mq, query, as_of=str(step)).exit_code == 0


# -- DuckDB computes what Spark computes, or refuses ------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("length(CAST(b AS STRING))", 3),
        ("CAST(concat(CAST(b AS STRING), '!') AS STRING)", "Zoë!"),
        ("length(upper(CAST(b AS STRING)))", 3),
        ("CAST(1.9 AS INT) + CAST(-2.5 AS BIGINT)", -1),
        ("CAST(9007199254740993 AS BIGINT)", 9007199254740993),
        ("CAST('12' AS INT)", 12),
        ("try_cast('1.9' AS INT)", None),
        ("coalesce(try_cast('1_0' AS INT), try_cast('0x1' AS INT), try_cast(' -7 ' AS INT))", -7),
        ("CAST(avg(n) AS INT)", 1),
        ("CAST(sum(n) AS STRING)", "3.50"),
        ("percentile(length(b), 0.5)", 4.0),
        ("substring('abc', 0, 2)", "ab"),
        ("dayofweek(DATE '2026-11-28')", 7),
        ("weekday(DATE '2026-11-28')", 5),
        ("CAST(date_add(DATE '2026-02-02', 3) AS STRING)", "2026-02-05"),
        ("unix_millis(t)", 1_769_990_400_999),
        ("unix_seconds(t)", 1_769_990_400),
        ("CAST(t AS BIGINT)", 1_769_990_400),
        (r"'a%b' LIKE 'a\%b' AND 'axb' NOT LIKE 'a\%b' AND 'axb' LIKE concat('a', '%')", True),
    ],
)
def test_duckdb_returns_what_spark_returns(mq: Connection, expression: str, expected: object) -> None:
    rows = "SELECT encode('Zoë', 'utf-8') AS b, 1.75 AS n, TIMESTAMP '2026-02-02 00:00:00.9996Z' AS t"
    _, answers = run_query(
        mq.namespace, f"SELECT {expression} FROM ({rows} UNION ALL {rows})", dialect=SqlDialect.spark
    )
    assert next(answers) == (expected,)


@pytest.mark.parametrize(
    "expression",
    [
        "length(max(value))",
        "CAST(max(value) AS STRING)",
        "extract(second FROM timestamp)",
        "date_part('dow', timestamp)",
    ],
)
def test_expression_that_duckdb_would_compute_otherwise_is_refused(mq: Connection, expression: str) -> None:
    assert "DuckDB" in run(mq, f"SELECT {expression} FROM log").stderr
