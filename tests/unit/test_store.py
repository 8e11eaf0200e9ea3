"""The store: one suite of behaviours over every way it is opened. Commits compare, reads pass files over."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import LocalFileSystem

from lakemq.tables.files import ArrowFiles, Files, LocalFiles
from lakemq.tables.spec import INT64, TEXT, TableSpec, column
from lakemq.tables.store import CommitConflict, NewFile, NotATable, Store, TableHandle


@dataclass(frozen=True, kw_only=True)
class NoteRow:
    step: int = column(INT64, "When.")
    name: str | None = column(TEXT, "Who.", nullable=True)


NOTES = TableSpec(
    name="notes",
    row=NoteRow,
    shape="log",
    keys=("step",),
    comment="Notes.",
    # so that a test need not wait an hour for the log to expire
    properties={"delta.logRetentionDuration": "interval 0 seconds"},
)

KINDS = {
    "local": lambda root: LocalFiles(root),
    "arrow": lambda root: ArrowFiles(LocalFileSystem(), root, f"file://{root}"),
}


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return KINDS[request.param](str(tmp_path))


@pytest.fixture
def store(files: Files) -> Store:
    store = Store(files)
    store.create(NOTES)
    return store


@pytest.fixture
def handle(store: Store) -> TableHandle:
    return store.open(NOTES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / NOTES.name


def notes(*steps: int) -> pa.Table:
    return NOTES.table([NoteRow(step=step, name=f"n{step}") for step in steps])


def steps_in(table: pa.Table) -> list[int]:
    return sorted(table.column("step").to_pylist())


def traces(folder: Path) -> set[str]:
    """Every file there is, log and data."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def new_file(folder: Path, name: str, rows: pa.Table) -> NewFile:
    pq.write_table(rows, folder / name)
    bounds = pc.min_max(rows.column("step")).as_py()
    statistics = {
        "numRecords": rows.num_rows,
        "minValues": {"step": bounds["min"]},
        "maxValues": {"step": bounds["max"]},
        "nullCount": {"step": 0},
    }
    return NewFile(name, (folder / name).stat().st_size, 0, statistics)


# -- tables -------------------------------------------------------------------------------------------------


def test_a_new_table_is_empty_and_made_once(store: Store, handle: TableHandle) -> None:
    assert handle.version == 0
    assert handle.read() == NOTES.empty()
    assert handle.files() == []
    handle.append_at(0, notes(1))
    store.create(NOTES)
    assert store.open(NOTES).version == 1
    assert store.exists(NOTES)


@pytest.mark.parametrize("there", ["nothing", "folder", "file", "alien table", "truncated log", "other columns"])
def test_what_is_no_table_of_ours_is_said_to_be_none(tmp_path: Path, files: Files, there: str) -> None:
    path = tmp_path / NOTES.name
    if there == "folder":
        path.mkdir()
    elif there == "file":
        path.write_text("hello")
    elif there == "alien table":
        write_deltalake(str(path), notes(1))
    elif there == "truncated log":
        Store(files).create(NOTES)
        entry = path / "_delta_log" / f"{0:020d}.json"
        entry.write_bytes(entry.read_bytes()[:40])
    elif there == "other columns":
        schema = notes(1).drop_columns("name").schema
        configuration = NOTES.configuration
        DeltaTable.create(str(path), schema, configuration=configuration, raise_if_key_not_exists=False)
    with pytest.raises(NotATable, match=r"^notes: \w"):
        Store(files).open(NOTES)


# -- append_at ----------------------------------------------------------------------------------------------


def test_appends_move_the_handle_one_version_on(store: Store, handle: TableHandle) -> None:
    handle.append_at(0, notes(1, 2))
    handle.append_at(1, notes(3))
    assert handle.version == 2
    assert steps_in(handle.read()) == steps_in(store.open(NOTES).read()) == [1, 2, 3]


