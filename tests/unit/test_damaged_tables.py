"""Errors for tables with rows that were never written, and errors that must not be reported as such damage."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from lawless_writer import ignore_protocol
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql import query as sql_query
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.load import load_state, read_watermark
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.engine.protocol.projection import RESTORED
from lakemq.engine.protocol.values.journal import FORMAT_VERSION
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.errors import NewerFormat, RequestTimedOut, StorageError, TableDamaged
from lakemq.tables.specs.topics import SEGMENTS

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CONFIG = {"engine.tick.ms": 10, "project.interval.ms": 10}


@pytest.fixture(scope="module")
def projected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a namespace with a projected topic."""
    path = tmp_path_factory.mktemp("projected") / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t")
    return path


@pytest.fixture
def path(projected: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(projected, tmp_path / "mq")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a namespace with a row in each table from which the state is restored, all projected."""
    path = tmp_path_factory.mktemp("busy") / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t", 2)
        with mq.producer("tx") as producer:
            producer.begin_transaction()
            producer.send("t", "x")
            producer.commit_transaction()
        with mq.producer() as producer:
            producer.send("t", "x")
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[Connection]:
    with lakemq.connect(str(path)) as mq:
        yield mq


@pytest.mark.parametrize("name", ["../../elsewhere.parquet", "file:///etc/hostname", ".hidden.parquet", "%2e%2e/x"])
def test_an_entry_that_leads_out_of_its_table_is_damage(path: Path, reader: Connection, name: str) -> None:
    """It is no file that is gone and can be put back."""
    version = len(list((path / "topics/_delta_log").glob("*.json")))
    added = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    (path / f"topics/_delta_log/{version:020d}.json").write_text(json.dumps({"add": added}), encoding="utf-8")
    for query in (reader.topics.list, partial(reader.sql, "SELECT count(*) FROM topics")):
        with pytest.raises(
            TableDamaged, match=r"The log of topics names .*, which is no file in its folder"
        ) as damaged:
            query()
        assert not damaged.value.retriable


def flip_bit_of_column(file: Path, index: int) -> None:
    """Flip a bit in the last page of a column."""
    column = pq.read_metadata(file).row_group(0).column(index)
    begin = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin + column.total_compressed_size - 1] ^= 1
    file.write_bytes(content)


def test_sql_on_a_table_whose_log_is_damaged_is_a_storage_error(path: Path, reader: Connection) -> None:
    entry = max((path / "segments/_delta_log").glob("*.json"))
    entry.write_bytes(b"[" + entry.read_bytes()[1:])
    with pytest.raises(StorageError, match="segments"):
        reader.sql("SELECT count(*) FROM segments")


SELECT_VALUES = "SELECT value FROM log_committed"


@pytest.fixture
def data_file(path: Path) -> Path:
    """The file of a topic's messages."""
    with lakemq.connect(path, config=CONFIG) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["a" * 100] * 100}))
        mq.sql("SELECT 1", wait_ms=10_000)
    (file,) = (path / "messages").glob("*.parquet")
    return file


def test_sql_on_a_damaged_page_is_a_damaged_table(data_file: Path, reader: Connection) -> None:
    """It is not a mistake in the query."""
    assert reader.sql(SELECT_VALUES).num_rows == 100
    flip_bit_of_column(data_file, pq.read_schema(data_file).get_field_index("value"))
    with pytest.raises(TableDamaged, match=r"A file of a table is damaged\..*CRC") as damaged:
        reader.sql(SELECT_VALUES)
    assert not damaged.value.retriable
    with pytest.raises(TableDamaged, match="CRC"):
        list(run_query(reader.namespace, SELECT_VALUES)[1])


def test_sql_on_a_file_that_is_gone_is_a_storage_error(data_file: Path, reader: Connection) -> None:
    data_file.unlink()
    for query in (reader.sql, partial(run_query, reader.namespace)):
        with pytest.raises(StorageError, match=f"is gone: put it back.*{re.escape(data_file.name)}") as gone:
            query(SELECT_VALUES)
        assert gone.value.retriable


