"""Leftovers: files that a merge has replaced, and files that nothing names, are deleted, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.notes_table import KINDS, NOTES, age, list_steps, make_notes, new_file

from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle
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


def test_a_swap_that_never_landed_deletes_its_own_file_only(handle: TableHandle, files: Files, folder: Path) -> None:
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


def write_odd_lists(folder: Path, special: bool) -> list[Path]:
    """Write invalid contents under the names of lists. special: also kinds of files that only a disk can hold."""
    texts = ["", "{", "7", "[7]", '["../x"]', '[""]', '["_delta_log/0.json"]', '["\\ud800"]', '{"a": 1}', "[" * 100_000]
    paths = [folder / f"{NOTES.name}-{n}.json" for n in range(len(texts) + 4)]
    for path, text in zip(paths, texts, strict=False):
        path.write_text(text)
    below, alien, pipe, loop = paths[len(texts) :]
    below.mkdir()
    alien.write_bytes(b"\xff\xfe")
    if not special:
        return paths[:-2]
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    return paths


def test_invalid_list_is_skipped_and_stops_sweeps(
    leftovers: Leftovers, handle: TableHandle, files: Files, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lists = folder.parent / "leftovers"
    odd_paths = write_odd_lists(lists, special=isinstance(files, LocalFiles))
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


def test_stale_handle_makes_no_file_of_others_a_stray(
    leftovers: Leftovers, handle: TableHandle, store: Store, folder: Path
) -> None:
    """The leader of the handle was stopped. The newest version says which files the table names."""
    other = store.open(NOTES)
    for _ in range(3):
        other.append_at(other.version, make_notes(other.version))
    age(folder)
    leftovers.sweep(NOTES.name, 60_000, handle.open_newest)
    assert list_steps(store.open(NOTES).read()) == [1, 2, 3, 4, 5]