def test_of_two_handles_at_one_version_one_loses_and_writes_nothing(store: Store, folder: Path) -> None:
    first, second = store.open(NOTES), store.open(NOTES)
    first.append_at(0, notes(1))
    log = sorted(os.listdir(folder / "_delta_log"))
    with pytest.raises(CommitConflict, match="notes"):
        second.append_at(0, notes(2))
    assert sorted(os.listdir(folder / "_delta_log")) == log
    assert steps_in(store.open(NOTES).read()) == [1]


def test_who_lost_is_not_moved_on_and_loses_again(store: Store) -> None:
    """Nothing refreshes and retries: whether to go on is decided by who leads, not by the store."""
    first, second = store.open(NOTES), store.open(NOTES)
    first.append_at(0, notes(1))
    for _ in range(2):
        with pytest.raises(CommitConflict):
            second.append_at(0, notes(2))
    assert second.version == 0
    second.reopen()
    assert second.version == 1
    second.append_at(1, notes(2))
    assert steps_in(store.open(NOTES).read()) == [1, 2]


@pytest.mark.parametrize("expected", [0, 2])
def test_a_fresh_handle_cannot_sneak_past_the_version_it_names(store: Store, folder: Path, expected: int) -> None:
    store.open(NOTES).append_at(0, notes(1))
    fresh, before = store.open(NOTES), traces(folder)
    with pytest.raises(CommitConflict, match=f"at version 1, not {expected}"):
        fresh.append_at(expected, notes(2))
    with pytest.raises(CommitConflict, match=f"at version 1, not {expected}"):
        fresh.replace_at(expected, [])
    assert traces(folder) == before


def test_many_handles_race_for_one_version(store: Store) -> None:
    handles = [store.open(NOTES) for _ in range(8)]
    won = []
    for step, handle in enumerate(handles):
        try:
            handle.append_at(0, notes(step))
            won.append(step)
        except CommitConflict:
            pass
    assert won == [0]
    assert steps_in(store.open(NOTES).read()) == [0]


def test_a_foreign_commit_is_a_conflict_too(store: Store, handle: TableHandle) -> None:
    DeltaTable(store.uri(NOTES)).optimize.compact()
    write_deltalake(store.uri(NOTES), notes(9), mode="append")
    with pytest.raises(CommitConflict):
        handle.append_at(0, notes(1))
    handle.reopen()
    (commit,) = handle.commits_after(0)
    assert commit["operation"] == "WRITE"


# -- replace_at ---------------------------------------------------------------------------------------------


def test_files_are_swapped_in_one_commit(store: Store, handle: TableHandle, folder: Path) -> None:
    for version, step in enumerate((1, 2, 3)):
        handle.append_at(version, notes(step))
    reader = store.open(NOTES)
    old = handle.files()
    handle.replace_at(3, [new_file(folder, "merged.parquet", notes(1, 2, 3))], old, last_step=3, floor=2)
    assert [f.path for f in handle.files()] == ["merged.parquet"]
    assert steps_in(handle.read()) == [1, 2, 3]
    assert (handle.version, handle.last_step(), handle.floor()) == (4, 3, 2)
    assert steps_in(reader.read()) == [1, 2, 3], "files that were replaced stay until they are deleted"
    entry = (folder / "_delta_log" / f"{4:020d}.json").read_text()
    assert [a["add"]["dataChange"] for a in map(json.loads, entry.splitlines()) if "add" in a] == [False]


def test_a_lost_swap_changes_nothing(store: Store, handle: TableHandle, folder: Path) -> None:
    handle.append_at(0, notes(1))
    other = store.open(NOTES)
    old = other.files()
    handle.append_at(1, notes(2))
    with pytest.raises(CommitConflict):
        other.replace_at(1, [new_file(folder, "merged.parquet", notes(1))], old, floor=7)
    fresh = store.open(NOTES)
    assert (fresh.version, fresh.floor()) == (2, 0)
    assert steps_in(fresh.read()) == [1, 2]