def test_create_of_a_topic_that_cannot_be_read_is_not_reported_as_refused(
    path: Path, reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(query: Any) -> Any:
        raise StorageError("The store gives no answer.")

    with reader.serving():
        monkeypatch.setattr(reader.topics, "_look", fail)
        with pytest.raises(RequestTimedOut, match="was decided, but topic new cannot be read"):
            reader.topics.create("new")
        with pytest.raises(RequestTimedOut, match="was decided"):
            reader.topics.alter("new", {"max.message.bytes": 1_000})
        monkeypatch.undo()
        assert reader.topics.describe("new").settings["max.message.bytes"] == 1_000


def test_a_step_of_a_newer_format_is_named(path: Path) -> None:
    """A bit that flips in its first bytes looks like one."""
    step = max((path / "steps").iterdir())
    step.write_bytes(step.read_bytes().replace(bytes([FORMAT_VERSION]), bytes([FORMAT_VERSION | 64]), 1))
    with lakemq.connect(path) as mq, pytest.raises(NewerFormat, match=rf"steps/{step.name}, or its first bytes are"):
        mq.topics.list()


def step_forever(sequencer: Sequencer) -> None:
    while True:
        sequencer.step()


def change_newest_entry(table: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change an action of the newest entry in a table's log, as a bit that flips does."""
    entry = max((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        change(action)
    entry.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def test_a_table_that_claims_later_steps_than_the_log_has_gets_no_rows(path: Path) -> None:
    """Its rows would be left out as written already."""

    def set_last_step(action: dict[str, Any]) -> None:
        if action.get("txn", {}).get("appId") == "lakemq":
            action["txn"]["version"] += 1_000

    with lakemq.connect(path, config=CONFIG) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["a"]}))
        mq.sql("SELECT 1", wait_ms=10_000)
    change_newest_entry(path / "segments", set_last_step)
    with lakemq.connect(path, config=CONFIG) as mq:
        sequencer = mq.sequencer()
        until(sequencer.try_lead)
        published = threading.Thread(target=mq.publish, args=("t", pa.table({"value": ["b"]})))
        published.start()
        with pytest.raises(TableDamaged, match=r"segments has steps up to \d+, the log up to \d+"):
            step_forever(sequencer)
        published.join(30)


def test_segment_without_a_file_raises_table_damaged(path: Path) -> None:
    with lakemq.connect(path, config=CONFIG) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["a"]}))
        mq.sql("SELECT 1", wait_ms=10_000)
    rows = pa.table(DeltaTable(str(path / SEGMENTS.name)).to_pyarrow_table())
    index = rows.column_names.index("file_id")
    rows = rows.set_column(index, rows.schema.field(index), pa.nulls(rows.num_rows, pa.int64()))
    with ignore_protocol(path / SEGMENTS.name) as copy:
        write_deltalake(copy, rows, mode="overwrite")
    with lakemq.connect(path) as mq, pytest.raises(TableDamaged, match="names no rows of a file"):
        mq.fetch("t")


