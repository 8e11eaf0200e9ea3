"""`lakemq fsck` names each damage, repairs what the journal and the logs of tables still say, and refuses the rest."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from finals import are_all_final, let_readers_move_on
from lawless_writer import ignore_protocol
from targets import extended_but
from typer.testing import CliRunner
from unit.served import CONFIG, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.sequencer.repair import Repair
from lakemq.errors import NotLeader
from lakemq.jobs.cli import app
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.storage.coordination import leader_locks
from lakemq.tables.storage.delta.store import select_newest
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock, serve

pytestmark = pytest.mark.slow

Damage = Callable[[Path], None]
CHANGELOGS = ("topics", "partitions", "producers", "transactional_ids", "consumer_offsets", "clients", "delayed")
LOGS = ("control_markers", "transactions", "messages", "journal", "final_messages")
QUICK = {**CONFIG, "project.interval.ms": 50, "final.interval.ms": 50}


def fill(mq: Connection) -> None:
    """Publish to topic `t`, also in transactions and with a delay, and commit an offset."""
    mq.publish("t", pa.table({"key": [f"k{i}" for i in range(40)], "value": ["v" * 1000] * 40}))
    mq.publish("t", pa.table({"value": ["later"], "delay_ms": [3_600_000]}))
    with mq.producer("tx") as producer:
        producer.begin_transaction()
        producer.send("t", "committed")
        producer.commit_transaction()
    with mq.consumer("g", assign=["t"]) as consumer:
        consumer.commit({("t", 0): 3})


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a namespace whose journal begins with step 1, without a sequencer."""
    path = tmp_path_factory.mktemp("fsck") / "mq"
    with lakemq.connect(str(path), create=True, config=QUICK) as mq, mq.serving():
        mq.topics.create("t", 2)
        fill(mq)
        until(lambda: are_all_final(mq))
    return path


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a namespace whose tables and journal were merged, and the journal cut, without a sequencer."""
    path, clock = tmp_path_factory.mktemp("fsck") / "mq", MovableClock()
    merges = {"compact.min.files": 3, "checkpoint.interval": 6, "journal.retention.ms": 60_000}
    with serve(path, clock, {**QUICK, **merges}) as mq:
        mq.topics.create("t", 2)
        for _ in range(4):
            fill(mq)
            until(lambda: are_all_final(mq))
            clock.advance(seconds=30)
            let_readers_move_on(mq, clock)
        until(lambda: mq.namespace.store.open(BY_NAME["partitions"]).floor() > 0)
        mq.publish("t", pa.table({"value": ["last"]}))
        until(lambda: are_all_final(mq))
    return path


@pytest.fixture
def path(young: Path, tmp_path: Path) -> Path:
    """The path of a copy of the young namespace, which a test may damage."""
    return Path(shutil.copytree(young, tmp_path / "mq"))


def fsck(path: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--path", str(path), "--output", "json", "fsck", *options])
    return done.exit_code, done.output


def read_all(path: Path) -> dict[str, list[str]]:
    """Return all messages as a fetch shows them, and the rows of tables, those of changelogs without their steps."""
    with Connection(open_namespace(str(path))) as mq:
        rows = {"fetch": mq.fetch("t").to_arrow()}
        for name in (*CHANGELOGS, *LOGS):
            rows[name] = mq.namespace.store.open(BY_NAME[name]).read()
            if name in CHANGELOGS:
                newest = select_newest(rows[name], BY_NAME[name].keys)
                rows[name] = newest.filter(pc.invert(newest["removed"])).drop_columns("step")
    return {name: sorted(map(repr, table.to_pylist())) for name, table in rows.items()}


def read_files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def list_live_files(path: Path, table: str) -> list[Path]:
    return [Path(name.removeprefix("file://")) for name in DeltaTable(str(path / table)).file_uris()]


def lose_newest_entry(path: Path, *tables: str) -> None:
    for table in tables:
        max((path / table / "_delta_log").glob("*.json")).unlink()


def lose_files(path: Path, *tables: str) -> None:
    for table in tables:
        for file in list_live_files(path, table):
            file.unlink()


def cut_file(path: Path, table: str) -> None:
    file = list_live_files(path, table)[0]
    file.write_bytes(file.read_bytes()[:-20])


def change_file(path: Path, table: str, column: str) -> None:
    """Rewrite a file with other values, under the same name."""
    file = list_live_files(path, table)[0]
    rows = pq.read_table(file)
    at = rows.schema.get_field_index(column)
    pq.write_table(rows.set_column(at, column, pc.add(rows[column], 1)), file)


def commit(path: Path, table: str, change: Callable[[str], Any]) -> None:
    """Let another program change a table."""
    with ignore_protocol(path / table) as copy:
        change(copy)


def overwrite(path: Path, table: str) -> None:
    rows = BY_NAME[table].empty().cast(BY_NAME[table].stored_schema)
    commit(path, table, lambda copy: write_deltalake(copy, rows, mode="overwrite"))


def restore_version(path: Path, table: str, count: int) -> None:
    """Let another program go back by so many versions."""
    log = path / table / "_delta_log"
    *_, newest = entries = sorted(log.glob("*.json"))
    then, now = (read_added_files(entries[:end]) for end in (-count, None))
    actions: list[Any] = [{"commitInfo": {"operation": "RESTORE", "engineInfo": "delta-rs", "timestamp": 0}}]
    actions += [{"add": then[name]} for name in then.keys() - now.keys()]
    actions += [{"remove": {"path": name, "dataChange": True}} for name in now.keys() - then.keys()]
    (log / f"{int(newest.stem) + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def read_added_files(entries: list[Path]) -> dict[str, Any]:
    """Return path -> action of the files that a table has after these entries of its log."""
    files: dict[str, Any] = {}
    for action in [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]:
        if "add" in action:
            files[action["add"]["path"]] = action["add"]
        files.pop(action.get("remove", {}).get("path"), None)
    return files


REPAIRABLE: dict[str, Damage] = {
    "newest log entries lost": lambda path: lose_newest_entry(
        path, *CHANGELOGS, "control_markers", "transactions", "messages"
    ),
    "newest log entry of segments lost": lambda path: lose_newest_entry(path, "segments"),
    "newest log entry of final_messages lost": lambda path: lose_newest_entry(path, "final_messages"),
    "newest log entry of the journal lost": lambda path: lose_newest_entry(path, "journal"),
    "files gone": lambda path: lose_files(path, *CHANGELOGS, "control_markers", "transactions"),
    "a file cut": lambda path: cut_file(path, "partitions"),
    "a file changed": lambda path: change_file(path, "topics", "partition_count"),
    "UPDATE": lambda path: commit(path, "partitions", lambda copy: DeltaTable(copy).update({"high_watermark": "0"})),
    "DELETE": lambda path: commit(path, "consumer_offsets", lambda copy: DeltaTable(copy).delete()),
    "DELETE of final messages": lambda path: commit(path, "final_messages", lambda copy: DeltaTable(copy).delete()),
    "OVERWRITE": lambda path: overwrite(path, "segments"),
    "RESTORE": lambda path: restore_version(path, "partitions", 2),
}


@pytest.mark.extended
def test_a_sound_namespace_has_no_damage_and_a_repair_writes_nothing(young: Path, merged: Path) -> None:
    for path in (young, merged):
        before = read_files(path)
        assert fsck(path)[0] == 0
        assert fsck(path, "--repair")[0] == 0
        assert read_files(path) == before


@pytest.mark.parametrize("damage", extended_but(["UPDATE"], list(REPAIRABLE)))
def test_damage_is_named_and_repaired(damage: str, young: Path, path: Path) -> None:
    REPAIRABLE[damage](path)
    code, text = fsck(path)
    assert code == 1, text
    code, text = fsck(path, "--repair")
    assert code == 6, text
    before, after = read_all(young), read_all(path)
    assert [name for name in before if after[name] != before[name]] == []
    with lakemq.connect(str(path), config=QUICK) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["new"]}))
        until(lambda: mq.sql("SELECT * FROM log_committed").num_rows == 42)
        assert len(mq.fetch("t")) == 42
    assert fsck(path)[0] == 0


def lose_entries_before_base(path: Path, table: str) -> None:
    """Lose all entries of a table since its first checkpoint, and with them rows that only merged tables have."""
    log = path / table / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    for entry in log.glob("*.json"):
        if entry.name[:20] >= checkpoints[0].name[:20]:
            entry.unlink()
    for file in (*checkpoints, log / "_last_checkpoint"):
        file.unlink()


def forget_foreign_commit(path: Path, table: str) -> None:
    """Let another program empty a table, and its log forget that."""
    overwrite(path, table)
    DeltaTable(str(path / table)).create_checkpoint()
    newest = max((path / table / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text().replace("delta-rs", "LakeMQ"))


def lose_step(path: Path) -> None:
    max((path / "steps").iterdir()).unlink()


def lose_decisions(path: Path) -> None:
    lose_files(path, "journal")
    for step in sorted((path / "steps").iterdir())[:-1]:
        step.unlink()


BEYOND_REPAIR: dict[str, tuple[Damage, str]] = {
    "entries from before the replay": (lambda path: lose_entries_before_base(path, "partitions"), "partitions"),
    "a merged file": (lambda path: lose_files(path, "consumer_offsets"), "consumer_offsets"),
    "places of messages": (lambda path: lose_files(path, "segments"), "segments"),
    "rows whose removal the log does not show": (
        lambda path: forget_foreign_commit(path, "segments"),
        "no segment, or two",
    ),
    "decisions": (lose_decisions, "what steps"),
    "a whole log": (lambda path: shutil.rmtree(path / "groups" / "_delta_log"), "groups"),
    "the step of the watermark": (lose_step, "is missing"),
}


@pytest.mark.extended
@pytest.mark.parametrize(("damage", "found"), BEYOND_REPAIR.values(), ids=BEYOND_REPAIR.keys())
def test_damage_beyond_repair_is_named_and_nothing_is_changed(
    damage: Damage, found: str, merged: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(merged, tmp_path / "mq"))
    damage(path)
    before = read_files(path)
    code, text = fsck(path, "--repair")
    assert code == 1
    assert found in text
    assert "TABLE_DAMAGED" in text
    assert "lakemq restore" in text
    assert read_files(path) == before


def test_messages_whose_file_is_gone_are_named_and_nothing_is_changed(path: Path) -> None:
    for file in [*(path / "final_messages").rglob("*.parquet"), *(path / "messages").glob("*.parquet")]:
        file.unlink()
    before = read_files(path)
    for options in ([], ["--repair"]):
        code, text = fsck(path, *options)
        assert code == 1
        assert "Offsets within: t-0 0 to " in text
        assert "delete-records t --before 0=" in text
    assert read_files(path) == before


class Killed(BaseException):
    """The process is killed before a write."""


@contextmanager
def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """Let the write of this number, and all later ones, not happen, as when the process is killed there."""
    count = 0

    def stop_or(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= number:
                raise Killed
            return write(*arguments, **options)

        return call

    with monkeypatch.context() as patch, suppress(Killed):
        for name in ("put", "open_output", "delete"):
            patch.setattr(LocalFiles, name, stop_or(getattr(LocalFiles, name)))
        patch.setattr(leader_locks.LeaderLocks, "hold", lambda self, name: None)
        yield


@pytest.mark.extended
def test_a_repair_that_is_killed_at_any_write_is_repeated(
    young: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_locks.LeaderLocks, "is_dead", lambda self, name: "-repair-" in name)
    before, is_killed, number = read_all(young), True, 0
    while is_killed:
        number += 1
        path = Path(shutil.copytree(young, tmp_path / str(number)))
        lose_files(path, "partitions")
        overwrite(path, "consumer_offsets")
        lose_newest_entry(path, "segments", "messages", "journal", "final_messages")
        with Connection(open_namespace(str(path))) as mq:
            is_killed = True
            with kill_at(monkeypatch, number):
                Repair(mq.namespace).write()
                is_killed = False
            if (plan := Repair(mq.namespace)).damages:
                plan.write()
        after = read_all(path)
        assert [name for name in before if after[name] != before[name]] == [], number
        shutil.rmtree(path)
    assert number > 10


DIE_IN_A_PASS = """
import os, sys
import pyarrow as pa
import lakemq
from lakemq.engine.sequencer.projector import Projector