def test_files_that_are_there_are_registered_once(handle: TableHandle, folder: Path) -> None:
    file = new_file(folder, "a b%.parquet", notes(4, 5))
    handle.replace_at(0, [file], last_step=5)
    handle.replace_at(1, [file], last_step=5)
    assert steps_in(handle.read()) == [4, 5]
    (stored,) = handle.files()
    assert (stored.record_count, stored.statistics["min.step"], stored.statistics["max.step"]) == (2, 4, 5)


def test_all_files_may_go(handle: TableHandle) -> None:
    handle.append_at(0, notes(1))
    handle.replace_at(1, [], handle.files())
    assert handle.read() == NOTES.empty()


# -- notes in a commit --------------------------------------------------------------------------------------


def test_the_last_step_and_the_floor_are_noted_with_the_commit(store: Store, handle: TableHandle) -> None:
    assert (handle.last_step(), handle.floor()) == (0, 0)
    handle.append_at(0, notes(7), last_step=7)
    assert (handle.last_step(), store.open(NOTES).last_step()) == (7, 7)
    handle.append_at(1, notes(8))
    assert store.open(NOTES).last_step() == 7
    handle.checkpoint()
    assert store.open(NOTES).last_step() == 7


# -- reading ------------------------------------------------------------------------------------------------


@pytest.fixture
def three_files(handle: TableHandle) -> Iterator[TableHandle]:
    """Steps 1..3, 4..6, 7..9."""
    for version in range(3):
        first = 3 * version + 1
        handle.append_at(version, notes(first, first + 1, first + 2))
    return handle


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ((None, None), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ((5, None), [5, 6, 7, 8, 9]),
        ((None, 5), [1, 2, 3, 4, 5]),
        ((5, 5), [5]),
        ((3, 4), [3, 4]),
        ((10, None), []),
        ((6, 5), []),
    ],
)
def test_bounds_are_both_included(three_files: TableHandle, bounds: tuple[Any, Any], found: list[int]) -> None:
    assert steps_in(three_files.read(step=bounds)) == found


def test_columns_come_in_the_order_asked_for(three_files: TableHandle) -> None:
    rows = three_files.read(["name", "step"], where=pc.field("name") == "n5", step=(4, 6))
    assert rows.to_pydict() == {"name": ["n5"], "step": [5]}
    nothing = three_files.read(["name", "step"], step=(99, None))
    assert nothing.column_names == ["name", "step"]
    assert nothing.num_rows == 0


def test_files_outside_the_bounds_are_not_opened(three_files: TableHandle, folder: Path) -> None:
    for file in three_files.files():
        if not file.overlaps("step", 5, 5):
            (folder / file.path).unlink()
    assert steps_in(three_files.read(step=(5, 5))) == [5]
    with pytest.raises(FileNotFoundError):
        three_files.read(step=(3, 5))


def test_a_file_may_be_asked_what_it_overlaps(three_files: TableHandle) -> None:
    (file,) = three_files.files_with(step=(5, 5))
    assert (file.statistics["min.step"], file.statistics["max.step"], file.record_count) == (4, 6, 3)
    answers = {b: file.overlaps("step", *b) for b in [(6, 9), (7, 9), (1, 4), (1, 3), (None, 4), (None, 3), (7, None)]}
    assert [b for b, yes in answers.items() if not yes] == [(7, 9), (1, 3), (None, 3), (7, None)]
    assert file.overlaps("no statistics", 1, 2)


def test_only_these_files(three_files: TableHandle) -> None:
    chosen = three_files.files_with(step=(None, 4))
    assert steps_in(three_files.read(files=chosen)) == [1, 2, 3, 4, 5, 6]
    assert steps_in(three_files.read(files=chosen, step=(2, 4))) == [2, 3, 4]
    assert three_files.read(files=[]).num_rows == 0


