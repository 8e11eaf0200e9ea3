"""Small data files are merged into one: readers see no change (I11), and files that nothing needs are removed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clocks import ManualClock
from faults.processes import MERGING_POINTS
from protocol_harness import letter_bytes
from targets import extended_but
from unit.served import everything, run_leader, until, values
from unit.test_bounded_files import ID, write_long_entry

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.fetch_result import FetchResult
from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.client.sql.query import connect_duckdb, run_query
from lakemq.engine.maintenance import housekeeping, merging
from lakemq.engine.maintenance.removal import UNLISTED_MS
from lakemq.engine.namespace.config import load_config
from lakemq.engine.namespace.data_file import file_name, write_data_file
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.protocol.values.clients import Letter
from lakemq.engine.protocol.values.log import DataFile, Produce, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.engine.sequencer.sequencer import Sequencer
from lakemq.errors import FileMissing, FileTruncated, ReadOvertaken, TableDamaged
from lakemq.jobs.doctor.namespace import check_data_files
from lakemq.tables.specs.messages import BODY_SCHEMA, MESSAGES, REJECTED_ROWS, SEQUENCERS_FILES
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.coordination.mailbox import LETTERS
from lakemq.tables.storage.delta.leftovers import FOLDER
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.tables.views import VIEWS

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
DAY_S = 86_400
CONFIG = {
    "final.interval.ms": 0,
    "engine.idle.ms": 2,
    "lease.ms": 10_000,
    "project.interval.ms": HOUR_MS,
    "compact.min.files": 2,
    "merge.grace.ms": 0,
    "inline.max.bytes": 2_000,
    "request.gap.ms": HOUR_MS,
}
TOPICS = {"a": 1, "b": 3, "stamped": 2, "purged": 2, "gone": 1}


@pytest.fixture(autouse=True)
def forget_old_watermarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no reader use an older watermark than the last but one."""
    monkeypatch.setattr(housekeeping, "LOAD_MS", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mq"


def connect(path: Path, **settings: Any) -> Connection:
    return lakemq.connect(str(path), create=True, config={**CONFIG, **settings})


@contextmanager
def lead_one_term(mq: Connection) -> Iterator[Sequencer]:
    """Lead for a term, and project at its end in two passes: all messages of the term are one data file."""
    with run_leader(mq) as sequencer:
        yield sequencer
    sequencer.resign()


def lead_briefly(mq: Connection, terms: int = 1) -> None:
    """Lead for a moment, several times."""
    for _ in range(terms):
        with lead_one_term(mq):
            pass


def publish(mq: Connection, *texts: str, topic: str = "a") -> None:
    """Publish each value in a term of its own."""
    for text in texts:
        with lead_one_term(mq):
            mq.publish(topic, pa.table({"value": [text]}))


def data_files(path: Path) -> set[str]:
    return {file.name for file in (path / MESSAGES.name).glob("*.parquet")}


def list_files_of_publishers(path: Path) -> list[Path]:
    return [path / MESSAGES.name / name for name in data_files(path) if int(name[:16], 16) < SEQUENCERS_FILES]


def age(file: Path, days: float) -> None:
    at_s = time.time() - days * DAY_S
    os.utime(file, (at_s, at_s))


def sql(mq: Connection, query: str) -> list[Any]:
    return sorted(run_query(mq.namespace, query)[1], key=repr)


CLOCK_COLUMNS = {"open_transactions": "open_ms"}
"""Columns that change while nothing happens."""


def read_views(mq: Connection) -> dict[str, list[Any]]:
    """Return the rows of every view, without the columns that change while nothing happens."""
    with connect_duckdb(mq.namespace) as database:
        rows = {
            view: database.execute(
                f"SELECT * {f'EXCLUDE {CLOCK_COLUMNS[view]}' if view in CLOCK_COLUMNS else ''} FROM {view}"
            ).fetchall()
            for view in VIEWS
        }
    return {view: sorted(view_rows, key=repr) for view, view_rows in rows.items()}


def read_everything(mq: Connection) -> dict[str, Any]:
    """Return everything that readers can see."""
    content: dict[str, Any] = read_views(mq)
    content["dead"] = sql(
        mq,
        """SELECT d.step, d.source, d.error, m.key, m.value, m.headers FROM rejected_rows d JOIN messages m
           ON m.file_id = d.file_id AND m.row >= d.first_row AND m.row < d.first_row + d.record_count""",
    )
    with lakemq.connect(mq.namespace.path) as fresh:
        for topic in [topic_info.topic for topic_info in fresh.topics.list()]:
            for isolation in ("read_committed", "read_uncommitted"):
                content[f"{topic} {isolation}"] = fresh.fetch(topic, isolation=isolation).to_arrow().to_pylist()
    return content


def make_everything(mq: Connection, number: int) -> None:
    """Make steps of every kind."""
    for topic, partitions in TOPICS.items() if number == 0 else ():
        settings = {"message.timestamp.type": "LogAppendTime"} if topic == "stamped" else {}
        mq.topics.create(topic, partitions, subscriptions=["both"] if topic in "ab" else [], config=settings)
    for topic in TOPICS:
        rows = {"value": [f"{topic}{number}.{i}" for i in range(5)], "key": [f"k{i % 3}" for i in range(5)]}
        if topic != "gone" or number < 3:
            mq.publish(topic, pa.table(rows))
    mq.publish("both", pa.table({"value": [f"both{number}", None], "key": ["k1", "k2"]}))
    odd_times = pa.array([1, -(2**55), 2, -(2**55) + number], pa.timestamp("us", "UTC"))
    mq.publish("b", pa.table({"value": ["fine", f"refused{number}", "fine", "refused"], "timestamp": odd_times}))
    for producer, commits in ((mq.producer(f"tx{number % 2}"), True), (mq.producer("aborter"), False)):
        with producer:
            producer.begin_transaction()
            for i in range(3):
                producer.send("b", f"tx{number}.{i}", key=f"k{i}", headers=[("h", b"x")])
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
    with mq.producer() as producer:
        for i in range(4):
            producer.send("a", f"sent{number}.{i}", ttl_ms=(None, 0, HOUR_MS, DAY_S)[i])
    mq.publish(
        "b", pa.table({"value": ["large".ljust(5_000, ".")], "key": ["k"]}), txn_app_id="app", txn_version=number
    )
    if number == 2:
        mq.topics.delete_records("purged", {0: 1})
    if number == 3:
        mq.topics.delete("gone")


@pytest.mark.extended
def test_views_and_fetches_do_not_change_by_a_merge(path: Path) -> None:
    with connect(path, **{"merge.grace.ms": HOUR_MS}) as mq:
        for number in range(4):
            with lead_one_term(mq):
                make_everything(mq, number)
        before, files = read_everything(mq), data_files(path)
        assert len(before["log"]) > len(before["log_committed"]) > 80
        assert len(before["dead"]) == 8
        assert len(list_files_of_publishers(path)) == 4
    for file in list_files_of_publishers(path)[:3]:
        age(file, days=2)
    segments = [rows.num_rows for rows in (mq.namespace.store.open(spec).read() for spec in (SEGMENTS, REJECTED_ROWS))]
    with connect(path) as mq:
        for terms in (1, 2):
            lead_briefly(mq, terms)
            assert read_everything(mq) == before
        remaining = data_files(path)
        assert len(remaining & files) == 1, "a publisher's file stays that may still be named"
        assert len(remaining) == 2
        assert {file.path for file in mq.namespace.store.open(MESSAGES).files()} == remaining
        store = mq.namespace.store
        assert store.open(SEGMENTS).read().num_rows < segments[0] * 0.8
        assert store.open(REJECTED_ROWS).read().num_rows == segments[1]
        assert check_data_files(mq).ok
        assert not list((path / FOLDER).glob("messages-*"))


def test_replaced_files_leave_the_table_before_the_store(path: Path) -> None:
    """Queries do not read them in vain, and those that were planned earlier still find them."""
    with connect(path, **{"merge.grace.ms": HOUR_MS}) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
        publish(mq, "m0", "m1", "m2")
        for file in data_files(path):
            age(path / MESSAGES.name / file, days=1)
        old, replaced = mq.fetch("a"), data_files(path)
        lead_briefly(mq)
        for announced in (path / FOLDER).glob("messages-*"):
            age(announced, days=UNLISTED_MS / 86_400_000 + 0.001)
        lead_briefly(mq)
        assert {file.path for file in mq.namespace.store.open(MESSAGES).files()} == data_files(path) - replaced
        assert replaced < data_files(path)
        assert texts(old) == texts(mq.fetch("a")) == ["m0", "m1", "m2"]
        assert check_data_files(mq).ok


def texts(fetched: FetchResult) -> list[str]:
    return [value.decode() for value in fetched.to_arrow()["value"].to_pylist()]


def read_before_merge(path: Path, read: Callable[[Connection], Any]) -> Any:
    """Return what a connection read before the files went, and the connection, which has not looked since."""
    with connect(path) as mq:
        with lead_one_term(mq):
            mq.topics.create("a", 2)
        with lead_one_term(mq):
            mq.publish("a", pa.table({"value": ["m0", "m1", "m2"], "key": ["0", "1", "2"]}))
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("a", "aborted", partition=0)
                producer.flush()
                producer.abort_transaction()
        publish(mq, "m3")
        with lakemq.connect(mq.namespace.path) as other:
            content_before = read(other)
            before = data_files(path)
            publish(mq, "m4")
            lead_briefly(mq, 3)
            assert not before & data_files(path)
            yield content_before, other


@pytest.mark.extended
def test_fetch_whose_files_were_merged_reads_the_merged_ones(path: Path) -> None:
    for old, _ in read_before_merge(
        path, lambda other: (other.fetch("a"), other.fetch("a", isolation="read_uncommitted"))
    ):
        committed, all_rows = old
        assert sorted(texts(committed)) == ["m0", "m1", "m2", "m3"]
        assert sorted(texts(all_rows)) == ["aborted", "m0", "m1", "m2", "m3"]
        assert sorted(value for piece in committed.pieces() for value in piece["value"].to_pylist()) == [
            b"m0",
            b"m1",
            b"m2",
            b"m3",
        ]
        assert [m.value for m in committed] == committed.to_arrow()["value"].to_pylist()


@pytest.mark.extended
def test_fetch_that_is_planned_again_keeps_messages_that_expired_since(path: Path) -> None:
    with connect(path) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
            mq.publish("a", pa.table({"value": ["stays", "brief"], "ttl_ms": [None, 5_000]}))
            expired_s = time.monotonic() + 5.1
        publish(mq, "m1")
        with lakemq.connect(mq.namespace.path) as other:
            old, before = other.fetch("a"), data_files(path)
            until(lambda: time.monotonic() > expired_s)
            publish(mq, "m2")
            lead_briefly(mq, 3)
            assert not before & data_files(path)
            assert texts(old) == ["stays", "brief", "m1"]
            assert texts(other.fetch("a")) == ["stays", "m1", "m2"]


def test_reader_with_an_older_watermark_loads_again(path: Path) -> None:
    """Merged segments have a step that the older watermark would skip."""
    with connect(path) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
        publish(mq, "m0")
        store = mq.namespace.store
        handle = store.open(SEGMENTS)
        handle.replace_at(handle.version, [], floor=read_watermark(store).step + 1)
        with pytest.raises(ReadOvertaken, match="merged faster than this process could open them"):
            Reader(store, ManualClock()).refresh()
        publish(mq, "m1")
        assert values(mq, "a") == ["m0", "m1"]


# -- removal of files ---------------------------------------------------------------------------------------


def build_request(mq: Connection, file: DataFile) -> Produce:
    topic, state = mq.topics.describe("a"), mq.state()
    ranges = Ranges([0], [0], [0], [0], [file.record_count], [0], [0])
    return Produce([TopicRef("a", topic.topic_id, 1)], ranges, state.step, [file])


def write_file(mq: Connection, file_id: int, count: int = 3) -> DataFile:
    values = {"topic": "a", "partition": 0, "timestamp": 0, "value": b"%d" % file_id}
    body = pa.table([pa.array([values.get(f.name)] * count, f.type) for f in BODY_SCHEMA], BODY_SCHEMA)
    return DataFile(*write_data_file(mq.namespace.files, file_id, body))


def test_a_request_that_names_an_old_file_is_refused(path: Path) -> None:
    with connect(path) as mq, lead_one_term(mq):
        mq.topics.create("a")
        file = write_file(mq, 7)
        age(path / MESSAGES.name / f"{7:016x}.parquet", days=1.01)
        with pytest.raises(FileMissing, match=r"publish\.max\.duration\.ms"):
            mq.requester.ask(build_request(mq, file))
        assert mq.end_offsets("a") == {0: 0}


def test_repeats_are_recognised_after_a_merge(path: Path) -> None:
    with connect(path) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
            sent = [build_request(mq, write_file(mq, number)) for number in (7, 8)]
            for request in sent:
                mq.requester.ask(request)
            published = mq.publish("a", pa.table({"value": ["once"]}), txn_app_id="app", txn_version=1)
        for file in list_files_of_publishers(path):
            age(file, days=2)
        before = values(mq, "a")
        lead_briefly(mq, 3)
        assert not list_files_of_publishers(path)
        with lead_one_term(mq):
            assert not published.duplicate
            published_again = mq.publish("a", pa.table({"value": ["once"]}), txn_app_id="app", txn_version=1)
            assert published_again.duplicate
            with pytest.raises(FileMissing):
                mq.requester.ask(sent[0])
            assert values(mq, "a") == before


@pytest.mark.extended
def test_file_that_a_waiting_letter_names_is_not_deleted(path: Path) -> None:
    with connect(path) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
            files = [write_file(mq, number) for number in (6, 7, 8)]
            for file in files:
                mq.requester.ask(build_request(mq, file))
        for old in list_files_of_publishers(path):
            age(old, days=2)
        # there is a gap, so it keeps waiting
        now_ms, client = time.time_ns() // 1_000_000, "0" * 32
        letter = Letter(client, 9, [build_request(mq, files[1])], now_ms)
        name = mq.namespace.mailbox.put(client, 9, letter_bytes(letter, None), now_ms)
        mq.namespace.mailbox.put(client, 8, b"junk", now_ms)
        lead_briefly(mq, 3)
        assert [int(file.stem, 16) for file in list_files_of_publishers(path)] == [7]
        assert len(values(mq, "a")) == 9
        mq.namespace.files.delete([f"{LETTERS}/{name}"])
        publish(mq, "more")
        lead_briefly(mq, 3)
        assert not list_files_of_publishers(path)
        assert len(values(mq, "a")) == 10


@pytest.mark.extended
def test_files_with_rows_that_wait_keep_no_others_from_a_merge(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files with waiting rows are the smallest, and a merge has room for no more than them."""
    with connect(path, **{"merge.grace.ms": HOUR_MS}) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
        for number in range(3):
            with lead_one_term(mq):
                mq.publish("a", pa.table({"value": ["late", f"m{number}"], "delay_ms": [HOUR_MS, None]}))
        waiting = {path / MESSAGES.name / name: 0 for name in data_files(path)}
        publish(mq, *(os.urandom(200).hex() for _ in range(3)))
        expected = values(mq, "a")
    sizes = [(path / MESSAGES.name / name).stat().st_size for name in data_files(path)]
    kept_bytes = sum(file.stat().st_size for file in waiting)
    most_bytes = kept_bytes + sorted(sizes)[3] - 1
    assert max(file.stat().st_size for file in waiting) < sorted(sizes)[3]
    assert sum(sorted(sizes)[3:]) <= most_bytes
    monkeypatch.setattr(merging, "MAX_BYTES_AT_ONCE", most_bytes)
    with connect(path) as mq:
        lead_briefly(mq, 3)
        assert len(data_files(path)) == 4  # three with waiting rows, and one merged file
        assert values(mq, "a") == expected


class Died(Exception):
    """The leader is dead."""


@pytest.mark.parametrize("point", extended_but([""], ["", *MERGING_POINTS]))
def test_large_file_with_few_needed_rows_is_rewritten_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Its committed messages are read from a final file: only the aborted one needs it. At `point` a leader dies."""
    monkeypatch.setattr(merging, "SMALL_BYTES", 0)
    doomed = [point]

    def reach(point: str) -> None:
        if point in doomed:
            doomed.remove(point)
            raise Died

    config = load_config(overrides={**CONFIG, "final.interval.ms": 1})
    with Connection(open_namespace(str(path), config, create=True), crash_point=reach) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("a", "aborted")
                producer.flush()
                producer.abort_transaction()
            mq.publish("a", pa.table({"value": ["committed"] * 20}))
        (old,), expected = data_files(path), everything(mq, "a")
        assert expected == ["aborted", *["committed"] * 20]
        with lead_one_term(mq):
            until(lambda: mq.state().topic("a").final_offsets.tolist() == [22])

        def is_rewritten() -> bool:
            sequencer = mq.sequencer()
            until(sequencer.try_lead)
            with suppress(Died):
                sequencer.step()
                sequencer.resign()
            assert everything(mq, "a") == expected
            return old not in data_files(path)

        until(is_rewritten)
        lead_briefly(mq)
        assert doomed in ([], [""])
        assert sql(mq, "SELECT CAST(value AS STRING) FROM messages") == [("aborted",)]
        assert len(data_files(path)) == 1


@pytest.mark.extended
def test_a_damaged_file_is_left_out_and_stays(path: Path) -> None:
    with connect(path, **{"merge.grace.ms": HOUR_MS}) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
        publish(mq, "m0", "m1", "m2", "m3")
        broken = path / MESSAGES.name / f"{mq.fetch('a').plan.segments['file_id'][1].as_py():016x}.parquet"
        broken.write_bytes(broken.read_bytes()[:-1] + b"!")
        (path / MESSAGES.name / "strange.parquet").write_bytes(b"strange")
    with connect(path) as mq:
        lead_briefly(mq, 3)
        assert broken.name in data_files(path)
        assert len(data_files(path)) == 3
        assert [texts(mq.fetch("a", start=start, end=start + 1)) for start in (0, 2)] == [["m0"], ["m2"]]
        with pytest.raises(FileTruncated):
            mq.fetch("a").to_arrow()


@pytest.mark.extended
def test_file_that_unpacks_to_too_much_is_named_and_stops_no_merge_or_other_query_also_after_a_restart(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts, settings = [f"{number} " + os.urandom(700).hex() for number in range(4)], {"compact.min.files": 4}
    with connect(path, **settings) as mq:
        with lead_one_term(mq):
            mq.topics.create("a")
            large = write_long_entry(LocalFiles(str(path)), b"x" * 8_000)
            named = DataFile(ID, large.size_bytes, large.record_count, 0, 0, large.footer_hash)
            mq.requester.ask(build_request(mq, named))
            mq.topics.create("b")
        age(path / file_name(ID), days=2)
    for restart in range(2):
        with connect(path, **settings) as mq:
            caplog.clear()
            publish(mq, *texts, topic="b")
            lead_briefly(mq, 3)
            assert f"Data file {ID:016x} is left out of merges" in caplog.text
            assert len(data_files(path)) < len(texts)
            assert values(mq, "b") == texts * (restart + 1)
            with pytest.raises(FileTruncated, match=f"{ID:016x} is damaged.*would unpack to"):
                mq.fetch("a", start=0, end=1).to_arrow()
            mq.sql("SELECT 1", wait_ms=10_000)
            for query in (mq.sql, lambda text, mq=mq: list(run_query(mq.namespace, text)[1])):
                with pytest.raises(TableDamaged, match=rf"s/{ID:016x}\.parquet is damaged: .* unpack to") as found:
                    query("SELECT max(value) FROM messages")
                assert "Traceback" not in str(found.value)
            count = mq.sql(f"SELECT count(value) AS n FROM messages WHERE topic = 'b' AND file_id <> {ID}").to_pylist()
            assert count == [{"n": len(texts) * (restart + 1)}]