TOPIC_T = {"topic_id": 1, "topic": "t"}


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("partitions", {"open_transactions": [None]}, "partitions.open_transactions has a null in a list"),
        ("producers", {"units": [None]}, "producers.units has a null in a list"),
        ("transactional_ids", {"partitions": [None]}, "transactional_ids.partitions has a null in a list"),
        ("transactional_ids", {"offsets": [{"group": "g", "offsets": None}]}, "offsets has a null in a list"),
        ("partitions", {**TOPIC_T, "partition": -1}, "a partition of t beyond its 2"),
        ("partitions", {**TOPIC_T, "partition": 2}, "a partition of t beyond its 2"),
        (
            "partitions",
            {**TOPIC_T, "high_watermark": -7, "log_start_offset": 5},
            "a log of t that ends before it starts",
        ),
        (
            "partitions",
            {**TOPIC_T, "high_watermark": -7, "log_start_offset": -7},
            "a log of t that ends before it starts",
        ),
        ("topics", {"config": None}, "topics.config is null"),
        ("topics", {"config": "5"}, r"topics version \d+: WRITE"),
        ("topics", {"topic_id": 77}, "two topics t"),
        ("topics", {"partition_count": 2**31 - 1}, "t with 2147483647 partitions"),
        ("topics", {"partition_count": -1}, "t with -1 partitions"),
        ("watermarks", {"step": 1000, "next_topic_id": 1}, "watermarks goes up to step 1000, expected"),
    ],
    ids=str,
)
def test_a_row_that_was_never_written_is_named(
    table: str, changes: dict[str, Any], message: str, busy: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(busy, tmp_path / "mq")
    stored = DeltaTable(str(path / table)).to_pyarrow_table()
    mark = max(DeltaTable(str(path / "watermarks")).to_pyarrow_table()["step"].to_pylist())
    row = max(stored.to_pylist(), key=lambda row: row["step"]) | {"step": mark} | changes
    with ignore_protocol(path / table) as copy:
        write_deltalake(copy, pa.Table.from_pylist([row], stored.schema), mode="append")
    with lakemq.connect(str(path)) as mq, pytest.raises(TableDamaged, match=message):
        mq.step_until_idle()


@pytest.mark.parametrize("table", ["partitions", "topics", "producers", "transactional_ids"])
def test_the_loss_of_the_newest_log_entry_of_a_table_is_named(table: str, busy: Path, tmp_path: Path) -> None:
    """Without the check a fetch shows fewer messages, and the next sequencer gives out their offsets again."""
    path = shutil.copytree(busy, tmp_path / "mq")
    newest = max((path / table / "_delta_log").glob("*.json"))
    newest.unlink()
    version = int(newest.stem)
    named = f"{table} is at version {version - 1}, expected {version} or later"
    with lakemq.connect(str(path)) as mq:
        with pytest.raises(TableDamaged, match=named):
            mq.sql("SELECT count(*) FROM log")
        with pytest.raises(TableDamaged, match=named):
            load_state(mq.namespace.store, read_watermark(mq.namespace.store), RESTORED)
        with pytest.raises(TableDamaged, match=named):
            mq.step_until_idle()
    assert max((path / table / "_delta_log").glob("*.json")).stem == f"{version - 1:020}", "a commit took its place"


@pytest.mark.parametrize("table", ["messages", "segments", "journal"])
def test_no_commit_takes_the_place_of_a_lost_log_entry(
    table: str, busy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pass fails, each time after a longer pause, although steps succeed between."""
    path = shutil.copytree(busy, tmp_path / "mq")
    newest = max((path / table / "_delta_log").glob("*.json"))
    newest.unlink()
    with lakemq.connect(str(path), config=CONFIG) as mq:
        with pytest.raises(TableDamaged, match=f"{table} is at version {int(newest.stem) - 1}"):
            mq.sql("SELECT count(*) FROM log")
        with mq.serving():
            mq.publish("t", pa.table({"value": ["y"]}))
            until(lambda: "tries again in 400 ms: TABLE_DAMAGED" in caplog.text)
    assert not newest.exists()


def test_a_transaction_that_contradicts_its_partitions_ends_no_step(
    busy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction is open by one table, and ended by the other. Only its timeout cannot be decided."""
    path = shutil.copytree(busy, tmp_path / "mq")
    stored = DeltaTable(str(path / "transactional_ids")).to_pyarrow_table()
    mark = max(DeltaTable(str(path / "watermarks")).to_pyarrow_table()["step"].to_pylist())
    row = stored.to_pylist()[-1] | {"step": mark, "state": "Ongoing", "started_at_ms": 1, "timeout_ms": 1}
    row |= {"partitions": [{"topic_id": 1, "partition": 0}]}
    with ignore_protocol(path / "transactional_ids") as copy:
        write_deltalake(copy, pa.Table.from_pylist([row], stored.schema), mode="append")
    with lakemq.connect(str(path), config=CONFIG) as mq, mq.serving() as serving:
        until(lambda: "unexpected error" in caplog.text)
        for name in ("a", "b"):
            mq.topics.create(name)
        assert serving.error is None
    assert caplog.text.count("The timer of ('tx'") == 1


def test_result_of_a_newer_version_is_not_reported_as_damage(path: Path, reader: Connection) -> None:
    table = DeltaTable(str(path / "clients")).to_pyarrow_table()
    newer = table.to_pylist()[-1] | {"client_id": "newer", "results": '[{"outcome":"topic_archived"}]'}
    with ignore_protocol(path / "clients") as copy:
        write_deltalake(copy, pa.Table.from_pylist([newer], table.schema), mode="append")
    with pytest.raises(NewerFormat, match="a result topic_archived"):
        reader.step_until_idle()


READS: dict[str, Callable[[Connection], object]] = {
    "fetch": lambda mq: len(mq.fetch("t")),
    "tail": lambda mq: next(mq.tail("t", start="earliest")),
    "consumer": lambda mq: mq.consumer("g", assign=["t"]).poll(timeout_ms=0),
    "state": lambda mq: mq.state(),
    "offsets": lambda mq: mq.end_offsets("t"),
    "groups": lambda mq: mq.groups.list(),
    "sql": lambda mq: mq.sql("SELECT 1"),
}
"""Each way to read steps, with a new connection."""


def find_damage(path: str, way: str) -> str | None:
    """Return the name of the step that a new reader finds damaged."""
    try:
        with lakemq.connect(path) as reader:
            READS[way](reader)
    except TableDamaged as damaged:
        return next(iter(re.findall(r"steps/(\d+)", str(damaged))), None)
    return None


@pytest.mark.parametrize(
    ("damage", "from_newest"),
    [("a bit flipped", 1), ("truncated", 3), ("empty", 1), ("another step", 3), ("missing", 3), ("missing", 4)],
)
def test_a_step_whose_bytes_were_changed_is_refused_by_its_name(tmp_path: Path, damage: str, from_newest: int) -> None:
    """A follower that stands before the step, and a new reader, get no changed message, and not only those before."""
    config = {"project.interval.ms": 600_000}
    with (
        lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq,
        mq.serving(),
        lakemq.connect(mq.namespace.path) as follower,
    ):
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["first"]}))
        assert len(follower.fetch("t")) == 1
        for number in range(5):
            mq.publish("t", pa.table({"value": [f"message {number}"]}))
        steps = sorted(step for step in (tmp_path / "mq/steps").iterdir() if step.name.isdigit())
        step = steps[-from_newest]
        body = step.read_bytes()
        changed = {
            "a bit flipped": body.replace(b"message", b"massage"),
            "truncated": body[: len(body) // 2],
            "empty": b"",
            "another step": steps[-from_newest - 1].read_bytes(),
        }
        step.unlink()
        if damage != "missing":
            step.write_bytes(changed[damage])
        with pytest.raises(TableDamaged, match=step.name):
            follower.fetch("t")
        assert [way for way in READS if find_damage(mq.namespace.path, way) != step.name] == []
        # so that the sequencer, which stops at a changed step, ends in order
        step.unlink(missing_ok=True)
        step.write_bytes(body)


def test_a_lost_step_that_the_tables_hold_is_no_damage(tmp_path: Path) -> None:
    """A leader that goes on projects it from its memory. A reader that stood before it loads again."""
    with (
        lakemq.connect(str(tmp_path / "mq"), create=True, config={"project.interval.ms": 600_000}) as mq,
        mq.serving() as sequencer,
        lakemq.connect(mq.namespace.path) as follower,
    ):
        mq.topics.create("t")
        assert len(follower.fetch("t")) == 0
        for _ in range(3):
            mq.publish("t", pa.table({"value": ["m"]}))
        sorted((tmp_path / "mq/steps").iterdir())[-2].unlink()
        with pytest.raises(TableDamaged):
            follower.fetch("t")
        sequencer.close()
        assert len(follower.fetch("t")) == 3


@pytest.mark.parametrize("is_planned", [False, True], ids=["before the plan", "while it runs"])
def test_a_query_that_outlives_replaced_files_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planned: bool
) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True) as mq:
        for topic in "ab":
            with mq.serving():
                mq.topics.create(topic)
        snapshot, connect = take_snapshot(mq.namespace.store), sql_query.connect_duckdb
        old = [Path(file.path).name for file in snapshot.handles["topics"].files()]

        def replace_files(*arguments: Any, **options: Any) -> Any:
            connection = connect(*arguments, **options) if is_planned else None
            with ignore_protocol(path / "topics") as copy:
                DeltaTable(copy).optimize.compact()
            for name in old:
                (path / "topics" / name).unlink()
            return connection or connect(*arguments, **options)

        monkeypatch.setattr(sql_query, "connect_duckdb", replace_files)
        with pytest.raises(StorageError, match=r"longer than reader\.grace\.ms") as gone:
            sql_query.query_table(mq.namespace, "SELECT topic FROM topics", SqlDialect.spark, snapshot)
        assert gone.value.found in [f"topics/{name}" for name in old]
