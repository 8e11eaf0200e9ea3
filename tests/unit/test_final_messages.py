"""`final_messages`: committed messages become rows of a Delta table that needs no LakeMQ to be read."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from finals import (
    PATIENCE_S,
    are_all_final,
    check_final_messages,
    let_readers_move_on,
    read_final_messages,
    read_from_final_files,
)
from lawless_writer import ignore_protocol
from unit.browsing import open_browser
from unit.served import until, wait_for_files

import lakemq
from lakemq import Connection, Message
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.maintenance import final_files, final_table
from lakemq.engine.maintenance.final_files import FinalFileWriter, measure_final_lag_ms
from lakemq.engine.maintenance.final_table import count_missing_files
from lakemq.engine.maintenance.retention import measure_sizes, read_live_state
from lakemq.engine.namespace.crash import nowhere
from lakemq.engine.namespace.data_file import new_data_file, new_file_id, read_file_facts
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.protocol.codec.few_rows import FewRows, rows_to_table
from lakemq.engine.protocol.values.log import DataFile, Produce, Ranges, RangesWritten
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.errors import TableDamaged
from lakemq.jobs.audit import audit
from lakemq.jobs.doctor.namespace import make_checks
from lakemq.tables import views
from lakemq.tables.specs.messages import FINAL_FILES, FINAL_MESSAGES, HEADERS
from lakemq.tables.specs.spec import TIME
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock, read_dead_letters, serve, wait_until

CONFIG = {"engine.tick.ms": 10, "project.interval.ms": 50, "final.interval.ms": 100}


@pytest.fixture
def mq(tmp_path: Path, mq_clock: MovableClock) -> Iterator[Connection]:
    with serve(tmp_path / "mq", mq_clock, {**CONFIG, "compact.min.files": 2, "merge.grace.ms": 9_000}) as connection:
        yield connection


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows = DeltaTable(str(path / "final_messages")).to_pyarrow_table()
    return rows.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def read_places(path: Path) -> list[tuple[str, int, bytes]]:
    return [(row["topic"], row["offset"], row["value"]) for row in read_rows(path)]


def list_files(path: Path) -> list[str]:
    return DeltaTable(str(path / "final_messages")).file_uris()


# -- what becomes final, and what holds up its topic alone ------------------------------------------------


def test_rows_that_pack_well_are_written_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a file are in memory."""
    monkeypatch.setattr(final_files, "FILE_BYTES", 1 << 20)
    with serve(tmp_path / "mq", settings={"project.interval.ms": 20}) as mq:
        mq.topics.create("a")
        mq.publish("a", pa.table({"value": [b"x" * 20_000] * 200}))
        assert len(write_final_files(mq)) == 4


def test_the_last_topic_with_final_messages_may_be_deleted(tmp_path: Path) -> None:
    path, settings = str(tmp_path / "mq"), {"project.interval.ms": 20, "final.interval.ms": 20}
    with serve(path, settings=settings) as mq:
        mq.topics.create("a")
        mq.publish("a", pa.table({"value": ["1"]}))
        until(lambda: are_all_final(mq))
        mq.topics.delete("a")
    with lakemq.connect(path, config=settings) as mq:
        mq.step_until_idle()  # its first pass finds a table that no row of `segments` names any more
        assert not read_final_messages(mq).num_rows


def test_messages_of_the_last_microsecond_of_year_9999_become_final(mq: Connection, tmp_path: Path) -> None:
    latest = datetime.max.replace(tzinfo=UTC)
    mq.topics.create("a")
    times = pa.array([latest], pa.timestamp("us", "UTC"))
    mq.publish("a", pa.table({"value": ["1"], "timestamp": times}))
    until(lambda: are_all_final(mq))
    assert [row["timestamp"] for row in read_rows(tmp_path / "mq")] == [latest]


def write_final_files(mq: Connection) -> list[RangesWritten]:
    """Write the files of messages that are not final yet, without a decision."""
    written = list[RangesWritten]()
    writer = FinalFileWriter(mq.namespace.store, new_file_id, nowhere)

    def write() -> bool:
        writer.write(mq.state().topics, written.append)
        return bool(written)

    until(write)
    return written


