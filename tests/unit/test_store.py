"""The store: one suite of behaviours for every way to open it. Commits compare versions, reads skip files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from unit.notes_table import KINDS, NOTES, age, list_steps, make_notes, new_file

from lakemq.tables.storage.delta.commits import CommitConflict, NewFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle
from lakemq.tables.storage.object_stores.files import Files, LocalFiles


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


def list_files(folder: Path) -> set[str]:
    """Return all files, of the log and of data."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# -- tables -------------------------------------------------------------------------------------------------


def test_a_new_table_is_empty_and_made_once(store: Store, handle: TableHandle) -> None:
    assert handle.version == 0
    assert handle.read() == NOTES.empty()
    assert handle.files() == []
    handle.append_at(0, make_notes(1))
    store.create(NOTES)
    assert store.open(NOTES).version == 1
    assert store.exists(NOTES)


@pytest.mark.parametrize("obstacle", ["nothing", "folder", "file", "alien table", "truncated log", "other columns"])
def test_folder_without_our_table_is_refused(tmp_path: Path, files: Files, obstacle: str) -> None:
    path = tmp_path / NOTES.name
    if obstacle == "folder":
        path.mkdir()
    elif obstacle == "file":
        path.write_text("hello")
    elif obstacle == "alien table":
        write_deltalake(str(path), make_notes(1))
    elif obstacle == "truncated log":
        Store(files).create(NOTES)
        entry = path / "_delta_log" / f"{0:020d}.json"
        entry.write_bytes(entry.read_bytes()[:40])
    elif obstacle == "other columns":
        schema = make_notes(1).drop_columns("name").schema
        configuration = NOTES.configuration
        DeltaTable.create(str(path), schema, configuration=configuration, raise_if_key_not_exists=False)
    with pytest.raises(NotATable, match=r"^notes: \w"):
        Store(files).open(NOTES)


# -- append_at ----------------------------------------------------------------------------------------------


def test_handle_that_lost_writes_no_entry_and_stays_at_its_version_until_it_is_reopened(
    store: Store, folder: Path
) -> None:
    """The store neither refreshes nor retries: the leader decides whether to go on."""
    first, second = store.open(NOTES), store.open(NOTES)
    first.append_at(0, make_notes(1))
    for _ in range(2):
        with pytest.raises(CommitConflict, match="notes"):
            second.append_at(0, make_notes(2))
    assert (second.version, list_entries(folder)) == (0, [0, 1])
    second.reopen()
    assert second.version == 1
    second.append_at(1, make_notes(2))
    assert list_steps(store.open(NOTES).read()) == [1, 2]


@pytest.mark.parametrize("expected", [0, 2])
def test_fresh_handle_that_names_another_version_is_refused(store: Store, folder: Path, expected: int) -> None:
    store.open(NOTES).append_at(0, make_notes(1))
    fresh, before = store.open(NOTES), list_files(folder)
    with pytest.raises(CommitConflict, match=f"at version 1, not {expected}"):
        fresh.append_at(expected, make_notes(2))
    with pytest.raises(CommitConflict, match=f"at version 1, not {expected}"):
        fresh.replace_at(expected, [])
    assert list_files(folder) == before


# -- replace_at ---------------------------------------------------------------------------------------------


def test_files_are_swapped_in_one_commit(store: Store, handle: TableHandle, folder: Path) -> None:
    for version, step in enumerate((1, 2, 3)):
        handle.append_at(version, make_notes(step))
    reader = store.open(NOTES)
    old = handle.files()
    handle.replace_at(3, [new_file(folder, "merged.parquet", make_notes(1, 2, 3))], old, last_step=3, floor=2)
    assert [f.path for f in handle.files()] == ["merged.parquet"]
    assert list_steps(handle.read()) == [1, 2, 3]
    assert (handle.version, handle.last_step(), handle.floor()) == (4, 3, 2)
    assert list_steps(reader.read()) == [1, 2, 3], "files that were replaced stay until they are deleted"
    entry = (folder / "_delta_log" / f"{4:020d}.json").read_text()
    assert [a["add"]["dataChange"] for a in map(json.loads, entry.splitlines()) if "add" in a] == [False]


def test_files_that_are_there_are_registered_once(handle: TableHandle, folder: Path) -> None:
    file = new_file(folder, "a b%.parquet", make_notes(4, 5))
    handle.replace_at(0, [file], last_step=5)
    handle.replace_at(1, [file], last_step=5)
    assert list_steps(handle.read()) == [4, 5]
    (stored,) = handle.files()
    assert (stored.record_count, stored.statistics["min.step"], stored.statistics["max.step"]) == (2, 4, 5)


