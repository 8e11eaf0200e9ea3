"""`lakemq backup` and `restore` while a namespace is used, and while they are killed themselves."""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakemq
from lakemq import Connection
from lakemq.engine.client.backups import read_manifests, restore_backup, take_backup, verify_backups
from lakemq.errors import InvalidRequest, NamespaceError, TableDamaged
from lakemq.jobs.audit import audit
from lakemq.tables.specs.messages import INBOX
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.step_objects import list_steps
from lakemq.tables.storage.delta.store import read_insertion
from lakemq.tables.storage.object_stores.files import Files, LocalFiles
from lakemq.testing import serve, wait_until

SETTINGS: dict[str, Any] = {
    "lease.ms": 1_000,
    "project.interval.ms": 20,
    "checkpoint.interval": 5,
    "compact.min.files": 4,
    "merge.grace.ms": 3_000,
    "reader.grace.ms": 3_000,
    "final.interval.ms": 100,
    "journal.rows.max.bytes": 2_000,
}
PARTITIONS = 2


@contextmanager
def load(mq: Connection) -> Iterator[list[int]]:
    """Publish numbers, in and without transactions, and consume them. Yields how many are acknowledged."""
    ends, acknowledged = threading.Event(), [0]

    def publish() -> None:
        count = 0
        with mq.producer("tx") as transactional:
            while not ends.is_set():
                values = [str(count + i) for i in range(20)]
                mq.publish("t", pa.table({"key": values, "value": values}))
                acknowledged[0] = count = count + 20
                transactional.begin_transaction()
                transactional.send("other", f"{count}")
                transactional.commit_transaction()

    def consume() -> None:
        with mq.consumer("g", topics=["t"], auto_offset_reset="earliest") as consumer:
            while not ends.is_set():
                consumer.poll(timeout_ms=200)
                consumer.commit()

    threads = [threading.Thread(target=work) for work in (publish, consume)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: acknowledged[0] >= 200, "messages", 100)
        yield acknowledged
    finally:
        ends.set()
        for thread in threads:
            thread.join(100)
    assert not any(thread.is_alive() for thread in threads)


def check_restored(path: Path, least_count: int) -> int:
    """Check that a restored namespace has numbers without a gap, serves, and is not damaged. Return how many."""
    patient = {"merge.grace.ms": 60_000, "reader.grace.ms": 60_000}  # a query may take long
    with serve(path, settings={**SETTINGS, **patient}) as mq:
        values = Counter(int(value) for value in mq.fetch("t").to_arrow().column("value").to_pylist())
        count = sum(values.values())
        assert values == Counter(range(count))
        assert count >= least_count
        mq.publish("t", pa.table({"key": ["later"], "value": ["-1"]}))
        assert all(row.lag >= 0 for row in mq.groups.lag("g"))
        shown = mq.sql("SELECT count(*) AS n FROM log_committed WHERE topic = 't'", wait_ms=60_000)
        assert shown.column("n").to_pylist() == [count + 1]
    outcomes = audit(lakemq.connect(str(path)).namespace, None).outcomes
    assert [outcome for outcome in outcomes if outcome.broken] == []
    return count


def test_backups_under_load_are_whole_and_copy_only_what_is_new(tmp_path: Path) -> None:
    backups = LocalFiles(str(tmp_path / "backups"))
    with serve(tmp_path / "mq", settings=SETTINGS) as mq:
        mq.topics.create("t", PARTITIONS)
        mq.topics.create("other")
        counts, copied = [], []
        with load(mq) as acknowledged:
            for _ in range(2):
                counts.append(acknowledged[0])
                copied.append(take_backup(mq.namespace, backups))
                time.sleep(0.3)
    assert copied[-1].copied_count < copied[-1].object_count
    assert verify_backups(backups) > 0
    manifests = list(reversed(read_manifests(backups)))
    # On a slow machine nothing may be decided between two backups. Then the second one is the first.
    steps, expected = ([*dict.fromkeys(each.step for each in part)] for part in (manifests, copied))
    assert steps == expected
    for number, (done, count) in enumerate(zip(copied, counts, strict=True)):
        path = tmp_path / f"restored-{number}"
        restore_backup(backups, str(path), {}, done.step)
        check_restored(path, count)