Spoil = Callable[[], tuple[str, pa.Array]]


def spoil_names_of_headers() -> tuple[str, pa.Array]:
    name = pa.array([b"\xff"], pa.binary()).view(pa.string())
    headers = pa.StructArray.from_arrays([name, pa.array([b"v"])], fields=list(HEADERS.value_type))
    return "headers", pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), headers).cast(HEADERS)


def spoil_times() -> tuple[str, pa.Array]:
    return "timestamp", pa.nulls(1, TIME)


@pytest.mark.parametrize("spoil", [spoil_names_of_headers, spoil_times])
def test_file_that_no_publisher_of_lakemq_writes_holds_up_its_topic_alone(tmp_path: Path, spoil: Spoil) -> None:
    with serve(tmp_path / "mq", settings={"project.interval.ms": 20}) as mq:
        for topic in ("a", "b"):
            mq.topics.create(topic)
        publish_spoiled(mq, "a", spoil)
        mq.publish("b", pa.table({"value": ["2"]}))
        assert {written.topic_id for written in write_final_files(mq)} == {mq.state().topic("b").topic_id}


@pytest.mark.parametrize(("time_us", "shown"), [(-(2**63), datetime.min), (2**63 - 1, datetime.max)])
def test_message_with_a_time_outside_of_the_calendar_becomes_final_and_is_read(
    mq: Connection, time_us: int, shown: datetime
) -> None:
    """Only a publisher that says another time in its request gets this far."""
    mq.topics.create("a")
    publish_unchecked(mq, "a", FewRows(["a"], [0], [None], [b"1"], [time_us]))
    until(lambda: are_all_final(mq))
    assert read_final_messages(mq).column("timestamp").cast(pa.int64()).to_pylist() == [time_us]
    assert [message.timestamp for message in mq.fetch("a")] == [shown.replace(tzinfo=UTC)]
    assert mq.fetch("a").to_arrow().column("timestamp").to_pylist() == [shown.replace(tzinfo=UTC)]
    assert f"{shown.year:04}-" in show_in_console(mq, "a")


def test_name_of_a_header_that_is_not_utf_8_is_shown_with_a_replacement_character(mq: Connection) -> None:
    mq.topics.create("a")
    publish_spoiled(mq, "a", spoil_names_of_headers)
    assert [message.headers for message in mq.fetch("a")] == [(("\ufffd", b"v"),)]
    with mq.consumer("g", topics=["a"], auto_offset_reset="earliest") as consumer:
        polled: list[Message] = []
        until(lambda: polled.extend(consumer.poll(timeout_ms=100)) or bool(polled))
    assert [message.headers for message in polled] == [(("\ufffd", b"v"),)]
    assert "\ufffd" in show_in_console(mq, "a")


def show_in_console(mq: Connection, topic: str) -> str:
    """Return the page of the first message of a topic. Check that the topic has its other pages."""
    with open_browser(mq) as browser:
        for path in ("/messages", "/tail"):
            browser.get(path, topic=topic)
        return browser.get("/message", topic=topic, partition=0, offset=0)


def publish_spoiled(mq: Connection, topic: str, spoil: Spoil) -> None:
    """Publish one row in a file that has another column."""
    body = rows_to_table([FewRows([topic], [0], [None], [b"1"], [now_us()])])
    name, column = spoil()
    body = body.set_column(body.column_names.index(name), name, column)
    files, file_id = mq.namespace.files, new_file_id()
    with new_data_file(files, file_id) as writer, suppress(ValueError):  # the row is written before its time is read
        writer.write(body)
    facts = read_file_facts(files, file_id)
    assert facts is not None
    now_ms = now_us() // 1000
    publish_unchecked(mq, topic, None, DataFile(file_id, facts.size_bytes, 1, now_ms, now_ms, facts.footer_hash))