# -- notes in a commit --------------------------------------------------------------------------------------


def test_the_last_step_and_the_floor_are_noted_with_the_commit(store: Store, handle: TableHandle) -> None:
    assert (handle.last_step(), handle.floor()) == (0, 0)
    handle.append_at(0, make_notes(7), last_step=7)
    assert (handle.last_step(), store.open(NOTES).last_step()) == (7, 7)
    handle.append_at(1, make_notes(8))
    assert store.open(NOTES).last_step() == 7
    handle.checkpoint()
    assert store.open(NOTES).last_step() == 7


# -- reading ------------------------------------------------------------------------------------------------


@pytest.fixture
def three_files(handle: TableHandle) -> Iterator[TableHandle]:
    """A table with steps 1 to 3, 4 to 6 and 7 to 9 in three files."""
    for version in range(3):
        first = 3 * version + 1
        handle.append_at(version, make_notes(first, first + 1, first + 2))
    return handle


@pytest.mark.parametrize(
    ("bounds", "expected_steps"),
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
def test_read_includes_bounds(three_files: TableHandle, bounds: tuple[Any, Any], expected_steps: list[int]) -> None:
    assert list_steps(three_files.read(step=bounds)) == expected_steps


def test_columns_come_in_the_order_asked_for(three_files: TableHandle) -> None:
    rows = three_files.read(["name", "step"], where=pc.field("name") == "n5", step=(4, 6))
    assert rows.to_pydict() == {"name": ["n5"], "step": [5]}
    nothing = three_files.read(["name", "step"], step=(99, None))
    assert nothing.column_names == ["name", "step"]
    assert nothing.num_rows == 0


def test_files_outside_the_bounds_are_not_opened(three_files: TableHandle, folder: Path) -> None:
    needed = {file.path for file in three_files.files(step=(5, 5))}
    for file in three_files.files():
        if file.path not in needed:
            (folder / file.path).unlink()
    assert list_steps(three_files.read(step=(5, 5))) == [5]
    with pytest.raises(FileNotFoundError):
        three_files.read(step=(3, 5))


def test_file_without_statistics_is_always_read(handle: TableHandle, folder: Path) -> None:
    file = new_file(folder, "bare.parquet", make_notes(4))
    handle.replace_at(0, [NewFile(file.path, file.size_bytes, 0, {"numRecords": 1})])
    handle.append_at(1, make_notes(9))
    assert list_steps(handle.read(step=(4, 4))) == [4]
    assert list_steps(handle.read(step=(1, 3))) == []
    assert len(handle.files(step=(1, 3))) == 1


# -- upkeep -------------------------------------------------------------------------------------------------


def list_entries(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


def test_log_entries_before_a_checkpoint_are_deleted(store: Store, handle: TableHandle, folder: Path) -> None:
    for version in range(6):
        handle.append_at(version, make_notes(version), last_step=version)
    handle.checkpoint()
    assert handle.log.checkpointed_version() == 6
    age(folder / "_delta_log")
    assert handle.expire_log() == 6
    assert list_entries(folder) == [6], "the newest stays, for who stands on it"
    fresh = store.open(NOTES)
    assert (fresh.version, fresh.last_step()) == (6, 5)
    assert list_steps(fresh.read()) == list(range(6))
    fresh.append_at(6, make_notes(6))
    handle.reopen()
    assert handle.version == 7


def test_log_entries_go_when_an_old_checkpoint_covers_them(handle: TableHandle, folder: Path) -> None:
    for version in range(4):
        handle.append_at(version, make_notes(version))
    age(folder / "_delta_log")
    assert handle.expire_log() == 0, "nothing is covered"
    handle.reopen()
    handle.checkpoint()
    age(folder / "_delta_log")
    handle.reopen()
    handle.append_at(4, make_notes(4))
    os.utime(folder / "_delta_log" / f"{4:020d}.checkpoint.parquet")
    assert handle.expire_log() == 0, "it has covered them since now"
    age(folder / "_delta_log")
    assert handle.expire_log() == 4, "the checkpoint itself and what comes after it stays"
    assert list_entries(folder) == [4, 5]


def test_entries_just_covered_by_a_checkpoint_stay(store: Store, handle: TableHandle, folder: Path) -> None:
    """In a quiet table everything was written long ago, also the checkpoint that a reader has just looked up."""
    handle.append_at(0, make_notes(0))
    handle.append_at(1, make_notes(1))
    handle.checkpoint()
    age(folder / "_delta_log")
    hint = json.loads((folder / "_delta_log" / "_last_checkpoint").read_text())
    handle.reopen()
    handle.append_at(2, make_notes(2))
    handle.checkpoint()
    assert handle.expire_log() == 2, "of what the first one covers"
    assert (folder / "_delta_log" / f"{hint['version']:020d}.checkpoint.parquet").exists()
    age(folder / "_delta_log", NOTES.log_retention_ms / 1000 + 1)
    assert handle.expire_log() == 2
    assert list_entries(folder) == [3]
    assert list_steps(store.open(NOTES).read()) == [0, 1, 2]


def test_empty_checkpoint_deletes_no_log_entry(handle: TableHandle, folder: Path) -> None:
    """A loss of power may leave one."""
    handle.append_at(0, make_notes(0))
    handle.append_at(1, make_notes(1))
    handle.checkpoint()
    (folder / "_delta_log" / f"{2:020d}.checkpoint.parquet").write_bytes(b"")
    age(folder / "_delta_log")
    assert handle.expire_log() == 0


def test_damaged_checkpoint_hint_is_ignored(handle: TableHandle, folder: Path) -> None:
    for version in range(6):
        handle.append_at(version, make_notes(version))
        if version in (1, 3):
            handle.checkpoint()
    of_versions = [
        f'{{"version":{value}}}'.encode() for value in ("null", "true", '"4"', "Infinity", "-1", "5", "9" * 30)
    ]
    for hint in [b"", b'{"versi', b"{}", b"[]", b"5", b"\xff", b"[" * 9999, *of_versions]:
        (folder / "_delta_log" / "_last_checkpoint").write_bytes(hint)
        assert handle.log.checkpointed_version() == 4, hint


def test_hint_at_a_checkpoint_that_is_gone_does_not_close_the_table(
    handle: TableHandle, folder: Path, store: Store
) -> None:
    for version in range(3):
        handle.append_at(version, make_notes(version))
    (folder / "_delta_log" / "_last_checkpoint").write_text('{"version":2,"size":3}')
    assert list_steps(store.open(NOTES).read()) == [0, 1, 2]


def test_checkpoint_counts_only_with_all_its_parts(handle: TableHandle, folder: Path) -> None:
    log = folder / "_delta_log"
    for name in (f"{7:020d}.checkpoint.{1:010d}.{2:010d}", f"{8:020d}.checkpoint.{1:010d}.{2:010d}"):
        (log / f"{name}.parquet").touch()
    assert handle.log.checkpointed_version() == 0
    (log / f"{7:020d}.checkpoint.{2:010d}.{2:010d}.parquet").touch()
    assert handle.log.checkpointed_version() == 7


def clean_log_beyond(store: Store, folder: Path) -> None:
    """Let another handle append, checkpoint, and clean the log."""
    other = store.open(NOTES)
    for _ in range(3):
        other.append_at(other.version, make_notes(other.version))
    other.checkpoint()
    age(folder / "_delta_log")
    other.expire_log()


def test_stopped_handle_does_not_commit_on_a_cleaned_version(store: Store, handle: TableHandle, folder: Path) -> None:
    """The next version is free again, so a put-if-absent succeeds, but nobody counts what is put."""
    handle.append_at(0, make_notes(0))
    clean_log_beyond(store, folder)
    assert list_entries(folder) == [4]
    for _ in range(2):
        with pytest.raises(CommitConflict):
            handle.append_at(1, make_notes(99))
    assert list_steps(store.open(NOTES).read()) == [0, 1, 2, 3]


def test_notes_of_a_cleaned_version_cannot_be_read(store: Store, handle: TableHandle, folder: Path) -> None:
    """A new handle gets the same error as for any missing file, and opens the table again."""
    handle.append_at(0, make_notes(0), last_step=7)
    stopped = store.open(NOTES)
    clean_log_beyond(store, folder)
    for read in (stopped.last_step, stopped.floor):
        with pytest.raises(FileNotFoundError, match="notes: "):
            read()
    assert store.open(NOTES).last_step() == 7


def test_commit_overtaken_by_cleaning_is_a_conflict(store: Store, handle: TableHandle, folder: Path) -> None:
    """It was stopped between its rows and their entry. The look after the put finds the entry before it gone."""
    handle.append_at(0, make_notes(0))
    with pytest.raises(CommitConflict, match="cleaned"):
        handle.append_at(1, make_notes(99), on_rows_written=lambda: clean_log_beyond(store, folder))
    assert list_entries(folder) == [2, 4], "the entry that nobody counts, and the newest one"
    fresh = store.open(NOTES)
    assert (fresh.version, list_steps(fresh.read())) == (4, [0, 1, 2, 3])
    assert fresh.commits_after(3)[0]["version"] == 4
    age(folder / "_delta_log")
    assert fresh.expire_log() == 1
    assert list_entries(folder) == [4]


# -- entries of commits -------------------------------------------------------------------------------------


def test_a_handle_sees_its_own_commits_and_refuses_those_of_others(store: Store, handle: TableHandle) -> None:
    handle.append_at(0, make_notes(1))
    handle.append_at(1, make_notes(2))
    assert list_steps(handle.read()) == [1, 2]
    handle.append_at(2, make_notes(3))
    write_deltalake(store.uri(NOTES), make_notes(9), mode="append")
    for read in (handle.files, handle.checkpoint):
        with pytest.raises(CommitConflict, match="version 4 appeared after 3"):
            read()


def test_a_table_with_a_raised_protocol_is_not_written(store: Store, handle: TableHandle, folder: Path) -> None:
    actions = [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}]
    actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}})
    body = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{1:020d}.json").write_text(body)
    handle.reopen()
    before = list_files(folder)
    with pytest.raises(OSError, match="notes: found writer version 4 of Delta's protocol, expected writer version 2"):
        handle.append_at(1, make_notes(1))
    with pytest.raises(OSError, match="writer version 4"):
        handle.replace_at(1, [])
    assert list_files(folder) == before


