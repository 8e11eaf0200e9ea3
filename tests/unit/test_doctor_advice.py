"""The doctor's advice helps: each one is followed as it stands, and then the namespace is healthy."""

import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lawless_writer import ignore_protocol
from targets import nightly_but
from typer.testing import CliRunner, Result
from unit.served import served
from unit.test_doctor import find_problems

from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.errors import NamespaceError, TableDamaged
from lakemq.jobs.cli import app
from lakemq.jobs.doctor.namespace import Finding
from lakemq.tables.specs.spec import SCHEMA_VERSION, VERSION_PROPERTY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_to_give_up"), pytest.mark.extended]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace with two topics and messages in files, all of it projected."""
    folder = tmp_path_factory.mktemp("advice")
    with served(folder) as mq:
        for topic in ("t", "u"):
            mq.topics.create(topic, partitions=2)
            for _ in range(2):
                mq.publish(topic, pa.table({"value": ["x" * 3000, "y" * 3000]}))
    return folder / "mq"


@pytest.fixture
def path(healthy: Path, tmp_path: Path) -> Path:
    """The path of a copy of the healthy namespace, which a test may damage."""
    return Path(shutil.copytree(healthy, tmp_path / "mq"))


def list_commands(path: Path, finding: Finding) -> list[list[str]]:
    """Return the arguments of the commands that the finding advises, as a shell reads them."""
    text = str(finding.to_record(str(path))["advice"])
    lines = [shlex.split(line)[1:] for line in text.partition("`")[2].partition("`")[0].split(" && ")]
    assert lines == [["--path", str(path), *command] for command in finding.commands]
    return lines


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return result


def restore(healthy: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(healthy, path)


def truncate_journal(path: Path) -> None:
    for entry in (path / "journal/_delta_log").glob("*.json"):
        os.truncate(entry, 10)


def remove_first_commit(path: Path) -> None:
    (path / "journal/_delta_log/00000000000000000000.json").unlink()


def remove_journal(path: Path) -> None:
    shutil.rmtree(path / "journal")


@pytest.mark.parametrize("damage", [truncate_journal, remove_first_commit, remove_journal])
def test_damaged_journal_is_restored_from_backup_and_not_created_again(
    healthy: Path, path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    finding = find_problems(path)["namespace"]
    assert "init" not in finding.advice
    assert "backup" in finding.advice
    before = sorted(path.rglob("*"))
    for create in (False, True):
        with pytest.raises(NamespaceError, match="backup"):
            open_namespace(str(path), create=create)
    assert sorted(path.rglob("*")) == before
    restore(healthy, path)
    assert not find_problems(path)


def test_delayed_messages_of_a_missing_file_are_cancelled_as_advised(path: Path) -> None:
    before = set((path / "messages").glob("*.parquet"))
    with Connection(open_namespace(str(path))) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["x" * 400_000, "y" * 400_000], "delay_ms": [10**9, 10**9 + 9_000]}))
        mq.publish("u", pa.table({"value": ["stays"]}), delay_ms=10**9)
    (lost,) = (file for file in set((path / "messages").glob("*.parquet")) - before if file.stat().st_size > 10_000)
    lost.unlink()
    finding = find_problems(path)["delays"]
    assert finding.found.startswith("2 messages of t wait in files that are missing or damaged")
    (command,) = list_commands(path, finding)
    run(*command, "--yes")
    assert not find_problems(path)
    with Connection(open_namespace(str(path))) as mq:
        assert [waiting.topic for waiting in mq.delayed.all()] == ["u"]


