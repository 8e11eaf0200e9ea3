"""An audit of a sound namespace holds. Otherwise it names the damage that a test has done, and its place."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from lawless_writer import ignore_protocol
from unit.served import CONFIG, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.quality import audit as audit_module
from lakemq.engine.client.quality.audit import INVARIANTS
from lakemq.engine.namespace.load import read_watermark
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import TableDamaged
from lakemq.jobs.audit import Audit, audit, main
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.registry import BY_NAME

pytestmark = pytest.mark.slow


def rows(count: int) -> pa.Table:
    return pa.table({"key": [f"k{i}" for i in range(count)], "value": [f"v{i}" for i in range(count)]})


@pytest.fixture(scope="module")
def sound_namespace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace with a little of everything, projected, and without a sequencer."""
    path = tmp_path_factory.mktemp("audit") / "mq"
    config = {"engine.tick.ms": 1, "inline.max.bytes": 2000, "project.interval.ms": 50}
    with lakemq.connect(str(path), create=True, config=config) as mq, mq.serving():
        for topic, partitions in (("t", 3), ("late", 2), ("gone", 1)):
            mq.topics.create(topic, partitions)
        mq.publish("t", rows(300))
        mq.publish("gone", rows(3))
        mq.topics.delete("gone")
        mq.topics.delete_records("t", {0: 20})
        mq.publish("t", pa.table({"partition": [7], "value": ["refused"]}))
        for commits in (True, False):
            with mq.producer(transactional_id="tx") as producer:
                producer.begin_transaction()
                for row in range(30):
                    producer.send("t", f"{commits} {row}", key=f"k{row}")
                producer.flush()
                producer.commit_transaction() if commits else producer.abort_transaction()
        mq.publish("t", rows(2), ttl_ms=3_600_000)
        mq.publish("late", rows(10), delay_ms=1)
        mq.publish("late", rows(10), delay_ms=3_600_000)
        mq.delayed.cancel_where("late", "decode(key) = 'k3'")
        until(lambda: sum(mq.end_offsets("late").values()) == 10)
        consumer = mq.consumer("g", topics=["t"], auto_offset_reset="earliest")
        with consumer:
            until(lambda: bool(consumer.poll(timeout_ms=100)))
            consumer.commit()
    return path


@pytest.fixture
def path(sound_namespace: Path, tmp_path: Path) -> Path:
    """A copy of the sound namespace, for tests that break it."""
    return Path(shutil.copytree(sound_namespace, tmp_path / "mq"))


def run_audit(path: Path, docs: Path | None = None) -> Audit:
    with Connection(open_namespace(str(path))) as mq:
        return audit(mq.namespace, docs)


