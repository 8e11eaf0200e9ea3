"""SQL shows decided messages: the views are dense, hide deleted messages, and never show a segment without its rows."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from targets import extended_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import NamespaceError
from lakemq.tables.specs.groups import LIVE_TABLES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.delta import catalog
from lakemq.tables.views import VIEWS

CHECKOUT = Path(__file__).parents[2]


FOREIGN_STATEMENTS = (
    "UPDATE guarded.topics SET topic = 'other'",
    "DELETE FROM guarded.segments",
    "INSERT INTO guarded.messages SELECT * FROM guarded.messages",
    "MERGE INTO guarded.topics t USING guarded.topics s ON t.topic = s.topic WHEN MATCHED THEN DELETE",
    "OPTIMIZE guarded.segments ZORDER BY (topic_id)",
    "VACUUM guarded.messages",
    "TRUNCATE TABLE guarded.partitions",
    "RESTORE TABLE guarded.topics TO VERSION AS OF 0",
    "ALTER TABLE guarded.topics SET TBLPROPERTIES ('delta.appendOnly' = 'true')",
)


def rows(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"key": [f"k{i % 10}" for i in numbers], "value": [str(i) for i in numbers]})


def test_every_table_and_view_is_registered(spark: SparkSession, mq: Connection) -> None:
    names = {table.name for table in spark.catalog.listTables("mq")}
    assert names == {spec.name for spec in (*TABLES, *LIVE_TABLES)} | set(VIEWS)


@pytest.mark.extended
def test_live_tables_in_spark_are_those_of_sql_and_as_of_each_query(
    spark: SparkSession, mq: Connection, topic: str
) -> None:
    mq.topics.create(topic, partitions=2)
    with mq.consumer(topic, topics=[topic], protocol="cooperative") as first:
        while not first.assignment():
            first.poll(timeout_ms=100)
        second = mq.consumer(topic, topics=[topic], protocol="cooperative")
        members = spark.table("mq.member_state").where(F.col("group") == topic)
        while not mq.sql(f"SELECT 1 FROM group_waits WHERE group = '{topic}'").num_rows:
            second.poll(timeout_ms=100)  # the first is to give up a partition, and does not poll
        for spec in LIVE_TABLES:
            columns = ", ".join(name for name in spec.schema.names if name != "consumption_rate")
            shown = spark.sql(f"SELECT {columns} FROM mq.{spec.name}").toArrow()
            expected = mq.sql(f"SELECT {columns} FROM {spec.name}")
            assert shown.cast(expected.schema).to_pylist() == expected.to_pylist(), spec.name
            assert spec.name == "cut_keys" or shown.num_rows
            assert spark.table(f"mq.{spec.name}").schema.names == spec.schema.names
        assert members.count() == 2
        second.close()
        assert members.count() == 1


@pytest.mark.extended
def test_connecting_reads_no_table(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = []

    def record(session: SparkSession, text: str) -> None:
        statements.append(text)
        run(session, text)

    run = SparkSession.sql
    lakemq.connect(str(tmp_path / "unread"), create=True).close()
    monkeypatch.setattr(SparkSession, "sql", record)
    for _ in range(2):
        lakemq.connect(str(tmp_path / "unread"), spark=spark).close()
    assert [text.split(" COMMENT")[0] for text in statements] == ["CREATE DATABASE IF NOT EXISTS `unread`"]
    monkeypatch.undo()
    spark.sql("DROP DATABASE unread CASCADE")


@pytest.mark.extended
def test_spark_refuses_to_write_the_tables_of_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    """Only `inbox` is open. A dropped table loses its name in this session, and is there for everybody else."""
    path = tmp_path / "guarded"
    with lakemq.connect(str(path), spark=spark, create=True) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", rows(3))
        mq.sql("SELECT 1", wait_ms=10_000)
        for statement in FOREIGN_STATEMENTS:
            with pytest.raises(Exception, match=r"UnsupportedTableFeature|DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"):
                spark.sql(statement)
        spark.sql("INSERT INTO guarded.inbox (topic, value) VALUES ('t', '4')")
        assert mq.drain_inbox().record_count == 1
        spark.sql("DROP TABLE guarded.topics")
        assert [value.decode() for value in mq.fetch("t").to_arrow()["value"].to_pylist()] == ["0", "1", "2", "4"]
    with lakemq.connect(str(path), spark=spark):
        assert spark.table("guarded.topics").count() == 1
    spark.sql("DROP DATABASE guarded CASCADE")
    with lakemq.connect(str(path)) as mq:
        assert mq.fetch("t").to_arrow().num_rows == 4


def describe_entries(spark: SparkSession, database: str) -> dict[str, dict[str, object]]:
    """Return the catalog's entries of tables and views, without their times, and the columns of a query of each."""
    session_catalog, jvm, descriptions = spark._jsparkSession.sessionState().catalog(), spark._jvm, {}
    assert jvm is not None
    for name in [*(spec.name for spec in TABLES), *VIEWS]:
        table_identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, jvm.scala.Option.apply(database))
        entry = session_catalog.getTableMetadata(table_identifier)
        names = entry.productElementNames().mkString(",").split(",")
        fields = {field: entry.productElement(position) for position, field in enumerate(names)}
        del fields["createTime"]
        kept_properties = ("view.query.", "view.schemaMode", "view.sqlConfig.spark.sql.")
        lines = fields.pop("properties").mkString("\n").splitlines()
        descriptions[name] = {field: str(value) for field, value in fields.items()}
        descriptions[name]["properties"] = sorted(line for line in lines if line.startswith(kept_properties))
        # A declared column may be null, even if the query says that it never is.
        descriptions[name]["schema"] = str(fields["schema"]).replace(",false)", ",true)")
        descriptions[name]["queried"] = spark.table(f"{database}.{name}").schema
    return descriptions


