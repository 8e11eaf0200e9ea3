"""Rows of small letters are in steps until a pass writes them: readable at once, and written once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decided import read_steps
from unit.served import run_leader, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import log_reader
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.data_file import read_file_facts, write_data_file
from lakemq.engine.protocol.codec.steps import decode_step_rows
from lakemq.engine.protocol.rows.log import collect_journaled_rows
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.sequencer import projector
from lakemq.engine.sequencer.projector import write_journaled_rows
from lakemq.errors import FileTruncated
from lakemq.tables.specs.messages import MESSAGES

pytestmark = [pytest.mark.slow, pytest.mark.extended]

HOURS_MS = 3_600_000
CONFIG = {"engine.idle.ms": 2, "lease.ms": 2_000, "project.interval.ms": HOURS_MS}
FEW = 5


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    """A namespace that projects nothing until its leader hands over."""
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as connection:
        yield connection


def publish(mq: Connection, *texts: str, topic: str = "t") -> None:
    for text in texts:
        mq.publish(topic, pa.table({"value": [text]}))


def publish_riding(mq: Connection, count: int = FEW) -> list[str]:
    """Publish this many messages, each in a step of its own, and return their values."""
    mq.topics.create("t")
    texts = [f"m{i}" for i in range(count)]
    publish(mq, *texts)
    return texts


def data_files(mq: Connection) -> list[Path]:
    return sorted(Path(mq.namespace.files.root, MESSAGES.name).glob("*.parquet"))


def list_steps(mq: Connection) -> list[Step]:
    return read_steps(mq.namespace.store)


def read_stored_values(mq: Connection) -> list[str]:
    """Return the values that SQL reads."""
    _, rows = run_query(mq.namespace, """SELECT "value" FROM log ORDER BY "partition", "offset" """)
    return [bytes(value).decode() for (value,) in rows]


# -- readable at once -----------------------------------------------------------------------------------


def test_rows_in_a_step_are_read_at_once_without_a_file(mq: Connection) -> None:
    with run_leader(mq):
        texts = publish_riding(mq)
        assert data_files(mq) == []
        assert values(mq, "t") == texts
        with lakemq.connect(mq.namespace.path) as later:
            assert values(later, "t") == texts
            assert [m.value.decode() for m in later.fetch("t", start=2)] == texts[2:]
            assert later.offsets_for_times("t", {0: datetime(2001, 1, 1, tzinfo=UTC)})[0][0] == 0
        assert len(set(mq.fetch("t").plan.segments["file_id"].to_pylist())) == 1


def test_a_fetch_that_was_planned_before_reads_the_same_afterwards(mq: Connection) -> None:
    with run_leader(mq) as leader:
        texts = publish_riding(mq)
        planned = mq.fetch("t")
    leader.resign()
    assert len(data_files(mq)) == 1
    for fetched in (planned, mq.fetch("t")):
        assert [value.decode() for value in fetched.to_arrow()["value"].to_pylist()] == texts


# -- written once -------------------------------------------------------------------------------------------


def test_one_pass_writes_one_file_with_all_rows_in_order(mq: Connection) -> None:
    with run_leader(mq) as leader:
        texts = publish_riding(mq)
    leader.resign()
    (file,) = data_files(mq)
    table = pq.read_table(file)
    assert [value.decode() for value in table["value"].to_pylist()] == texts
    assert table["row"].to_pylist() == list(range(FEW))
    assert read_stored_values(mq) == texts
    (stored_file,) = mq.namespace.store.open(MESSAGES).files()
    assert (stored_file.record_count, stored_file.size_bytes) == (FEW, file.stat().st_size)


def test_next_leader_writes_the_file_that_a_dead_leader_named(mq: Connection) -> None:
    with run_leader(mq):
        texts = publish_riding(mq)
        (file_id,) = set(mq.fetch("t").plan.segments["file_id"].to_pylist())
    with run_leader(mq) as second:
        publish(mq, "later")
        assert data_files(mq) == []
        assert values(mq, "t") == [*texts, "later"]
    second.resign()
    first, later = sorted(data_files(mq), key=lambda path: pq.read_metadata(path).num_rows, reverse=True)
    assert int(first.stem, 16) == file_id
    assert pq.read_table(later)["value"].to_pylist() == [b"later"], "nobody goes on with another's file"
    assert read_stored_values(mq) == values(mq, "t") == [*texts, "later"]


def test_file_that_a_dead_leader_wrote_is_not_written_again(mq: Connection) -> None:
    with run_leader(mq):
        texts = publish_riding(mq)
    (rows,) = collect_journaled_rows(list_steps(mq))
    write_journaled_rows(mq.namespace.files, rows)
    (written,) = data_files(mq)
    written_ns = written.stat().st_mtime_ns
    with run_leader(mq) as second:
        pass
    second.resign()
    assert [(file, file.stat().st_mtime_ns) for file in data_files(mq)] == [(written, written_ns)]
    assert read_stored_values(mq) == values(mq, "t") == texts


@pytest.mark.parametrize("wrong", ["junk", "other rows", "no digest"])
def test_file_with_other_rows_is_not_adopted(mq: Connection, wrong: str) -> None:
    with run_leader(mq):
        publish_riding(mq)
    journaled = list_steps(mq)
    (rows,) = collect_journaled_rows(journaled)
    if wrong == "junk":
        mq.namespace.files.put(f"messages/{rows.file_id:016x}.parquet", b"junk")
    elif wrong == "other rows":
        (short,) = collect_journaled_rows(journaled[:-1])
        write_journaled_rows(mq.namespace.files, short)
    else:
        write_data_file(mq.namespace.files, rows.file_id, decode_step_rows(rows.bodies))
    with pytest.raises(FileTruncated, match="does not hold the rows that the steps have"):
        write_journaled_rows(mq.namespace.files, rows)
    with run_leader(mq) as second:
        pass
    with pytest.raises(FileTruncated):
        second.resign()
    assert mq.namespace.store.open(MESSAGES).files() == []
    assert read_stored_values(mq) == []


# -- bounds -------------------------------------------------------------------------------------------------


def test_rows_of_a_step_above_the_bound_are_a_file_at_once(tmp_path: Path) -> None:
    config = {**CONFIG, "journal.rows.max.bytes": 1_000}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq, run_leader(mq):
        mq.topics.create("t")
        publish(mq, "small")
        assert data_files(mq) == []
        publish(mq, "x" * 2_000)
        assert len(data_files(mq)) == 1
        assert values(mq, "t") == ["small", "x" * 2_000]


def test_riding_rows_above_the_bound_are_written_to_a_file(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "MAX_BYTES", 3_000)
    with run_leader(mq):
        mq.topics.create("t")
        publish(mq, *(f"{n}".ljust(600) for n in range(10)))
        assert 4 <= len(data_files(mq)) < 10
        assert [text.strip() for text in values(mq, "t")] == [f"{n}" for n in range(10)]


def test_reader_drops_rows_of_steps_that_are_in_a_file(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MOST_TAIL_BYTES", 0)
    with run_leader(mq) as leader:
        texts = publish_riding(mq)
        assert values(mq, "t") == texts, "there is no file to read them from"
        rows = mq._fetcher._reader._view.tail_rows
        assert rows._size_bytes > 0
    leader.resign()
    with mq.serving():
        publish(mq, "more")
        assert values(mq, "t") == [*texts, "more"]
        rows = mq._fetcher._reader._view.tail_rows
        assert sum(len(part.body) for parts in rows._parts.values() for part in parts) == rows._size_bytes
        assert all(read_file_facts(mq.namespace.files, file_id) is None for file_id in rows._parts)