def test_restore_ends_at_a_step_or_a_time(tmp_path: Path) -> None:
    backups = LocalFiles(str(tmp_path / "backups"))
    with serve(tmp_path / "mq", settings={"project.interval.ms": 60_000, "lease.ms": 600_000}) as mq:
        mq.topics.create("t")
        take_backup(mq.namespace, backups)
        ends: list[list[int | datetime]] = []
        for value in "123":
            mq.publish("t", pa.table({"value": [value]}))
            step = mq.state().step
            time.sleep(0.05)  # times are of the disk, and have milliseconds
            ends.append([step, datetime.now(UTC)])
            time.sleep(0.05)
        done = take_backup(mq.namespace, backups)
    for number, (step, moment) in enumerate(ends, 1):
        for until in (step, moment):
            path = str(tmp_path / f"{number}-{type(until).__name__}")
            assert restore_backup(backups, path, {}, until).step == step
            with lakemq.connect(path) as mq:
                assert [message.value for message in mq.fetch("t")] == [b"1", b"2", b"3"][:number]
    with pytest.raises(InvalidRequest, match=f"steps .* to {done.step}"):
        restore_backup(backups, str(tmp_path / "later"), {}, done.step + 1)
    with pytest.raises(NamespaceError, match="already"):
        restore_backup(backups, str(tmp_path / "mq"), {}, None)


@pytest.mark.extended
def test_damaged_or_foreign_backups_are_refused(tmp_path: Path) -> None:
    backups = LocalFiles(str(tmp_path / "backups"))
    for name in ("mq", "foreign"):
        with serve(tmp_path / name) as mq:
            mq.topics.create("t")
            mq.publish("t", pa.table({"value": ["x" * 1000] * 1000}))
            if name == "mq":
                take_backup(mq.namespace, backups)
            else:
                with pytest.raises(InvalidRequest, match="another namespace"):
                    take_backup(mq.namespace, backups)
    (data,) = (tmp_path / "backups/messages").glob("*.parquet")
    content = data.read_bytes()
    with lakemq.connect(str(tmp_path / "mq")) as mq:
        take_backup(mq.namespace, backups)
        data.unlink()
        assert take_backup(mq.namespace, backups).copied_count == 1  # what is lost, as long as the namespace has it
    assert data.read_bytes() == content
    data.write_bytes(content[:-1] + b"?")
    with pytest.raises(TableDamaged, match=f"{data.name}.* is not as it was copied"):
        verify_backups(backups)
    with pytest.raises(TableDamaged, match=data.name):
        restore_backup(backups, str(tmp_path / "new"), {}, None)
    with pytest.raises(NamespaceError):
        lakemq.connect(str(tmp_path / "new"))
    data.unlink()
    with pytest.raises(TableDamaged, match=f"{data.name} is missing"):
        verify_backups(backups)