@pytest.mark.extended
def test_catalog_entries_equal_those_of_sql_statements(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakemq.connect(str(tmp_path / "alike"), spark=spark, create=True):
        entries = describe_entries(spark, "alike")
    spark.sql("DROP DATABASE alike CASCADE")
    monkeypatch.setattr(catalog, "has_delta_session_catalog", lambda spark: False)
    with lakemq.connect(str(tmp_path / "alike"), spark=spark):
        assert describe_entries(spark, "alike") == entries
    spark.sql("DROP DATABASE alike CASCADE")


@pytest.mark.parametrize("view", extended_but(["log_committed"], ["log", "log_committed"]))
def test_the_views_hold_what_was_published(
    spark: SparkSession, mq: Connection, topic: str, wait_for_projection: Callable[[], None], view: str
) -> None:
    mq.topics.create(topic, partitions=3)
    for first in range(0, 300, 100):
        mq.publish(topic, rows(100, first))
    wait_for_projection()
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    rows_in_view = spark.table(f"mq.{view}").where(F.col("topic") == topic).select(columns)
    fetched = mq.fetch(topic).to_arrow().select(columns)
    assert rows_in_view.orderBy("partition", "offset").toArrow().cast(fetched.schema).equals(fetched)
    assert fetched.num_rows == 300


@pytest.mark.nightly
def test_a_query_sees_no_segment_without_its_rows_while_projection_runs(spark: SparkSession, tmp_path: Path) -> None:
    name = f"busy_{tmp_path.parent.name.replace('-', '_')}"
    # it projects after every step, so most queries take their snapshots during a projection
    busy = lakemq.connect(str(tmp_path / name), spark=spark, create=True, config={"project.interval.ms": 0})
    stop, published = threading.Event(), 0

    def publish() -> None:
        nonlocal published
        while not stop.wait(0.2):
            busy.publish("t", rows(20, published))
            published += 20

    with busy, busy.serving():
        busy.topics.create("t", partitions=2)
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            counts = list(watch(spark, name))
        finally:
            stop.set()
            thread.join()
    assert counts == sorted(set(counts))


def watch(spark: SparkSession, name: str) -> Iterator[int]:
    """Yield the number of messages in the view, again and again: as many as its own snapshot of `segments` has.

    All scans of a table in one query use the same snapshot. A check for holes would show little, because the newest
    rows are the ones that could be missing. Three queries suffice: one takes long enough for passes to land between two
    of its snapshots, and with `messages` before `segments` in the view the first query fails.
    """
    query = f"""
        SELECT coalesce(n, 0) AS n, ends
        FROM (SELECT partition, count(*) AS n FROM {name}.log_committed GROUP BY partition)
        RIGHT JOIN (SELECT partition, max(base_offset + record_count) AS ends FROM {name}.segments GROUP BY partition)
        USING (partition)"""
    for _ in range(3):
        partitions = spark.sql(query).collect()
        assert [row.n for row in partitions] == [row.ends for row in partitions]
        yield sum(row.n for row in partitions)


@pytest.mark.extended
def test_another_namespace_of_the_same_name_is_refused(spark: SparkSession, mq: Connection, tmp_path: Path) -> None:
    with pytest.raises(NamespaceError, match="another name"):
        lakemq.connect(str(tmp_path / "mq"), spark=spark, create=True)
    with pytest.raises(NamespaceError, match="default"):
        lakemq.connect(str(tmp_path / "default"), spark=spark, create=True)


@pytest.mark.extended
def test_the_command_starts_spark_sql_and_leaves_nothing_behind(
    mq: Connection,
    topic: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    wait_for_projection: Callable[[], None],
) -> None:
    mq.topics.create(topic, partitions=2)
    mq.publish(topic, rows(50))
    wait_for_projection()
    # the name under which Spark finds the format, as in an environment where the wheel is installed
    site = tmp_path_factory.mktemp("site")
    (site / "pyspark_lakemq").symlink_to(CHECKOUT / "pyspark_lakemq")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    scratch = tmp_path_factory.mktemp("scratch")
    inherited |= {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    inherited["JDK_JAVA_OPTIONS"] = f"{inherited.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={scratch}"
    inherited["PYTHONPATH"] = f"{site}:{inherited.get('PYTHONPATH', '')}"
    queries = [
        f"SELECT 'found', count(*), count(DISTINCT partition, offset) FROM log_committed WHERE topic = '{topic}'",
        f"CREATE TEMPORARY VIEW part USING lakemq OPTIONS (path '{mq.namespace.path}', subscribe '{topic}')",
        "SELECT 'read', count(*) FROM part",
        "SELECT current_database()",
    ]
    arguments = (mq.namespace.path, "spark-sql", "--as-of", str(mq.state().step), "--", "-e", ";".join(queries))
    completed = subprocess.run(
        [sys.executable, "-m", "lakemq.jobs.cli", "--path", *arguments],
        cwd=tmp_path,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == ["found\t50\t50", "read\t50", f"mq_at_{arguments[3]}"]
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