# -- durability ---------------------------------------------------------------------------------------------


@pytest.fixture
def synced_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, from the namespace's folder, in order."""
    paths: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        status, path = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
        paths.append(os.path.relpath(path, tmp_path) if status.st_nlink else f"inode {status.st_ino}")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_commit_is_durable_when_append_returns(tmp_path: Path, synced_paths: list[str]) -> None:
    """On a local disk the data file and its name are synced, then the log entry and its name.

    A file is synced before it has a name.
    """
    store = Store(LocalFiles(str(tmp_path)))
    store.create(NOTES)
    handle = store.open(NOTES)
    synced_paths.clear()
    handle.append_at(0, make_notes(1))
    (file,) = handle.files()
    inodes = [(tmp_path / "notes" / name).stat().st_ino for name in (file.path, f"_delta_log/{1:020d}.json")]
    assert synced_paths == [f"inode {inodes[0]}", "notes", f"inode {inodes[1]}", "notes/_delta_log"]


def test_a_checkpoint_is_durable_before_the_log_it_covers_goes(tmp_path: Path, synced_paths: list[str]) -> None:
    store = Store(LocalFiles(str(tmp_path)))
    store.create(NOTES)
    handle = store.open(NOTES)
    handle.append_at(0, make_notes(1))
    synced_paths.clear()
    handle.checkpoint()
    log = "notes/_delta_log"
    assert synced_paths == [f"{log}/{1:020d}.checkpoint.parquet", f"{log}/_last_checkpoint", log]