def publish_unchecked(mq: Connection, topic: str, rows: FewRows | None, *files: DataFile) -> None:
    """Publish one row as a client might that checks nothing. files: the row is in this one."""
    state = mq.state()
    ref = TopicRef(topic, state.topic(topic).topic_id, 1)
    now_ms = now_us() // 1000
    ranges = Ranges([0], [0], [0 if files else -1], [0], [1], [now_ms], [now_ms])
    mq.requester.ask(Produce([ref], ranges, state.step, list(files)), rows)


def now_us() -> int:
    return time.time_ns() // 1000


def test_published_file_with_a_damaged_page_holds_up_its_topic_alone(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with serve(path, settings={"project.interval.ms": 20, "inline.max.bytes": 1000}) as mq:
        for topic in ("a", "b"):
            mq.topics.create(topic)
            mq.publish(topic, pa.table({"value": [f"{topic} {i}" * 50 for i in range(100)]}))
            if topic == "a":
                (file,) = (path / "messages").glob("*.parquet")
                content = file.read_bytes()
                file.write_bytes(content[:4] + bytes(byte ^ 255 for byte in content[4:-2000]) + content[-2000:])
        assert {written.topic_id for written in write_final_files(mq)} == {mq.state().topic("b").topic_id}


# -- files of the table: damaged, ordered, merged ---------------------------------------------------------


@pytest.mark.extended
def test_announcements_of_new_files_go_when_the_table_has_them(mq: Connection) -> None:
    """A namespace writes many files, and each pass lists the folder."""
    mq.topics.create("a")
    for number in range(3):
        mq.publish("a", pa.table({"value": [str(number)]}))
        until(lambda: are_all_final(mq))
    names = {uri.rpartition("/")[2] for uri in list_files(Path(mq.namespace.path))}
    leftovers = Leftovers(mq.namespace.files)

    def find_announced() -> set[str]:
        return names & {Path(path).name for path in leftovers.list_announced_paths(FINAL_MESSAGES.name)}

    until(lambda: not find_announced())


@pytest.mark.extended
def test_file_with_a_damaged_page_stays_and_holds_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("a")
        mq.publish("a", pa.table({"value": list("01234567")}))
        until(lambda: are_all_final(mq))
        (file,) = (path / "final_messages" / "topic=a").iterdir()
        content = file.read_bytes()
        file.write_bytes(content[:4] + bytes(byte ^ 255 for byte in content[4:100]) + content[100:])
        mq.topics.delete_records("a", {0: 4})
        mq.publish("a", pa.table({"value": ["later"]}))
        until(lambda: len(list_files(path)) == 2)
        file.write_bytes(content)
    with lakemq.connect(str(path), config=CONFIG) as mq, mq.serving():
        mq.publish("a", pa.table({"value": ["last"]}))
        until(lambda: are_all_final(mq))
        check_final_messages(mq)


@pytest.mark.extended
def test_files_of_a_topic_have_times_in_their_order_though_a_store_tells_seconds(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream begins with the files in the order of time."""
    tell_ms = LocalFiles.modified_ms
    written_ms = mq.namespace.files.time_ms()
    monkeypatch.setattr(
        LocalFiles,
        "modified_ms",
        lambda files, name: written_ms if name.startswith(FINAL_MESSAGES.name) else tell_ms(files, name),
    )
    mq.topics.create("a")
    for number in range(6):
        mq.publish("a", pa.table({"value": [str(number)]}))
        until(lambda: are_all_final(mq))
    table = DeltaTable(f"{mq.namespace.path}/final_messages")
    files = sorted(pa.table(table.get_add_actions(flatten=True)).to_pylist(), key=itemgetter("modification_time"))
    assert len(files) > 1
    assert all(left["max.offset"] < right["min.offset"] for left, right in pairwise(files))


@pytest.mark.extended
def test_new_leader_merges_files_that_were_final_before(tmp_path: Path, mq_clock: MovableClock) -> None:
    path = tmp_path / "mq"
    with serve(path, mq_clock, {**CONFIG, "compact.min.files": 1_000, "merge.grace.ms": 9_000}) as mq:
        mq.topics.create("a")
        for number in range(3):
            mq.publish("a", pa.table({"value": ["x"] * 10 * (number + 1)}))
            until(lambda: are_all_final(mq))
        read_from_final_files(mq, mq_clock)
        assert len(list_files(path)) == 3
    with serve(path, mq_clock, {**CONFIG, "compact.min.files": 2, "merge.grace.ms": 9_000}) as mq:

        def is_merged() -> bool:
            let_readers_move_on(mq, mq_clock)
            return len(list_files(path)) == 1

        wait_until(is_merged, "merges", PATIENCE_S)
        check_final_messages(mq)


# -- a reader cannot tell which table it reads a message from ---------------------------------------------


def write_all_kinds(mq: lakemq.Connection) -> None:
    """Publish messages of all kinds to the topic a, and let all but the last one become final."""
    mq.topics.create("a", 2, config={"message.timestamp.type": "LogAppendTime", "ttl.ms": 600_000})
    mq.groups.create("g", {"group.protocol": "queue"})
    for _ in range(2):
        mq.publish("a", pa.table({"value": list("0123456789"), "key": list("0123456789")}))
        mq.publish("a", pa.table({"value": ["gone", "alive"], "key": ["1", "2"], "ttl_ms": [1, 500_000]}))
        with mq.producer("tx") as producer:
            for commits in (False, True):
                producer.begin_transaction()
                for key in "123":
                    producer.send("a", f"{commits}", key=key, headers={"h": key.encode()})
                    producer.flush()
                producer.commit_transaction() if commits else producer.abort_transaction()
        until(lambda: are_all_final(mq))
    with mq.consumer("g", topics=["a"], auto_offset_reset="earliest") as consumer:
        count = 0
        while count < 5:  # a poll may bring fewer
            messages = list(consumer.poll(timeout_ms=5_000, max_records=5 - count))
            consumer.reject(messages, error="no good")
            count += len(messages)
    read_dead_letters(mq, at_least=5, timeout_s=PATIENCE_S)  # before some of their messages are deleted
    mq.topics.delete_records("a", {0: 7})
    until(lambda: are_all_final(mq))
    mq.publish("a", pa.table({"value": ["hot"]}))


def test_fetch_of_any_range_shows_the_same_from_published_and_final_files(
    mq: Connection, mq_clock: MovableClock
) -> None:
    write_all_kinds(mq)
    ranges = [
        (topic, {partition: first}, {partition: last})
        for topic in ("a", "a.dlq")
        for partition, end in mq.end_offsets(topic).items()
        for first in range(mq.beginning_offsets(topic)[partition], end, 5)
        for last in range(first, end + 1, 3)
    ]

    def fetch_all() -> list[pa.Table]:
        return [mq.fetch(topic, start=start, end=end).to_arrow() for topic, start, end in ranges]

    published = fetch_all()  # a few are final already where this takes long
    read_from_final_files(mq, mq_clock)
    assert {describe_files(topic, mq) for topic in ("a", "a.dlq")} == {"final"}
    assert fetch_all() == published
    for topic in ("a", "a.dlq"):
        assert pa.concat_tables(mq.fetch(topic).pieces(target_bytes=1_000)) == mq.fetch(topic).to_arrow()


def describe_files(topic: str, mq: Connection) -> str:
    """Return in which tables a fetch reads the messages of a topic."""
    with lakemq.connect(mq.namespace.path) as newcomer:
        file_ids = newcomer.fetch(topic).plan.segments.column("file_id").to_pylist()
    is_final = {file_id >= FINAL_FILES for file_id in file_ids}
    return " and ".join(name for kind, name in ((True, "final"), (False, "published")) if kind in is_final)


VIEWS = ("log", "log_committed", "dead_lettered", "topic_stats", "consumer_lag")


@pytest.mark.extended
def test_views_show_the_same_from_published_and_final_files(mq: Connection, mq_clock: MovableClock) -> None:
    def read_views() -> dict[str, list[str]]:
        tables = {view: mq.sql(f"SELECT * FROM {view}", wait_ms=9_000) for view in VIEWS}
        return {view: sorted(map(repr, rows.to_pylist())) for view, rows in tables.items()}

    write_all_kinds(mq)
    published = read_views()
    read_from_final_files(mq, mq_clock)
    assert read_views() == published
    of_offset = "SELECT value FROM log_committed WHERE topic = 'a' AND partition = {} AND offset = {}"
    messages = list(mq.fetch("a"))
    for message in (messages[0], messages[-1]):
        query = of_offset.format(message.partition, message.offset)
        assert mq.sql(query, wait_ms=9_000).column("value").to_pylist() == [message.value]
    assert find_broken_rules(mq) == []


def test_sql_reads_no_published_file_whose_messages_are_final(tmp_path: Path, mq_clock: MovableClock) -> None:
    path = tmp_path / "mq"
    with serve(path, mq_clock, CONFIG) as mq:
        mq.topics.create("a")
        mq.publish("a", pa.table({"value": ["0", "1"]}))
        read_from_final_files(mq, mq_clock)
        for file in (path / "messages").glob("*.parquet"):
            file.write_bytes(b"")
        mq.publish("a", pa.table({"value": ["2"]}))
    with lakemq.connect(path) as mq:
        for view in ("log", "log_committed"):
            query = f"SELECT value FROM {view} WHERE topic = 'a' AND offset >= 0 ORDER BY offset"
            assert mq.sql(query).column("value").to_pylist() == [b"0", b"1", b"2"]
        assert mq.sql("SELECT * FROM dead_lettered").num_rows == 0
        with pytest.raises(TableDamaged, match="Parquet"):
            mq.sql("SELECT value FROM messages")


@pytest.mark.parametrize(
    "query",
    [
        "WITH log AS (SELECT 7 AS offset) SELECT n FROM (SELECT offset AS n FROM log WHERE offset = 7)",
        "CREATE TEMP TABLE log AS SELECT 7 AS offset; SELECT offset AS n FROM log WHERE offset = 7",
    ],
)
def test_table_named_log_is_not_taken_for_the_view(mq: Connection, query: str) -> None:
    assert [*run_query(mq.namespace, query, dialect=SqlDialect.spark)[1]] == [(7,)]


def test_sql_reads_files_that_a_foreign_program_has_compacted(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with serve(path, settings=CONFIG | {"final.interval.ms": 3_600_000}) as mq:
        mq.topics.create("a")
        for value in "01":
            mq.publish("a", pa.table({"value": [value]}))
            mq.sql("SELECT 1", wait_ms=60_000)  # each has a file of its own
    with ignore_protocol(path / "messages") as copy:
        assert DeltaTable(copy).optimize.compact()["numFilesRemoved"] == 2
    with lakemq.connect(path) as mq:
        assert mq.sql("SELECT value FROM log ORDER BY offset")["value"].to_pylist() == [b"0", b"1"]


def find_broken_rules(mq: Connection) -> list[tuple[str, str, tuple[str, ...]]]:
    outcomes = audit(mq.namespace, None).outcomes
    return [(each.rule.table, each.rule.column, each.where) for each in outcomes if each.broken]


def test_views_have_the_id_of_final_files_of_the_core() -> None:
    assert views.FINAL_FILES == FINAL_FILES


@pytest.mark.extended
def test_published_files_go_when_their_messages_are_read_from_final_ones(
    mq: Connection, mq_clock: MovableClock
) -> None:
    mq.topics.create("a", 2)
    mq.topics.create("delayed", 1)
    mq.publish("delayed", pa.table({"value": ["later"], "delay_ms": [86_400_000]}))
    until(lambda: read_watermark(mq.namespace.store).step >= mq.state().step)  # else they may share a file
    for number in range(3):
        mq.publish("a", pa.table({"value": [str(number)] * 4, "key": list("0123")}))
    kept = mq.fetch("a").to_arrow()
    read_from_final_files(mq, mq_clock)
    folder = Path(mq.namespace.path, "messages")

    def check() -> bool:
        mq_clock.advance(seconds=61)
        return len(list(folder.glob("*.parquet"))) == 1

    wait_until(check, "removals", PATIENCE_S)
    assert DeltaTable(str(folder)).to_pyarrow_table().column("value").to_pylist() == [b"later"]
    assert mq.fetch("a").to_arrow() == kept
    assert find_broken_rules(mq) == []
    assert make_checks(mq, mq.observer())["data files"]().ok


# -- a file that is missing holds up its own messages -----------------------------------------------------


@pytest.mark.extended
def test_missing_file_holds_up_its_own_messages_alone(
    mq: Connection, mq_clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_file, missing = final_table._find_file, {"a"}
    monkeypatch.setattr(final_table, "_find_file", lambda fs, f: None if f.topic in missing else find_file(fs, f))

    def check_view() -> None:
        shown = mq.sql("SELECT topic, value FROM log_committed ORDER BY topic, offset", wait_ms=9_000).to_pylist()
        fetched = [{"topic": topic, "value": message.value} for topic in "ab" for message in mq.fetch(topic)]
        assert shown == fetched

    def is_read(topic: str) -> bool:
        let_readers_move_on(mq, mq_clock)
        check_view()
        return describe_files(topic, mq) == "final"

    def find_late_files() -> int:
        return count_missing_files(mq.namespace.store.open(SEGMENTS), read_live_state(mq.state()))

    for topic in "ab":
        mq.topics.create(topic, 1)
        mq.publish(topic, pa.table({"value": [f"{topic}1"]}))
        until(lambda topic=topic: mq.state().topic(topic).final_offsets.tolist() == [1])
    wait_until(lambda: is_read("b"), "reads of b", PATIENCE_S)
    assert describe_files("a", mq) == "published"
    assert find_late_files() == 1
    missing.clear()
    for _ in range(3):
        let_readers_move_on(mq, mq_clock)
        check_view()
    assert {topic for topic, _, _ in read_places(Path(mq.namespace.path))} == {"b"}, "views read later steps"
    mq.publish("b", pa.table({"value": ["b2"]}))
    wait_until(lambda: is_read("a") and is_read("b"), "reads of a", PATIENCE_S)
    assert find_late_files() == 0
    check_final_messages(mq)


@pytest.mark.extended
def test_missing_file_that_is_back_is_shown_once_after_later_messages_were_deleted(
    mq: Connection, mq_clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_file, missing = final_table._find_file, {"a"}
    monkeypatch.setattr(final_table, "_find_file", lambda fs, f: None if f.topic in missing else find_file(fs, f))
    for topic in "ab":
        mq.topics.create(topic, 1)
        mq.publish(topic, pa.table({"value": [f"{topic}1"]}))
        until(lambda topic=topic: mq.state().topic(topic).final_offsets.tolist() == [1])

    def is_read() -> bool:
        let_readers_move_on(mq, mq_clock)
        return describe_files("b", mq) == "final"

    wait_until(is_read, "reads of b", PATIENCE_S)
    mq.topics.delete_records("b", {0: 1})
    missing.clear()
    # between these two writes views read `segments` as it was, and the table as it is
    monkeypatch.setattr(final_table.FinalTable, "_switch", lambda *_: False)
    for _ in range(3):
        let_readers_move_on(mq, mq_clock)
        shown = mq.sql("SELECT topic, value FROM log_committed", wait_ms=9_000).to_pylist()
        assert shown == [{"topic": "a", "value": b"a1"}]


# -- dead letters and retention ---------------------------------------------------------------------------


@pytest.mark.extended
def test_rejected_final_message_becomes_a_dead_letter_and_is_redriven(mq: Connection, mq_clock: MovableClock) -> None:
    mq.groups.create("g", {"group.protocol": "queue"})
    mq.topics.create("a", 1)
    mq.publish("a", pa.table({"value": list("0123"), "key": list("abcd")}))
    published = {message.value: (message.key, message.timestamp) for message in mq.fetch("a")}
    read_from_final_files(mq, mq_clock)
    with mq.consumer("g", topics=["a"], auto_offset_reset="earliest") as consumer:
        consumer.reject(list(consumer.poll(timeout_ms=9_000, max_records=3)), error="no good")
        consumer.flush()
        assert [(letter.value, letter.error) for letter in read_dead_letters(mq, at_least=3)] == [
            (value, "no good") for value in (b"0", b"1", b"2")
        ]
        mq.topics.delete_records("a", {0: 3})
        read_from_final_files(mq, mq_clock)
        assert mq.dead_letters.redrive("a.dlq").messages == 3
        until(lambda: mq.end_offsets("a") == {0: 7})
        read_from_final_files(mq, mq_clock)
        shown = [(message.offset, message.value) for message in mq.fetch("a")]
        assert shown == [(3, b"3"), (4, b"0"), (5, b"1"), (6, b"2")]
        assert {message.value: (message.key, message.timestamp) for message in mq.fetch("a")} == published
    assert find_broken_rules(mq) == []


@pytest.mark.extended
def test_retention_by_size_counts_final_files(mq: Connection, mq_clock: MovableClock) -> None:
    mq.topics.create("a", 1)
    for number in range(4):
        mq.publish("a", pa.table({"value": [secrets.token_bytes(1_000)] * 10}))
        until(lambda end=10 * (number + 1): mq.state().topic("a").final_offsets.tolist() == [end])
    read_from_final_files(mq, mq_clock)
    size = measure_sizes(mq.namespace.store, mq.state().topics)[mq.topics.describe("a").topic_id][0]
    assert size > 3_000
    mq.topics.alter("a", config={"retention.bytes": size // 8})

    def check() -> bool:
        mq_clock.advance(seconds=2)
        return mq.beginning_offsets("a")[0] > 0

    until(check)
    read_from_final_files(mq, mq_clock)
    check_final_messages(mq)


# -- the doctor -------------------------------------------------------------------------------------------


def test_doctor_finds_messages_that_do_not_become_final(tmp_path: Path) -> None:
    path, config = str(tmp_path / "mq"), {**CONFIG, "final.interval.ms": 86_400_000}
    with lakemq.connect(path, create=True, config=config) as mq, mq.serving():
        mq.topics.create("a")
        mq.publish("a", pa.table({"value": ["1"]}))
        store, topics = mq.namespace.store, mq.state().topics
        until(lambda: measure_final_lag_ms(store, topics, mq.state().now_ms + 1_000) >= 1_000)
        assert make_checks(mq, mq.observer())["final messages"]().ok
        with lakemq.connect(path, config={"final.interval.ms": 1}) as other:
            assert "waited" in make_checks(other, other.observer())["final messages"]().found
    with lakemq.connect(path, config={"final.interval.ms": 1}) as mq:
        assert make_checks(mq, mq.observer())["final messages"]().ok, "no sequencer leads"


def test_final_lag_counts_from_the_end_of_older_transactions(tmp_path: Path) -> None:
    clock, config = MovableClock(), {**CONFIG, "final.interval.ms": 86_400_000}
    with (
        serve(tmp_path / "mq", clock, config) as mq,
        mq.producer("tx", transaction_timeout_ms=900_000) as producer,
        mq.producer("later", transaction_timeout_ms=900_000) as later,
    ):
        mq.topics.create("a", 2)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("a", "1", partition=partition).result()
        mq.publish("a", pa.table({"value": ["2"], "partition": [0]}))
        clock.ahead_ms += 600_000
        later.begin_transaction()  # it stays open, so that the end of the first is beyond the last stable offset
        later.send("a", "2", partition=1).result()

        def measure_lag_ms() -> int:
            wait_for_files(mq)
            return measure_final_lag_ms(mq.namespace.store, mq.state().topics, clock.now_ms())

        assert measure_lag_ms() == 0
        producer.commit_transaction()
        assert 0 < measure_lag_ms() < 300_000
        clock.ahead_ms += 600_000
        assert measure_lag_ms() >= 600_000


def test_check_names_a_missing_file_of_final_messages(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("a")
            mq.publish("a", pa.table({"value": ["1"]}))
            until(lambda: are_all_final(mq))
        checks = make_checks(mq, mq.observer())
        assert checks["final messages"]().ok
        (file,) = (path / "final_messages" / "topic=a").iterdir()
        file.unlink()
        finding = checks["final messages"]()
        assert not finding.ok
        assert file.name in finding.found
        assert [message.value for message in mq.fetch("a")] == [b"1"]