append = Projector._append

def append_or_die(self, name, rows, *arguments):
    if name == "watermarks" and rows.num_rows and os.path.exists(sys.argv[1] + ".die"):
        os._exit(9)
    return append(self, name, rows, *arguments)

Projector._append = append_or_die
with lakemq.connect(sys.argv[1], config={"project.interval.ms": 50, "final.interval.ms": 50}) as mq, mq.serving():
    mq.publish("t", pa.table({"value": ["projected"]}))
    open(sys.argv[1] + ".die", "w").close()
    mq.publish("t", pa.table({"key": ["b"] * 3, "value": ["dead"] * 3}))
    mq.step_until_idle(60_000)
"""
"""A leader that dies when its last pass has written all tables, but not the watermark."""


@pytest.mark.extended
@pytest.mark.parametrize("table", ["segments", "journal"])
def test_rows_beyond_the_watermark_are_neither_lost_nor_doubled_by_a_repair(path: Path, table: str) -> None:
    if table == "segments":
        restore_version(path, "segments", 1)
        damaged = DeltaTable(str(path / "segments")).version()
        with lakemq.connect(str(path), config=QUICK) as mq, mq.serving():
            mq.publish("t", pa.table({"key": ["a"], "value": ["after"]}))
            until(lambda: DeltaTable(str(path / "segments")).version() > damaged)
    assert subprocess.run([sys.executable, "-c", DIE_IN_A_PASS, str(path)], timeout=120).returncode == 9
    if table == "journal":
        max(list_live_files(path, table), key=lambda file: pq.read_table(file)["step"].to_pylist()).unlink()
    assert fsck(path, "--repair")[0] == 6
    with lakemq.connect(str(path), config=QUICK) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["next"]}))
        until(lambda: are_all_final(mq))
        (row,) = mq.sql("SELECT count(*) AS count FROM log_committed", wait_ms=60_000).to_pylist()
        assert row["count"] == len(mq.fetch("t"))
    assert fsck(path)[0] == 0


def test_a_repair_beside_a_leader_is_refused_and_a_check_is_not(path: Path) -> None:
    with lakemq.connect(str(path), config=QUICK) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["new"]}))
        assert fsck(path)[0] == 0
        lose_files(path, "control_markers")
        assert fsck(path)[0] == 1
        code, text = fsck(path, "--repair")
        assert code == 4
        assert "NOT_LEADER: A sequencer leads" in text
        assert "control_markers" in text
    assert fsck(path, "--repair")[0] == 6


def test_a_repair_ends_if_a_leader_has_begun_since_it_was_planned(path: Path) -> None:
    lose_files(path, "control_markers")
    with Connection(open_namespace(str(path))) as mq:
        plan = Repair(mq.namespace)
        with lakemq.connect(str(path), config=QUICK) as other:
            other.step_until_idle()
        before = read_files(path)
        with pytest.raises(NotLeader):
            plan.write()
        assert read_files(path) == before