def test_a_table_made_again_has_another_id(store: Store, handle: TableHandle, folder: Path) -> None:
    before = handle.table_id
    folder.rename(folder.with_name("elsewhere"))
    store.create(NOTES)
    assert store.open(NOTES).table_id != before
    with pytest.raises(CommitConflict, match="recreated"):
        handle.reopen()


# -- Leftovers: files that a merge has replaced, and files that nothing names, are deleted, and no others.


@pytest.fixture
def leftovers(handle: TableHandle, files: Files, folder: Path) -> Leftovers:
    """The leftovers of a merge of two files into one, beside a stray file that no list names."""
    leftovers = Leftovers(files)
    handle.append_at(0, make_notes(1))
    handle.append_at(1, make_notes(2))
    leftovers.announce(NOTES.name, ["merged.parquet", *(file.path for file in handle.files())])
    handle.replace_at(2, [new_file(folder, "merged.parquet", make_notes(1, 2))], handle.files())
    (folder / "stray.parquet").write_bytes(b"left behind")
    return leftovers


def data_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet")}


def test_replaced_files_are_deleted_after_the_grace(
    leftovers: Leftovers, handle: TableHandle, files: Files, folder: Path
) -> None:
    assert leftovers.delete(NOTES.name, 60_000, handle.open_newest) == 0
    age(folder.parent / "leftovers")
    leftovers = Leftovers(files)  # another instance, which has not seen when they were written
    assert leftovers.delete("others", 60_000, handle.open_newest) == 0
    assert leftovers.delete(NOTES.name, 60_000, handle.open_newest) == 2
    assert data_files(folder) == {"merged.parquet", "stray.parquet"}
    assert list((folder.parent / "leftovers").iterdir()) == []
    assert list_steps(handle.read()) == [1, 2]


