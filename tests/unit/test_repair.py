"""A repair goes on without rows that nothing depends on, and keeps its lease while it puts lost versions back."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clocks import ManualClock
from deltalake import DeltaTable
from unit.served import CONFIG, wait_for_files

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.engine.sequencer import repair
from lakemq.engine.sequencer.repair import Repair
from lakemq.tables.storage.delta.store import TableHandle

pytestmark = pytest.mark.slow

QUICK = {**CONFIG, "project.interval.ms": 50}
UNNEEDED = ("samples", "admin_log")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a namespace without a sequencer, in which each of six changes has a commit of its own."""
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=QUICK) as mq, mq.serving():
        for number in range(6):
            mq.topics.create(f"t{number}")
            wait_for_files(mq)
        mq.publish("t0", pa.table({"value": ["a", "b"]}))
    return tmp_path / "mq"


def lose_files(path: Path, table: str) -> None:
    for name in DeltaTable(str(path / table)).file_uris():
        Path(name.removeprefix("file://")).unlink()


def lose_entries(path: Path, table: str) -> None:
    log = path / table / "_delta_log"
    for entry in sorted(log.glob("*.json"))[1:]:
        entry.unlink()


def lose_table(path: Path, table: str) -> None:
    shutil.rmtree(path / table)


@pytest.mark.parametrize("lose", [lose_files, lose_entries, lose_table])
def test_lost_samples_and_changes_stop_no_repair_and_changes_come_back_from_the_journal(
    lose: Callable[[Path, str], None], path: Path
) -> None:
    for table in UNNEEDED:
        lose(path, table)
    lose_files(path, "partitions")
    with Connection(open_namespace(str(path))) as mq:
        plan = Repair(mq.namespace)
        assert plan.is_possible, plan.damages
        said = {damage.table: damage.found for damage in plan.damages}
        assert all("a repair goes on with what is left" in said[table] for table in UNNEEDED), said
        assert {*UNNEEDED, "partitions"} <= {*plan.write()}
        assert Repair(mq.namespace).damages == []
    with lakemq.connect(str(path), config=QUICK) as mq, mq.serving():
        mq.topics.create("new")
        changes = mq.sql("SELECT subject FROM admin_changes ORDER BY step", wait_ms=60_000).to_pylist()
        assert [change["subject"] for change in changes] == [*(f"t{number}" for number in range(6)), "new"]
        assert len(mq.fetch("t0")) == 2


def test_a_repair_renews_its_lease_while_it_puts_lost_versions_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_entries(path, "partitions")
    clock, replace_at, commits = ManualClock(), TableHandle.replace_at, list[int]()

    def commit_slowly(self: TableHandle, version: int, *arguments: Any, **options: Any) -> None:
        clock.sleep(5_000)  # half a lease
        commits.append(version)
        replace_at(self, version, *arguments, **options)

    monkeypatch.setattr(repair, "SystemClock", lambda: clock)
    monkeypatch.setattr(TableHandle, "replace_at", commit_slowly)
    steps = len([*(path / "steps").iterdir()])
    with Connection(open_namespace(str(path))) as mq:
        assert Repair(mq.namespace).write() == ["partitions"]
    assert len(commits) > 5
    assert len([*(path / "steps").iterdir()]) - steps >= len(commits)