def test_delayed_messages_without_a_sequencer_are_released_as_advised(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Connection(open_namespace(str(path))) as mq, mq.serving():
        mq.publish("t", pa.table({"value": ["x"]}), delay_ms=8_000)
    assert not find_problems(path)
    monkeypatch.setattr("lakemq.jobs.doctor.namespace.WAITING_MS", 0)
    deadline_s = time.monotonic() + 30
    while not (findings := find_problems(path)):
        assert time.monotonic() < deadline_s
        time.sleep(1)
    (command,) = list_commands(path, findings["delays"])
    run(*command)
    assert not find_problems(path)


@pytest.mark.parametrize("table", ["segments", "delayed"])
def test_a_table_that_is_missing_is_restored(healthy: Path, path: Path, table: str) -> None:
    shutil.rmtree(path / table)
    finding = find_problems(path)["namespace"]
    assert f"{table}: " in finding.found
    assert "init" not in finding.advice
    assert "backup" in finding.advice
    shutil.copytree(healthy / table, path / table)
    assert not find_problems(path)


@pytest.mark.parametrize("table", ["journal", "groups"])
def test_a_newer_table_needs_a_newer_version(path: Path, table: str) -> None:
    entry = path / table / "_delta_log/00000000000000000000.json"
    content = entry.read_text()
    entry.write_text(content.replace(f'"{VERSION_PROPERTY}":"{SCHEMA_VERSION}"', f'"{VERSION_PROPERTY}":"9"'))
    finding = find_problems(path)["namespace"]
    assert "init" not in finding.advice
    assert "version" in finding.advice
    assert "schema version 9" in finding.found
    assert finding.found.startswith("NEWER_FORMAT: ") == (table == "journal")
    entry.write_text(content)
    assert not find_problems(path)


@pytest.mark.parametrize("table", nightly_but(["topics", "watermarks"], ["topics", "partitions", "watermarks"]))
def test_rows_deleted_by_others_are_named_and_restored(healthy: Path, path: Path, table: str) -> None:
    with ignore_protocol(path / table) as copy:
        DeltaTable(copy).delete()
    with Connection(open_namespace(str(path))) as mq:
        for call in (mq.topics.list, lambda: mq.fetch("t"), lambda: mq.groups.list(), mq.step_until_idle):
            with pytest.raises(
                TableDamaged, match=rf"{table} .*Commits that are not LakeMQ's: {table} version \d+: DELETE"
            ):
                call()
    result = CliRunner().invoke(app, ["--path", str(path), "topics", "list"])
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"TABLE_DAMAGED: {table}")
    findings = find_problems(path)
    for check in ("state", "foreign commits"):
        assert table in findings[check].found
    assert "backup" in findings["state"].advice
    assert findings["foreign commits"].commands == [["fsck"]]
    restore(healthy, path)
    assert not find_problems(path)


@pytest.mark.parametrize("way", ["put back", "given up"])
def test_missing_data_files_are_put_back_or_given_up_as_advised(healthy: Path, path: Path, way: str) -> None:
    files = sorted((path / "messages").glob("*.parquet"))
    assert len(files) >= 4
    for file in files[::2]:
        file.unlink()
    finding = find_problems(path)["data files"]
    assert finding.found.startswith(f"{len(files[::2])} of {len(files)} are missing or damaged: ")
    assert f"{files[0].name} (gone)" in finding.found
    if way == "put back":
        for file in files[::2]:
            shutil.copy(healthy / "messages" / file.name, file)
    else:
        for command in list_commands(path, finding):
            run(*command, "--yes")
    assert not find_problems(path)
    with Connection(open_namespace(str(path))) as mq:
        for topic in ("t", "u"):
            assert len(list(mq.fetch(topic))) == mq.fetch(topic).record_count


def test_a_bad_settings_file_is_mended(path: Path) -> None:
    settings = path.with_name("lakemq.yaml")
    settings.write_text("lease.m: 500\n")
    finding = find_problems(path, conf=str(settings))["settings"]
    assert finding.found.startswith(f"INVALID_CONFIG: In {settings}: Unknown parameter")
    assert "--conf" in finding.advice
    settings.write_text("lease.ms: 500\n")
    assert not find_problems(path, conf=str(settings))