def test_swap_that_never_landed_leaves_its_new_file_to_delete(handle: TableHandle, files: Files, folder: Path) -> None:
    leftovers = Leftovers(files)
    handle.append_at(0, make_notes(1))
    leftovers.announce(NOTES.name, ["merged.parquet", *(file.path for file in handle.files())])
    new_file(folder, "merged.parquet", make_notes(1))
    age(folder.parent / "leftovers")
    assert leftovers.delete(NOTES.name, 60_000, handle.open_newest) == 1
    assert list_steps(handle.read()) == [1]


def test_file_merged_again_lately_stays_for_readers(leftovers: Leftovers, handle: TableHandle, folder: Path) -> None:
    age(folder.parent / "leftovers")
    leftovers.announce(NOTES.name, ["again.parquet", "merged.parquet"])
    handle.replace_at(3, [new_file(folder, "again.parquet", make_notes(1, 2))], handle.files())
    leftovers.delete(NOTES.name, 60_000, handle.open_newest)
    assert data_files(folder) == {"again.parquet", "merged.parquet", "stray.parquet"}


def test_old_strays_are_deleted_and_no_live_or_announced_file(
    leftovers: Leftovers, handle: TableHandle, folder: Path
) -> None:
    before = data_files(folder)
    assert leftovers.sweep(NOTES.name, 60_000, handle.open_newest) == 0
    age(folder)
    assert leftovers.sweep(NOTES.name, 60_000, handle.open_newest) == 1
    assert data_files(folder) == before - {"stray.parquet"}


def test_invalid_list_is_skipped_and_stops_sweeps(
    leftovers: Leftovers, handle: TableHandle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lists = folder.parent / "leftovers"
    odd_paths = [lists / f"{NOTES.name}-{number}.json" for number in range(4)]
    for path, text in zip(odd_paths, (b"", b"\xff", b'["../x"]', b"[" * 100_000), strict=True):
        path.write_bytes(text)
    age(lists)
    assert leftovers.delete(NOTES.name, 60_000, handle.open_newest) == 2
    assert data_files(folder) == {"merged.parquet", "stray.parquet"}
    assert sorted(lists.iterdir()) == sorted(odd_paths), "they are somebody's"
    assert "is not a list of files" in caplog.text
    age(folder)
    assert leftovers.sweep(NOTES.name, 60_000, handle.open_newest) == 0, "they may name what was just replaced"


def test_unreadable_list_delays_deletions(leftovers: Leftovers, handle: TableHandle, folder: Path) -> None:
    age(folder.parent / "leftovers")
    (folder.parent / "leftovers" / f"{NOTES.name}-odd.json").write_text("{")
    before = data_files(folder)
    assert leftovers.delete(NOTES.name, 60_000, handle.open_newest) == 0
    assert data_files(folder) == before


def test_a_list_of_what_cannot_be_deleted_is_tried_again(
    leftovers: Leftovers, handle: TableHandle, folder: Path
) -> None:
    lists = folder.parent / "leftovers"
    (folder / "below").mkdir()
    (lists / f"{NOTES.name}-odd.json").write_text('["below"]')
    age(lists)
    leftovers.delete(NOTES.name, 60_000, handle.open_newest)
    assert data_files(folder) == {"merged.parquet", "stray.parquet"}
    (folder / "below").rmdir()
    leftovers.delete(NOTES.name, 60_000, handle.open_newest)
    assert list(lists.iterdir()) == []


def test_sweep_of_a_stale_handle_deletes_no_file_of_others(
    leftovers: Leftovers, handle: TableHandle, store: Store, folder: Path
) -> None:
    """The leader of the handle was stopped. The newest version says which files the table names."""
    other = store.open(NOTES)
    for _ in range(3):
        other.append_at(other.version, make_notes(other.version))
    age(folder)
    leftovers.sweep(NOTES.name, 60_000, handle.open_newest)
    assert list_steps(store.open(NOTES).read()) == [1, 2, 3, 4, 5]
