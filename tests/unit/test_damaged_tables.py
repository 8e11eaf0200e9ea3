"""Errors for tables with rows that were never written, and errors that must not be reported as such damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.loading import load as recovery
from lakemq.errors import NewerFormat, TableDamaged

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CONFIG = {"engine.tick.ms": 10, "project.interval.ms": 10}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a namespace with a projected topic."""
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t")
    return tmp_path / "mq"


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


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("topics", "config", None),
        ("topics", "config", "5"),
        ("topics", "partition_count", None),
        ("partitions", "high_watermark", None),
        ("watermarks", "next_topic_id", None),
    ],
)
def test_a_value_that_was_never_written_is_named(
    table: str, column: str, value: Any, path: Path, reader: Connection
) -> None:
    rows = pa.table(DeltaTable(str(path / table)).to_pyarrow_table())
    index = rows.column_names.index(column)
    field = rows.schema.field(index)
    changed = rows.set_column(index, field, pa.array([value] * rows.num_rows, field.type))
    write_deltalake(str(path / table), changed, mode="overwrite")
    with pytest.raises(TableDamaged, match=rf"{table} version \d+: WRITE \(Overwrite\)") as damaged:
        reader.topics.list()
    assert value is not None or f"{table}.{column} is null" in str(damaged.value)


def test_a_bit_that_flips_in_a_page_of_a_table_is_told_with_the_file(path: Path) -> None:
    (file,) = map(Path, DeltaTable(str(path / "topics")).file_uris())
    column = pq.read_metadata(file).row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 1
    file.write_bytes(content)
    with (
        lakemq.connect(str(path)) as mq,
        pytest.raises(TableDamaged, match=rf"topics/{file.name} is damaged.*CRC") as damaged,
    ):
        mq.topics.list()
    assert not damaged.value.retriable


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
    write_deltalake(str(path / table), pa.Table.from_pylist([row], stored.schema), mode="append")
    with lakemq.connect(str(path)) as mq, pytest.raises(TableDamaged, match=message):
        mq.step_until_idle()


def test_a_transaction_that_contradicts_its_partitions_ends_no_step(
    busy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction is open by one table, and ended by the other. Only its timeout cannot be decided."""
    path = shutil.copytree(busy, tmp_path / "mq")
    stored = DeltaTable(str(path / "transactional_ids")).to_pyarrow_table()
    mark = max(DeltaTable(str(path / "watermarks")).to_pyarrow_table()["step"].to_pylist())
    row = stored.to_pylist()[-1] | {"step": mark, "state": "Ongoing", "started_at_ms": 1, "timeout_ms": 1}
    row |= {"partitions": [{"topic_id": 1, "partition": 0}]}
    write_deltalake(str(path / "transactional_ids"), pa.Table.from_pylist([row], stored.schema), mode="append")
    with lakemq.connect(str(path), config=CONFIG) as mq, mq.serving() as serving:
        until(lambda: "unexpected error" in caplog.text)
        for name in ("a", "b"):
            mq.topics.create(name)
        assert serving.error is None
    assert caplog.text.count("The timer of ('tx'") == 1


def test_a_result_of_a_newer_version_is_none_of_damage(path: Path, reader: Connection) -> None:
    table = DeltaTable(str(path / "clients")).to_pyarrow_table()
    newer = table.to_pylist()[-1] | {"client_id": "newer", "results": '[{"outcome":"topic_archived"}]'}
    write_deltalake(str(path / "clients"), pa.Table.from_pylist([newer], table.schema), mode="append")
    with pytest.raises(NewerFormat, match="a result topic_archived"):
        reader.step_until_idle()


def test_a_log_that_cannot_be_read_does_not_hide_the_damage(
    path: Path, reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: DeltaTable) -> None:
        raise DeltaError("half a line")

    DeltaTable(str(path / "topics")).delete()
    monkeypatch.setattr(DeltaTable, "history", refuse)
    with pytest.raises(TableDamaged, match=r"topics lacks topic 1.*unknown, because a log cannot be read"):
        reader.topics.list()


@pytest.mark.parametrize("error_type", [TypeError, AttributeError])
def test_a_mistake_of_ours_is_not_told_as_damage(
    error_type: type[Exception], reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error_type("a mistake")

    monkeypatch.setattr(recovery, "restore", fail)
    with pytest.raises(error_type, match="a mistake"):
        reader.topics.list()


@pytest.mark.parametrize("damage", ["a bit flipped", "truncated", "empty", "another step"])
@pytest.mark.parametrize("from_newest", [1, 3])
def test_a_step_whose_bytes_were_changed_is_refused_by_its_name(tmp_path: Path, damage: str, from_newest: int) -> None:
    """A follower that stands before the step, and a new reader, get no changed message."""
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
        step.write_bytes(changed[damage])
        with lakemq.connect(mq.namespace.path) as new_reader:
            for reader in follower, new_reader:
                with pytest.raises(TableDamaged, match=step.name):
                    reader.fetch("t")
        # so that the sequencer, which stops at a changed step, ends in order
        step.unlink()
        step.write_bytes(body)