def test_a_file_without_statistics_is_never_passed_over(handle: TableHandle, folder: Path) -> None:
    file = new_file(folder, "bare.parquet", notes(4))
    handle.replace_at(0, [NewFile(file.path, file.size_bytes, 0, {"numRecords": 1})])
    handle.append_at(1, notes(9))
    assert steps_in(handle.read(step=(4, 4))) == [4]
    assert steps_in(handle.read(step=(1, 3))) == []
    assert len(handle.files_with(step=(1, 3))) == 1


def test_a_handle_stays_at_its_version(store: Store, three_files: TableHandle) -> None:
    reader = store.open(NOTES)
    three_files.append_at(3, notes(10))
    assert steps_in(reader.read(step=(9, None))) == [9]
    reader.reopen()
    assert reader.version == 4
    assert steps_in(reader.read(step=(9, None))) == [9, 10]


def test_a_commit_is_read_alone(store: Store, three_files: TableHandle, folder: Path) -> None:
    assert [steps_in(rows) for v in (1, 2) if (rows := store.read_commit(NOTES, v)) is not None] == [
        [1, 2, 3],
        [4, 5, 6],
    ]
    assert store.read_commit(NOTES, 4) is None
    three_files.replace_at(3, [new_file(folder, "m.parquet", notes(*range(1, 10)))], three_files.files())
    moved = store.read_commit(NOTES, 4)
    assert moved is not None
    assert moved.num_rows == 0, "rows that only moved are not new"


# -- upkeep -------------------------------------------------------------------------------------------------


def test_a_checkpoint_lets_the_log_before_it_go(store: Store, handle: TableHandle, folder: Path) -> None:
    for version in range(6):
        handle.append_at(version, notes(version), last_step=version)
    handle.checkpoint()
    assert handle.checkpointed_version() == 6
    long_ago = time.time() - 100_000
    for entry in (folder / "_delta_log").glob("*.json"):
        os.utime(entry, (long_ago, long_ago))
    handle.expire_log()
    left = sorted(p.name for p in (folder / "_delta_log").glob("*.json"))
    assert len(left) <= 2
    fresh = store.open(NOTES)
    assert (fresh.version, fresh.last_step()) == (6, 5)
    assert steps_in(fresh.read()) == list(range(6))
    fresh.append_at(6, notes(6))
    handle.reopen()
    assert handle.version == 7


def test_before_the_first_checkpoint_there_is_none(handle: TableHandle) -> None:
    assert handle.checkpointed_version() == 0


def test_what_left_the_table_is_unneeded_and_goes(handle: TableHandle, folder: Path) -> None:
    handle.append_at(0, notes(1))
    (old,) = handle.files()
    handle.replace_at(1, [new_file(folder, "merged.parquet", notes(1))], [old])
    (folder / "stray.parquet").write_bytes(b"left behind")
    assert set(handle.unneeded_files(0)) == {old.path, "stray.parquet"}
    assert handle.unneeded_files(1) == []
    assert old.path in handle.vacuum(0)
    assert not (folder / old.path).exists()
    assert steps_in(handle.read()) == [1]


def test_a_commit_is_durable_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a local disk: the data file and its name, then the log entry and its name."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path / NOTES.name))
        real(descriptor)

    store = Store(LocalFiles(str(tmp_path)))
    store.create(NOTES)
    handle = store.open(NOTES)
    monkeypatch.setattr(os, "fsync", fsync)
    handle.append_at(0, notes(1))
    (file,) = handle.files()
    assert synced == [file.path, ".", f"_delta_log/{1:020d}.json", "_delta_log"]


def test_a_table_made_again_has_another_id(store: Store, handle: TableHandle, folder: Path) -> None:
    before = handle.table_id
    folder.rename(folder.with_name("elsewhere"))
    store.create(NOTES)
    assert store.open(NOTES).table_id != before