@pytest.mark.extended
def test_backups_of_one_step_and_of_two_histories_share_a_folder(tmp_path: Path) -> None:
    backups, settings = LocalFiles(str(tmp_path / "backups")), {"project.interval.ms": 60_000, "lease.ms": 1_000}
    with serve(tmp_path / "mq", settings=settings) as mq:
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["1"]}))
        step = mq.state().step
        mq.publish("t", pa.table({"value": ["2"]}))
        take_backup(mq.namespace, backups)
        mq.publish("t", pa.table({"value": ["3"]}))
    with lakemq.connect(str(tmp_path / "mq")) as mq:
        first, second = (take_backup(mq.namespace, backups) for _ in range(2))
        assert (second.step, second.copied_count) == (first.step, 0)
    restore_backup(backups, str(tmp_path / "copy"), {}, step)
    with serve(tmp_path / "copy", settings=settings) as mq:
        mq.publish("t", pa.table({"value": ["4"]}))
    (name,) = (file.name for file in (tmp_path / "mq/messages").glob("*.parquet"))
    assert (tmp_path / "mq/messages" / name).read_bytes() != (tmp_path / "copy/messages" / name).read_bytes()
    with lakemq.connect(str(tmp_path / "copy")) as mq:
        take_backup(mq.namespace, backups)
    verify_backups(backups)
    restore_backup(backups, str(tmp_path / "newest"), {}, None)
    with lakemq.connect(str(tmp_path / "newest")) as mq:
        assert [message.value for message in mq.fetch("t")] == [b"1", b"4"]
    for file in (tmp_path / "copy/messages").glob("*.parquet"):
        assert (tmp_path / "newest/messages" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.extended
def test_restore_refuses_the_rest_of_an_interrupted_one(tmp_path: Path) -> None:
    backups, new = LocalFiles(str(tmp_path / "backups")), tmp_path / "new"
    with serve(tmp_path / "mq", settings={"project.interval.ms": 60_000}) as mq:
        mq.topics.create("t")
        step = mq.state().step
        mq.publish("t", pa.table({"value": ["1"]}))
        take_backup(mq.namespace, backups)
    restore_backup(backups, str(new), {}, None)
    shutil.rmtree(new / "journal/_delta_log")  # as after a kill before the last objects
    with pytest.raises(NamespaceError, match=f"steps/0*{step + 1}'"):
        restore_backup(backups, str(new), {}, step)
    shutil.rmtree(new)
    restore_backup(backups, str(new), {}, step)
    with lakemq.connect(str(new)) as mq:
        assert len(mq.fetch("t").to_arrow()) == 0


@pytest.mark.extended
def test_rows_that_an_inbox_loses_to_a_later_step_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain may come after the steps of a backup were listed. In the copy its rows must be drained again."""
    backups = LocalFiles(str(tmp_path / "backups"))
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        store = mq.namespace.store
        empty = store.open(INBOX)

        def insert(value: bytes) -> None:
            rows = pa.table({"topic": ["t"], "value": [value]})
            write_deltalake(str(tmp_path / "mq" / INBOX.name), rows, mode="append", schema_mode="merge")

        def list_and_drain(files: Files) -> list[int]:
            insert(b"2")  # which comes and goes between two looks at the table
            handle = store.open(INBOX)
            handle.replace_at(handle.version, [], handle.files())
            return list_steps(files)

        insert(b"1")
        monkeypatch.setattr("lakemq.engine.client.backups.list_steps", list_and_drain)
        take_backup(mq.namespace, backups)
    restore_backup(backups, str(tmp_path / "new"), {}, None)
    for version in (empty.version + 1, empty.version + 2):
        insertion = read_insertion(LocalFiles(str(tmp_path / "new")), INBOX, version)
        assert [(tmp_path / "new" / name).is_file() for name in insertion.files] == [True]


@pytest.mark.extended
def test_checkpoints_that_come_during_a_backup_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint without the entry of its version would keep each leader from committing."""
    backups = LocalFiles(str(tmp_path / "backups"))
    tables = [spec for spec in TABLES if not spec.is_open_to_writers]
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        store = mq.namespace.store

        def list_and_checkpoint(files: Files) -> list[int]:
            for spec in tables:
                handle = store.open(spec)
                handle.replace_at(handle.version, [], [])
                handle.checkpoint()
            return list_steps(files)

        monkeypatch.setattr("lakemq.engine.client.backups.list_steps", list_and_checkpoint)
        take_backup(mq.namespace, backups)
    restore_backup(backups, str(tmp_path / "new"), {}, None)
    for spec in tables:
        logs = [tmp_path / name / spec.name / "_delta_log" for name in ("mq", "new")]
        assert [len(list(log.glob("*.checkpoint.parquet"))) for log in logs] == [1, 0], spec.name


def test_a_backup_within_the_namespace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mq")
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        for path in ("mq", "mq/backups", "mq/steps", "link/backups"):
            with pytest.raises(InvalidRequest, match="is in the namespace"):
                take_backup(mq.namespace, LocalFiles(str(tmp_path / path)))
        take_backup(mq.namespace, LocalFiles(str(tmp_path / "mq-backups")))


@pytest.mark.extended
def test_killed_backups_and_restores_are_repeated(tmp_path: Path) -> None:
    """Each kill comes at a random moment. A backup changes none of those before it; a part of a copy does not open."""
    random_ = random.Random(7)
    backups = tmp_path / "backups"

    def start(path: Path, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", str(path), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(path: Path, *words: str) -> None:
        process = start(path, *words)
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output

    def kill(path: Path, *words: str) -> None:
        process = start(path, *words)
        time.sleep(random_.uniform(0.5, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)

    with serve(tmp_path / "mq", settings=SETTINGS) as mq:
        mq.topics.create("t", PARTITIONS)
        mq.topics.create("other")
        with load(mq) as acknowledged:
            for _ in range(2):
                kill(tmp_path / "mq", "backup", str(backups))
            run(tmp_path / "mq", "backup", str(backups))
            kill(tmp_path / "mq", "backup", str(backups))
            count = acknowledged[0]
            run(tmp_path / "mq", "backup", str(backups), "--verify")
    for _ in range(2):
        kill(tmp_path / "new", "restore", str(backups))
    shutil.rmtree(tmp_path / "new", ignore_errors=True)  # one may have come to its end
    run(tmp_path / "new", "restore", str(backups))
    newest = max((tmp_path / "new/journal/_delta_log").glob("*.json"))
    for remaining in ([newest], []):  # as after a kill among the last objects
        for entry in set((tmp_path / "new/journal/_delta_log").iterdir()).difference(remaining):
            entry.unlink()
        with pytest.raises(NamespaceError):
            lakemq.connect(str(tmp_path / "new"))
        run(tmp_path / "new", "restore", str(backups))
    check_restored(tmp_path / "new", count)