def find_broken(path: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (table, measure) -> places, for rules that do not hold."""
    return {
        (outcome.rule.table, outcome.rule.column): outcome.where
        for outcome in run_audit(path).outcomes
        if outcome.broken
    }


def test_audit_of_sound_namespace_passes(sound_namespace: Path, tmp_path: Path) -> None:
    report = run_audit(sound_namespace, tmp_path / "docs")
    assert [outcome for outcome in report.outcomes if outcome.broken] == []
    assert report.holds(strict=True)
    assert report.after_step == 0
    assert {outcome.rule for outcome in report.outcomes} == set(INVARIANTS)
    assert all(outcome.rows for outcome in report.outcomes)
    assert "Offsets are dense" in "".join(p.read_text() for p in (tmp_path / "docs").rglob("*.html"))


def test_audit_passes_while_sequencer_merges(tmp_path: Path) -> None:
    config = {"engine.tick.ms": 1, "project.interval.ms": 0, "compact.min.files": 2, "checkpoint.interval": 5}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq, mq.serving():
        mq.topics.create("t", 2)
        for _ in range(30):
            mq.publish("t", rows(10))
        until(lambda: read_watermark(mq.namespace.store).step > 0)
        report = audit(mq.namespace)
    assert [outcome for outcome in report.outcomes if outcome.broken] == []
    assert report.step > (report.after_step or 0)


def change(path: Path, table: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the files of a table with rows that `edit` returns, under the same names."""
    for name in DeltaTable(str(path / table)).file_uris():
        file = Path(name.removeprefix("file://"))
        before = pq.read_table(file)
        pq.write_table(pa.Table.from_pylist([edit(row) for row in before.to_pylist()], before.schema), file)


def set_where(column: str, value: Any, **where: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def edit(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, column: value} if all(row[k] == v for k, v in where.items()) else row

    return edit


def test_audit_finds_messages_of_a_missing_data_file(path: Path) -> None:
    biggest = max((path / "messages").glob("*.parquet"), key=lambda file: file.stat().st_size)
    biggest.unlink()
    places = find_broken(path)
    assert places["data_files", "flaw"] == (f"{biggest.name}: gone",)
    assert {place.partition(":")[0] for place in places["partitions", "rows_missing"]} == {"t-0", "t-1", "t-2"}
    assert ("partitions", "messages_too_many") in places


def test_audit_finds_changed_message_by_its_file(path: Path) -> None:
    change(path, "messages", lambda row: {**row, "value": b"other" if row["value"] == b"v7" else row["value"]})
    biggest = max((path / "messages").glob("*.parquet"), key=lambda file: file.stat().st_size)
    assert f"{biggest.name}: rewritten or damaged" in find_broken(path)["data_files", "flaw"]


def test_audit_names_missing_file_of_a_table(path: Path) -> None:
    Path(DeltaTable(str(path / "segments")).file_uris()[0].removeprefix("file://")).unlink()
    assert find_broken(path) == {("tables", "files_gone"): ("segments: 1",)}


def segments(path: Path, **where: Any) -> pa.Table:
    table = pa.table(DeltaTable(str(path / "segments")).to_pyarrow_table())
    for column, value in where.items():
        table = table.filter(pc.equal(table.column(column), value))
    return table.slice(0, 1)


def test_audit_finds_doubled_segment(path: Path) -> None:
    twice = segments(path, kind="data", topic="t", partition=1)
    with ignore_protocol(path / "segments") as copy:
        write_deltalake(copy, twice.cast(BY_NAME["segments"].stored_schema), mode="append")
    places = find_broken(path)
    count = twice.column("record_count")[0].as_py()
    assert places["partitions", "offsets_twice"] == (f"t-1: {count}",)
    assert places["partitions", "rows_twice"] == (f"t-1: {count}",)
    assert places["partitions", "messages_too_many"] == (f"t-1: {count}",)
    assert [where for where in places["tables", "rows_unlike_the_journal"] if where.startswith("segments")]


def test_audit_finds_missing_segment(path: Path) -> None:
    segment = segments(path, kind="data", topic="t", partition=2)
    base_offset, count = segment.column("base_offset")[0].as_py(), segment.column("record_count")[0].as_py()
    table = pa.table(DeltaTable(str(path / "segments")).to_pyarrow_table())
    is_segment = pc.and_(
        pc.and_(pc.equal(table["topic"], "t"), pc.equal(table["partition"], 2)),
        pc.equal(table["base_offset"], base_offset),
    )
    remaining = table.filter(pc.invert(is_segment)).cast(BY_NAME["segments"].stored_schema)
    with ignore_protocol(path / "segments") as copy:
        write_deltalake(copy, remaining, mode="overwrite")
    places = find_broken(path)
    assert places["partitions", "offsets_missing"] == (f"t-2: {count}",)
    assert places["tables", "foreign_commits"] == ("segments: 1",)


@pytest.mark.parametrize(
    ("table", "column", "value", "where", "rule"),
    [
        ("segments", "kind", "commit", {"kind": "abort"}, ("partitions", "aborted_shown")),
        ("segments", "file_partition", 2, {"topic": "t", "partition": 1}, ("partitions", "rows_missing")),
        ("partitions", "high_watermark", 5000, {"topic": "t", "partition": 1}, ("partitions", "offsets_missing")),
        ("partitions", "high_watermark", 9, {"topic": "t", "partition": 1}, ("partitions", "offsets_beyond_the_end")),
        ("partitions", "last_stable_offset", 1, {"topic": "t", "partition": 1}, ("partitions", "stable_off_by")),
        ("partitions", "last_stable_offset", 9999, {"topic": "t"}, ("partitions", "stable_out_of_bounds")),
        ("control_markers", "marker", "COMMIT", {}, ("partitions", "shown_too_many")),
        ("consumer_offsets", "committed_offset", 1, {}, ("tables", "rows_unlike_the_journal")),
        ("watermarks", "next_producer_id", 0, {}, ("tables", "rows_unlike_the_journal")),
        ("watermarks", "delay_pointer_ms", 1, {}, ("tables", "rows_unlike_the_journal")),
        ("segments", "min_timestamp_ms", 1, {"kind": "data"}, ("tables", "rows_unlike_the_journal")),
        ("segments", "max_timestamp_ms", 2**50, {"kind": "data"}, ("tables", "rows_unlike_the_journal")),
        ("segments", "ttl_from_ms", 1, {"topic": "t"}, ("tables", "rows_unlike_the_journal")),
        ("segments", "first_offset", 0, {"kind": "abort"}, ("tables", "rows_unlike_the_journal")),
        ("delayed", "waiting_count", 1, {"state": "waiting"}, ("delays", "unaccounted")),
        ("delayed", "released_count", 0, {"state": "released"}, ("delays", "unaccounted")),
        ("rejected_rows", "first_row", 100_000, {}, ("rejected_rows", "rows_missing")),
    ],
)
def test_audit_finds_changed_row(
    path: Path, table: str, column: str, value: Any, where: dict[str, Any], rule: tuple[str, str]
) -> None:
    change(path, table, set_where(column, value, **where))
    assert rule in find_broken(path)


@pytest.mark.parametrize(("table", "column", "value"), [("topics", "removed", True), ("topics", "config", "{}}")])
def test_audit_raises_table_damaged_for_values_that_contradict(path: Path, table: str, column: str, value: Any) -> None:
    change(path, table, set_where(column, value, topic="t"))
    with pytest.raises(TableDamaged):
        run_audit(path)


def test_audit_ignores_files_merged_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "project.interval.ms": 0, "compact.min.files": 2, "checkpoint.interval": 5}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", rows(3))
        until(lambda: bool(mq.namespace.store.open(JOURNAL).files()))
        first_snapshot = take_snapshot(mq.namespace.store)

        def list_replaced_files() -> set[str]:
            mq.publish("t", rows(3))
            current = mq.namespace.store.open(JOURNAL).files()
            return {file.path for file in first_snapshot.handles["journal"].files()} - {file.path for file in current}

        until(lambda: bool(list_replaced_files()))
        for name in list_replaced_files():
            (tmp_path / "mq" / "journal" / name).unlink(missing_ok=True)  # as happens a minute later
        snapshots = iter([first_snapshot])
        monkeypatch.setattr(audit_module, "take_snapshot", lambda store: next(snapshots, None) or take_snapshot(store))
        report = audit(mq.namespace)
        assert [outcome for outcome in report.outcomes if outcome.broken] == []
        assert report.step > first_snapshot.watermark.step


def test_audit_warns_of_messages_with_an_explicit_partition(path: Path) -> None:
    with lakemq.connect(str(path)) as mq, mq.serving():
        mq.publish("t", pa.table({"key": ["k1"] * 3, "value": ["v"] * 3, "partition": [0, 1, 2]}))
    report = run_audit(path)
    assert {outcome.rule.column for outcome in report.outcomes if outcome.broken} == {"rows_elsewhere"}
    assert (report.holds(), report.holds(strict=True)) == (True, False)


def test_audit_job_fails_and_names_the_damage(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--path", str(path), "--docs", str(tmp_path / "docs")]) == 0
    assert (tmp_path / "docs" / "index.html").is_file()
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (end["job"], end["exit_code"], end["rules"]) == ("audit", 0, len(INVARIANTS))
    change(path, "partitions", set_where("high_watermark", 5000, topic="t"))
    assert main(["--path", str(path)]) == 1
    captured = capsys.readouterr()
    end = json.loads(captured.out.splitlines()[-1])
    assert (end["exit_code"], end["error"]) == (1, "TABLE_DAMAGED")
    assert "partitions.offsets_missing" in end["message"]
    logged = [json.loads(line) for line in captured.err.splitlines()]
    assert any(line["level"] == "ERROR" and "offsets_missing, in 3 of" in line["message"] for line in logged)


@pytest.mark.parametrize(
    "options",
    [
        ["--suite", "s.json"],
        *(["--topic", "t", "--offsets", text] for text in ("", "[1]", '{"0": [1]}', '{"a": [0, 1]}')),
    ],
)
def test_invalid_options_of_a_topic_audit_are_wrong_usage(options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--path", "mq", *options])
    assert ended.value.code == 2


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test leaves no files in the working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    assert list(folder.iterdir()) == []
